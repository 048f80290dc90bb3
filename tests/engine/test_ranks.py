"""Two ranks in two processes (torch.distributed, gloo) drive the same loop and stay the same.

Each process has its own scheduler, device and events. Rank zero's records and time drive both, the
other's must agree with them; intervals and confidence may differ and count as the design says: the
longest interval, rank zero's confidence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helios.engine.messages import Cancel, Delta, Finished
from helios.engine.ports import LaneOutput, Sidecar
from helios.scheduler import (
    CompletionRecord,
    DecodeMode,
    ExecutionTiming,
    Fence,
    GeneratedToken,
    ScheduledPlan,
    Scheduler,
    SpeculationConfig,
)
from tests.engine.folding import (
    COPY_ROUNDS,
    DEVICE_ROUNDS,
    HOST_ROUNDS,
    ORDINARY,
    FoldingModel,
    expected_output,
)
from tests.engine.test_copying import Knowing
from tests.engine.test_every_kind import prompt_of
from tests.engine.world import World, request
from tests.runtime.counting import EOS

pytestmark = pytest.mark.slow
RANKS = 2
CATALOGS = {
    "ordinary": ORDINARY,
    "host": HOST_ROUNDS,
    "device": DEVICE_ROUNDS,
    "copies": COPY_ROUNDS,
}
LIMIT = 40
NAMES = [f"q{index}" for index in range(9)]


class Ranked:
    """A scheduler that completes with what all ranks report; implements DecisionCore."""

    def __init__(self, scheduler: Scheduler, rank: int) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self.committed: list[tuple[GeneratedToken, ...]] = []
        self.plans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def plan(self) -> ScheduledPlan | None:
        """Return the plan, which every rank must have made with the same lanes and rows."""
        plan = self._scheduler.plan()
        lanes = None if plan is None else (plan.graph.name, plan.reason, plan.steps)
        assert len({pickle.dumps(each) for each in gathered(lanes)}) == 1
        self.plans += 1
        return plan

    def complete(
        self, fence: Fence, records: Sequence[CompletionRecord], timing: ExecutionTiming
    ) -> list[GeneratedToken]:
        return self._complete("complete", fence, records, timing)

    def complete_with_survival(self, *given: Any) -> list[GeneratedToken]:
        return self._complete("complete_with_survival", *given)

    def complete_packed_round(self, *given: Any) -> list[GeneratedToken]:
        return self._complete("complete_packed_round", *given)

    def complete_packed_round_with_survival(self, *given: Any) -> list[GeneratedToken]:
        return self._complete("complete_packed_round_with_survival", *given)

    def _complete(
        self,
        call: str,
        fence: Fence,
        records: Sequence[CompletionRecord],
        timing: ExecutionTiming,
        *sidecars: Sidecar,
    ) -> list[GeneratedToken]:
        # The other rank is slower, and less sure of the same proposals.
        own_ns = tuple(ns * (1 + self._rank) for ns in timing.device_ns)
        own = [sidecar[self._rank] * np.float32(0.9**self._rank) for sidecar in sidecars]
        reports = gathered((call, fence, tuple(records), own_ns, own))
        assert {report[:2] for report in reports} == {(call, fence)}
        timing = dataclasses.replace(timing, device_ns=sum((r[3] for r in reports), ()))
        layers = [np.stack([r[4][place] for r in reports]) for place in range(len(sidecars))]
        first, *peers = [report[2] for report in reports]
        complete = getattr(self._scheduler, call)
        tokens: list[GeneratedToken] = complete(fence, first, timing, *layers, peers=peers)
        self.committed.append(tuple(tokens))
        return tokens


def gathered(mine: Any) -> list[Any]:
    """Return what every rank passed, in their order; every rank waits for all."""
    import torch.distributed as ranks

    everyone: list[Any] = [None] * RANKS
    ranks.all_gather_object(everyone, mine)
    return everyone


class Garbling:
    """A program whose `at`-th output has one wrong token."""

    def __init__(self, program: Any, at: int) -> None:
        self._program, self._at, self._reads = program, at, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def read(self, frame: Any) -> tuple[LaneOutput, ...]:
        lanes: tuple[LaneOutput, ...] = self._program.read(frame)
        self._reads += 1
        if self._reads != self._at:
            return lanes
        first = lanes[0]._replace(tokens=((lanes[0].tokens[0] + 1) % 26, *lanes[0].tokens[1:]))
        return (first, *lanes[1:])


def ranked_world(kind: str, rank: int) -> tuple[World, Ranked]:
    mode = DecodeMode.ORDINARY if kind == "ordinary" else DecodeMode.ADAPTIVE
    made: list[Ranked] = []

    def wrap(scheduler: Scheduler) -> Any:
        made.append(Ranked(scheduler, rank))
        return made[0]

    world = World(
        model=FoldingModel(CATALOGS[kind], draft_extent_tokens=0 if kind == "ordinary" else 3),
        speculation=SpeculationConfig(mode=mode),
        copies=(lambda name, prompt: Knowing(prompt, wrong=3)) if kind == "copies" else None,
        wrap=wrap,
    )
    return world, made[0]


def serve(kind: str, rank: int, *, garbles: bool) -> dict[str, Any]:
    """Serve on one rank: requests that come, leave and end; return what became of all."""
    world, core = ranked_world(kind, rank)
    graphs = world.model.catalog.graphs
    if garbles and rank == 1:
        place = next(i for i, graph in enumerate(graphs) if graph.name == "decode-b4")
        world.model.programs[place] = Garbling(world.model.programs[place], at=5)
    for name in NAMES[:6]:
        prompt = prompt_of(name, 8 + int(name[1]))
        world.core.handle(request(name, prompt=prompt, max_output_tokens=LIMIT))
    for _ in range(25):
        world.turn()
    world.core.handle(Cancel(request_id="q4"))
    for name in NAMES[6:]:
        prompt = prompt_of(name, 8 + int(name[1]))
        world.core.handle(request(name, prompt=prompt, max_output_tokens=LIMIT))
    world.run()
    world.scheduler.drop_checkpoints()
    world.assert_everything_is_back()
    deltas = [event for event in world.events if isinstance(event, Delta)]
    return {
        "tokens": {name: world.tokens(name) for name in NAMES},
        "ends": [e for e in world.events if isinstance(e, Finished)],
        "deltas": deltas,
        "committed": core.committed,
        "plans": core.plans,
        "state": hashlib.sha256(repr(world.scheduler.usage()).encode()).hexdigest(),
        "costs": world.clock.time_ns,
    }


def run_rank(rank: int, store: str, results: Any) -> None:
    """Be one rank (the process)."""
    import torch.distributed as ranks

    ranks.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    found = {kind: serve(kind, rank, garbles=False) for kind in CATALOGS}
    found["garbled"] = serve("ordinary", rank, garbles=True)
    ranks.destroy_process_group()
    results.put((rank, found))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank made of every scenario."""
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    store: Path = tmp_path_factory.mktemp("ranks") / "store"
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    both = [context.Process(target=run_rank, args=(i, str(store), results)) for i in range(RANKS)]
    for process in both:
        process.start()
    found = dict(results.get(timeout=120) for _ in both)
    for process in both:
        process.join(timeout=30)
        assert process.exitcode == 0
    return [found[rank] for rank in range(RANKS)]


