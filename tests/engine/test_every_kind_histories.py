"""Random histories over every kind of program: answers are whole, and everything comes back."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from helios.engine.copying import PromptLookup
from helios.engine.core import StepOutcome
from helios.engine.messages import (
    Cancel,
    Delta,
    Finished,
    ImageMessage,
    PromptLogprobs,
    Rejected,
    SamplingMessage,
)
from helios.engine.ports import CopySource
from helios.scheduler import DecodeMode, PolicyConfig, SpeculationConfig
from tests.engine.folding import (
    CONTEXT,
    COPY_ROUNDS,
    DEVICE_ROUNDS,
    HOST_ROUNDS,
    ORDINARY,
    FoldingModel,
    expected_output,
)
from tests.engine.test_core_histories import check_trace
from tests.engine.test_stops import slow_reference
from tests.engine.world import World, request
from tests.runtime.counting import EOS, text_of

FAMILIES = [[(family * 7 + index * index) % 26 for index in range(90)] for family in range(3)]
"""Prompts that share their starts."""

WORLDS = st.fixed_dictionaries(
    {
        "names": st.sampled_from([ORDINARY, HOST_ROUNDS, DEVICE_ROUNDS, COPY_ROUNDS]),
        "fixed": st.booleans(),
        "kept": st.sampled_from(
            [{}, {"snapshot_rows": 1}, {"snapshot_rows": 4}, {"page_prefixes": True}]
        ),
        "page_growth": st.booleans(),
        "page_count": st.sampled_from([9, 12, 24]),
        "draft_extent_tokens": st.sampled_from([0, 3]),
        "has_images": st.booleans(),
        "has_cheap_copies": st.booleans(),
        "is_traced": st.booleans(),
    }
)
REQUESTS = st.fixed_dictionaries(
    {
        "family": st.integers(0, 2),
        "shared": st.sampled_from([0, 18, 36, 64]),
        "own": st.lists(st.integers(0, 25), min_size=1, max_size=12),
        "follows": st.integers(-6, 12),
        "max_output_tokens": st.integers(1, 70),
        "ends": st.sets(st.sampled_from([16, 32, 60]), max_size=2),
        "boundary": st.integers(0, 3),
        "width_limit": st.sampled_from([0, 0, 1, 2]),
        "keep_terminal": st.booleans(),
        "stop": st.lists(st.text("abcdef", min_size=1, max_size=2), max_size=1),
        "scored": st.integers(0, 5).map(lambda number: number == 0),
        "image": st.integers(0, 3),
        "tenant": st.sampled_from(["", "", "a", "b"]),
    }
)
BREAKABLE = [
    *("initialize-b1", "prefill-c16", "prefill-c64", "decode-b4", "terminal-b1"),
    *("speculative-b4-d3-w4", "speculative-b1-d3-w4", "mixed-b4-w1-c64", "mixed-b4-d3-w4-c64"),
    *("speculative-b4-d3-w4-p8-device", "snapshot-b1", "restore-b1", "vision-c32"),
]
ACTIONS = st.lists(
    st.one_of(
        REQUESTS.map(lambda fields: ("submit", fields)),
        REQUESTS.map(lambda fields: ("submit", fields)),
        st.integers(0, 20).map(lambda index: ("cancel", index)),
        st.integers(1, 25).map(lambda turns: ("turn", turns)),
        st.sampled_from(BREAKABLE).map(lambda name: ("fail", name)),
        st.integers(1, 40).map(lambda ms: ("wait", ms)),
        st.just(("drop", 0)),
    ),
    max_size=30,
)


def lookup(request_id: str, prompt: np.ndarray) -> CopySource:
    """A single matching token is enough, so that proposals come up often."""
    return PromptLookup(prompt.tolist(), depth=3, size=1)


def world_of(options: dict[str, Any], policy: PolicyConfig) -> World:
    resources = dict(options["kept"])
    for name in ("page_growth", "page_count", "draft_extent_tokens"):
        resources[name] = options[name]
    if options["has_images"]:
        resources["feature_rows"] = 32
    model = FoldingModel(options["names"], **resources)
    speculation = None
    if options["names"] is not ORDINARY:
        is_fixed = options["fixed"] and options["names"] is HOST_ROUNDS
        speculation = SpeculationConfig(
            mode=DecodeMode.FIXED if is_fixed else DecodeMode.ADAPTIVE,
            fixed_width=4 if is_fixed else 0,
        )
    world = World(
        model=model,
        policy=policy,
        speculation=speculation,
        traced=options["is_traced"],
        waiting_limit=12,
        copies=lookup if options["names"] is COPY_ROUNDS else None,
    )
    if options["has_cheap_copies"]:
        names = [graph.name for graph in model.catalog.graphs]
        world.executor.durations_ns = {
            name: 20_000 for name in names if name.startswith(("snapshot", "restore"))
        }
    return world


class History:
    """Plays actions and remembers what was asked."""

    def __init__(self, options: dict[str, Any], policy: PolicyConfig) -> None:
        self.world = world_of(options, policy)
        self.is_traced = bool(options["is_traced"])
        self.asked: dict[str, dict[str, Any]] = {}

    def play(self, actions: list[tuple[str, Any]]) -> None:
        for action, argument in actions:
            if action == "submit":
                self._submit(argument)
            elif action == "cancel":
                self.world.core.handle(Cancel(request_id=f"r{argument}"))
            elif action == "turn":
                for _ in range(argument):
                    self.world.turn()
                self.world.executor.failing.clear()
            elif action == "fail":
                self.world.executor.failing[argument] = "device lost"
            elif action == "wait":
                self.world.clock.time_ns += argument * 1_000_000
            else:
                self.world.scheduler.drop_checkpoints()
        self.world.executor.failing.clear()
        assert self.world.run() is StepOutcome.IDLE

    def _submit(self, fields: dict[str, Any]) -> None:
        prompt, ends = (
            FAMILIES[fields["family"]][: fields["shared"]] + fields["own"],
            fields["ends"],
        )
        before = self.asked.get(f"r{fields['follows']}")
        if before is not None:
            answer = expected_output(before["prompt"], before["limit"])
            prompt = before["prompt"] + answer + fields["own"]
            ends = {len(before["prompt"]) + len(answer) - 1}
        images: tuple[ImageMessage, ...] = ()
        if self.world.scheduler.resources.feature_rows:
            images = tuple(
                ImageMessage(start=start, tokens=6, features=12, digest=bytes([start]))
                for start in (2, 24, 40, 52)[: fields["image"]]
                if start + 6 <= len(prompt)
            )
        inside = {
            position for image in images for position in range(image.start + 1, image.start + 6)
        }
        limit = min(fields["max_output_tokens"], CONTEXT - len(prompt))
        request_id = f"r{len(self.asked)}"
        self.asked[request_id] = fields | {"prompt": prompt, "limit": max(1, limit)}
        boundaries = (8, 21, 33)[: fields["boundary"]]
        self.world.core.handle(
            request(
                request_id,
                prompt=prompt,
                max_output_tokens=fields["max_output_tokens"],
                stop=tuple(fields["stop"]),
                scored=fields["scored"] and not images,
                endpoints=tuple(sorted(e for e in ends if e <= len(prompt) and e not in inside)),
                boundaries=tuple(b for b in boundaries if b <= len(prompt) and b not in inside),
                width_limit=fields["width_limit"],
                keep_terminal=fields["keep_terminal"],
                images=images,
                tenant=fields["tenant"],
                sampling=SamplingMessage(temperature=0.0, top_logprobs=fields["image"] - 1),
            )
        )

    def check(self) -> None:
        world = self.world
        for request_id, fields in self.asked.items():
            check_answer(world, request_id, fields)
        stats = world.stats()
        ended = sum(stats.labelled_counters["flare_requests_finished_total"].values())
        assert ended == stats.counters["flare_requests_submitted_total"]
        assert stats.counters["flare_engine_stalls_total"] == 0
        if self.is_traced:
            check_trace(world)
        world.scheduler.drop_checkpoints()
        world.assert_everything_is_back()
        usage = world.scheduler.usage()
        assert (usage.snapshot_rows_in_use, usage.pages_kept, usage.in_flight) == (0, 0, ())


def check_answer(world: World, request_id: str, fields: dict[str, Any]) -> None:
    """A client saw an undisturbed run's output, whole or up to where it was ended."""
    events = world.of(request_id)
    closing = [event for event in events if isinstance(event, Finished | Rejected)]
    assert [events[-1]] == closing
    if isinstance(closing[0], Rejected):
        assert len(events) == 1
        return
    finished, tokens = closing[0], list(world.tokens(request_id))
    wanted = expected_output(fields["prompt"], fields["limit"])
    assert tokens == wanted[: len(tokens)]
    text = "".join(text_of(token) for token in tokens if token != EOS)
    visible, held, matched = slow_reference(fields["stop"], text, include_stop=False)
    if finished.reason in ("stop", "length"):
        assert finished.output_tokens == len(tokens)
        assert matched or tokens == wanted
        assert world.text(request_id) == visible + held
        assert (finished.reason == "stop") == bool(matched or EOS in tokens)
    else:
        assert finished.reason == "cancelled" or finished.error.endswith("device lost")
        assert (visible + held).startswith(world.text(request_id))
    assert 0 <= finished.cached_prompt_tokens < len(fields["prompt"])
    scores = [event for event in events if isinstance(event, PromptLogprobs)]
    assert len(scores) <= 1
    assert all(len(event.entries) == len(fields["prompt"]) for event in scores)
    deltas = [event for event in events if isinstance(event, Delta)]
    count = 1 if fields["image"] else 0
    assert all(len(delta.logprobs) == count * len(delta.token_ids) for delta in deltas)


