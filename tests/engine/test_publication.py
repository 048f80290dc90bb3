"""Publication of frames whose lanes carry several tokens, as complete speculative rounds will."""

from __future__ import annotations

import dataclasses
import random

import pytest

from helios.engine.admission import AdmissionRules, accept
from helios.engine.flight import Flight, Roster
from helios.engine.messages import Delta, SamplingMessage, Submit
from helios.engine.ports import FrameResult, LaneOutput
from helios.engine.publication import Publication, publish
from helios.engine.requests import LiveRequest
from helios.scheduler import (
    Fence,
    GeneratedToken,
    GraphDescriptor,
    GraphKind,
    RequestHandle,
    ScheduledPlan,
    ScheduledStep,
    SelectionReason,
)
from tests.engine.world import request
from tests.runtime.counting import (
    EOS,
    POISON_TOKEN,
    CountingModel,
    alphabet_detokenizers,
    logprobs_of,
)

FENCE = Fence(3)
RULES = AdmissionRules(
    resources=CountingModel().resources, vocabulary_size=1000, eos_token_ids=(EOS,)
)


def published(
    submits: list[Submit], outputs: list[LaneOutput], *, ends: bool
) -> tuple[Publication, list[LiveRequest]]:
    """Publish one decode frame whose lane i holds request i and produced outputs[i]."""
    roster = Roster()
    lives = []
    for slot, submit in enumerate(submits):
        live = LiveRequest(
            submit,
            accept(submit, RULES),
            RequestHandle(slot, 0),
            alphabet_detokenizers(),
            arrival_ns=0,
        )
        roster.add(live)
        lives.append(live)
    steps = tuple(ScheduledStep(live.handle, row, 5, 0, 8, ()) for row, live in enumerate(lives))
    graph = GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=4)
    plan = ScheduledPlan(0, graph, steps, 0, SelectionReason.ORDINARY, False, 0, 0.0, 0.0)
    generated = [
        GeneratedToken(live.handle, token, index, FENCE, ends and index == len(lane.tokens) - 1)
        for live, lane in zip(lives, outputs, strict=True)
        for index, token in enumerate(lane.tokens)
    ]
    result = FrameResult(
        fence=FENCE,
        lanes=tuple(outputs),
        device_ns=1,
        submitted_ns=0,
        started_ns=0,
        finished_ns=1,
    )
    flight = Flight(fence=FENCE, plan=plan, requests=tuple(lives), follows_idle=False)
    return publish(flight, result, generated, roster), lives


def test_a_burst_is_one_delivery_and_only_its_end_token_is_hidden() -> None:
    outputs = [LaneOutput(tokens=(0, 1, EOS), terminated=True)]
    result, _ = published([request("a")], outputs, ends=True)
    assert result.events == [Delta(request_id="a", text="ab", token_ids=(0, 1, EOS))]
    assert [tokens for _, tokens in result.delivered] == [3]


def test_what_a_burst_has_behind_a_stop_string_is_neither_shown_nor_counted() -> None:
    submit = request("a", stop=("bc",), sampling=SamplingMessage(temperature=0.0, top_logprobs=0))
    scores = tuple(logprobs_of(token, 0) for token in range(5))
    outputs = [LaneOutput(tokens=(0, 1, 2, 3, 4), logprobs=scores)]
    result, (live,) = published([submit], outputs, ends=False)
    (delta,) = result.events
    assert isinstance(delta, Delta)
    assert (delta.text, delta.token_ids) == ("a", (0, 1, 2))
    assert [entry.token_id for entry in delta.logprobs] == [0, 1, 2]
    assert result.stopped == [live]
    assert (live.output_tokens, live.stop_matched) == (3, "bc")


def test_a_burst_with_a_stop_string_before_its_stop_token_ends_at_the_string() -> None:
    outputs = [LaneOutput(tokens=(0, 1, 2, EOS), terminated=True)]
    result, (live,) = published([request("a", stop=("ab",))], outputs, ends=True)
    assert result.events == [Delta(request_id="a", text="", token_ids=(0, 1))]
    assert (live.output_tokens, live.finish_reason, live.stop_matched) == (2, "stop", "ab")


def test_lanes_keep_their_own_tokens() -> None:
    outputs = [LaneOutput(tokens=(0,)), LaneOutput(), LaneOutput(tokens=(2, 3))]
    submits = [request("a"), request("b"), request("c")]
    result, _ = published(submits, outputs, ends=False)
    assert [(event.request_id, event.text) for event in result.events] == [  # type: ignore[union-attr]
        ("a", "a"),
        ("c", "cd"),
    ]
    assert [lane.tokens for lane in result.lanes] == [1, 0, 2]
    assert [lane.characters for lane in result.lanes] == [1, 0, 2]


class Sparse:
    """A detokenizer that many tokens leave silent: those of 3 and above have no text."""

    def push(self, token_id: int) -> str:
        return "abc"[token_id] if token_id < 3 else ""

    def finish(self) -> str:
        return ""


@pytest.mark.parametrize("grows", [False, True])
def test_a_single_token_says_what_a_commit_says(grows: bool) -> None:
    """The short way of nearly every lane, silent runs included, against the long one."""
    rules = dataclasses.replace(
        RULES, resources=dataclasses.replace(RULES.resources, page_growth=grows)
    )
    lives = [
        LiveRequest(
            request("a"),
            accept(request("a"), rules),
            RequestHandle(0, 0),
            lambda prompt: Sparse(),
            arrival_ns=0,
        )
        for _ in range(2)
    ]
    short, long = lives
    assert short.is_plain
    draw = random.Random(3)
    for _ in range(400):
        token = draw.choice([0, 1, 2, 5, 6, 7, 8, 9])
        text = long.commit([token], (), terminated=False, is_last=False)
        expected = long.take_delta(text) if long.is_deliverable(text) else None
        assert short.take_single(token) == expected
        assert short.replayed_tokens == long.replayed_tokens
    for live in lives:
        live.commit([EOS], (), terminated=True, is_last=True)
    assert short.take_delta("") == long.take_delta("")
    assert short.finished("stop") == long.finished("stop")


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_only_a_request_whose_tokens_become_text_alone_is_plain(stop: tuple[str, ...]) -> None:
    _, (live,) = published([request("a", stop=stop)], [LaneOutput(tokens=(0,))], ends=False)
    assert live.is_plain is not bool(stop)


def test_a_fault_of_the_text_side_ends_one_request_on_the_short_way_too() -> None:
    submits = [request("a", prompt=(1,)), request("b", prompt=(2,))]
    outputs = [LaneOutput(tokens=(0,)), LaneOutput(tokens=(POISON_TOKEN,))]
    result, (_, second) = published(submits, outputs, ends=False)
    assert [event.request_id for event in result.events] == ["a"]  # type: ignore[union-attr]
    assert result.faults == [(second, "ValueError: poison")]