@pytest.mark.parametrize("kind", CATALOGS)
def test_ranks_agree_on_identities_consumption_and_prefixes(ranks, kind: str) -> None:
    first, second = (found[kind] for found in ranks)
    assert first == second
    assert first["plans"] > 50
    for name in NAMES:
        output = expected_output(prompt_of(name, 8 + int(name[1])), LIMIT)
        if name == "q4":
            assert list(first["tokens"][name]) == output[: len(first["tokens"][name])]
        else:
            assert list(first["tokens"][name]) == output
            (end,) = (e for e in first["ends"] if e.request_id == name)
            assert end.reason == ("stop" if EOS in output else "length")
    bursts = [len(delta.token_ids) for delta in first["deltas"]]
    assert (max(bursts) > 1) == (kind != "ordinary")


def test_a_rank_that_drew_another_token_fails_that_frame_on_every_rank(ranks) -> None:
    first, second = (found["garbled"] for found in ranks)
    assert first == second
    failed = [end for end in first["ends"] if end.reason == "error"]
    assert failed
    assert all("rank 1, lane 0" in (end.error or "") for end in failed)
    for end in first["ends"]:
        if end.reason in ("stop", "length"):
            prompt = prompt_of(end.request_id, 8 + int(end.request_id[1]))
            assert list(first["tokens"][end.request_id]) == expected_output(prompt, LIMIT)
    assert len(failed) < len(NAMES) - 1