OPTIONS = {
    "fixed": False,
    "kept": {},
    "page_growth": True,
    "page_count": 24,
    "draft_extent_tokens": 3,
    "has_images": False,
    "has_cheap_copies": False,
    "is_traced": True,
}
FIELDS = {
    "family": 0,
    "shared": 18,
    "follows": -1,
    "max_output_tokens": 70,
    "ends": set(),
    "boundary": 0,
    "width_limit": 0,
    "keep_terminal": False,
    "stop": [],
    "scored": False,
    "image": 0,
    "tenant": "",
}


@pytest.mark.parametrize("names", [HOST_ROUNDS, DEVICE_ROUNDS, COPY_ROUNDS])
def test_a_history_has_rounds_whose_proposals_are_accepted(names: list[str]) -> None:
    """The random histories show nothing of a kind of round that their worlds never run."""
    history = History(OPTIONS | {"names": names}, PolicyConfig())
    history.play([("submit", FIELDS | {"own": [number]}) for number in range(6)])
    history.check()
    counters = history.world.stats().counters
    assert counters["flare_speculative_rounds_total"] > 0
    assert counters["flare_speculative_accepted_tokens_total"] > 0
    reasons = {history.world.finished(name).reason for name in history.asked}
    assert reasons <= {"stop", "length"}


@given(WORLDS, ACTIONS)
@settings(max_examples=40)
def test_answers_are_whole_and_everything_comes_back(
    options: dict[str, Any], actions: list[tuple[str, Any]]
) -> None:
    history = History(options, PolicyConfig())
    history.play(actions)
    history.check()


@given(WORLDS, ACTIONS)
@settings(max_examples=6)
def test_the_same_history_gives_the_same_events(
    options: dict[str, Any], actions: list[tuple[str, Any]]
) -> None:
    for policy in (PolicyConfig.balanced(), PolicyConfig.throughput()):
        first, second = History(options, policy), History(options, policy)
        first.play(actions)
        second.play(actions)
        assert first.world.events == second.world.events
        assert first.world.records == second.world.records
