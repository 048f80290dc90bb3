"""Copied proposals in simulated runs: where they are found, and who hears of them."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from helios.scheduler import ProposalSource
from scheduling_sim.acceptance import acceptance
from scheduling_sim.acceptance_model import RoundDraw
from scheduling_sim.copies import ModelledCopies
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.workload.records import WorkloadRequest
from tests.sim.worlds import ask, asked, reasons


@dataclasses.dataclass(frozen=True)
class OnePiece:
    """Output tokens from `start` up to `end` repeat earlier text, nothing else does."""

    start: int
    end: int

    def draw(
        self, request: WorkloadRequest, output_index: int, depth: int, source: ProposalSource
    ) -> RoundDraw:
        assert source is ProposalSource.COPY
        inside = self.end - output_index if self.start <= output_index < self.end else 0
        return RoundDraw(min(depth, inside), [1.0] * depth, [1.0] * depth)


def test_lookup_finds_a_piece_behind_its_third_token_and_overshoots_its_end() -> None:
    source = ModelledCopies(ask("a", 0, 16, 30), OnePiece(5, 12), depth=3)
    found = []
    for _ in range(20):
        source.extend((1,))
        found.append(len(source.propose()))
    # Behind 8 tokens the last three are 5 to 7, the piece's first; behind 12 they are its last.
    assert [position for position, count in enumerate(found, 1) if count] == list(range(8, 13))
    assert set(found) == {0, 3}


def copied_run(profile: str, *, copies: bool = True) -> RunLog:
    options: dict[str, object] = {"widths": (1, 4), "copies": (4,) if copies else ()}
    return simulate(
        Setup(
            platform=platform("synthetic", rows=4, decode=False, prefills=(64,), **options),
            workload=asked(*(ask(f"r{index}", index, 40, 400) for index in range(3))),
            acceptance=acceptance(profile, seed=3),
        )
    )


def test_copies_run_where_answers_repeat_and_save_time() -> None:
    """A run of copies needs no draft: with text that repeats, it must win and be right often."""
    log = copied_run("copy-heavy")
    kinds = Counter("copy" in log.graph_names[index] for index in log.steps.graph_index)
    assert reasons(log) == {"stop": 3}
    assert kinds[True] > 20, "copies were never supplied"
    assert log.ended_ns < copied_run("copy-heavy", copies=False).ended_ns


def test_programs_of_copies_are_not_even_tried_where_nothing_repeats() -> None:
    """A round without copies is what a narrower one does as well, and that one may run ahead."""
    log = copied_run("nothing")
    assert not any("copy" in log.graph_names[index] for index in log.steps.graph_index)
    assert log.ended_ns == copied_run("nothing", copies=False).ended_ns
    assert reasons(log) == {"stop": 3}


def test_a_catalog_of_copies_needs_a_model() -> None:
    chosen = platform("synthetic", rows=2, decode=False, widths=(1,), copies=(4,))
    with pytest.raises(ValueError, match="the run needs an acceptance model"):
        simulate(Setup(platform=chosen, workload=asked(ask("a", 0, 8, 4))))
