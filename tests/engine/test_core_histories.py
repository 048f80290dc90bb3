"""Random histories of the engine: whatever happens, every request ends once and nothing leaks."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from helios.engine.core import StepOutcome
from helios.engine.messages import (
    Cancel,
    Delta,
    Finished,
    PromptLogprobs,
    Rejected,
    SamplingMessage,
    Stats,
)
from helios.scheduler import PolicyConfig
from tests.engine.test_stops import slow_reference
from tests.engine.world import World, request
from tests.runtime.counting import CONTEXT, EOS, FAULT_TOKEN, text_of

REQUESTS = st.fixed_dictionaries(
    {
        "first": st.integers(0, 990),
        "length": st.integers(1, CONTEXT + 2),
        "max_output_tokens": st.integers(0, 40),
        "stop": st.lists(st.text("abcdef", min_size=1, max_size=3), max_size=3),
        "include_stop": st.booleans(),
        "scored": st.booleans(),
        "faulty": st.integers(0, 9).map(lambda number: number == 0),
        "top_logprobs": st.integers(-1, 2),
    }
)
ACTIONS = st.lists(
    st.one_of(
        REQUESTS.map(lambda fields: ("submit", fields)),
        st.integers(0, 30).map(lambda index: ("cancel", index)),
        st.integers(1, 6).map(lambda turns: ("turn", turns)),
        st.sampled_from(["decode-b1", "decode-b4", "initialize-b4", "terminal-b1"]).map(
            lambda name: ("fail once", name)
        ),
        st.integers(1, 40).map(lambda ms: ("wait", ms)),
    ),
    max_size=25,
)


def play(actions: list[tuple[str, object]], policy: PolicyConfig) -> tuple[World, dict[str, dict]]:
    """Run a history to its end; return the world and the requests by id."""
    world = World(waiting_limit=5, policy=policy, traced=True)
    world.executor.durations_ns = {"decode-b4": 3_000_000, "prefill-c64": 9_000_000}
    submitted: dict[str, dict] = {}
    for action, argument in actions:
        if action == "submit":
            fields = dict(argument)  # type: ignore[call-overload]
            request_id = f"r{len(submitted)}"
            prompt = [fields["first"]] * fields["length"]
            if fields["faulty"]:
                prompt[0] = FAULT_TOKEN
            submitted[request_id] = fields | {"prompt": prompt}
            sampling = SamplingMessage(temperature=0.0, top_logprobs=fields["top_logprobs"])
            world.core.handle(
                request(
                    request_id,
                    prompt=prompt,
                    max_output_tokens=fields["max_output_tokens"],
                    stop=tuple(fields["stop"]),
                    include_stop=fields["include_stop"],
                    scored=fields["scored"],
                    sampling=sampling,
                )
            )
        elif action == "cancel":
            world.core.handle(Cancel(request_id=f"r{argument}"))
        elif action == "turn":
            for _ in range(int(argument)):  # type: ignore[call-overload]
                world.turn()
            world.executor.failing.clear()
        elif action == "fail once":
            world.executor.failing[str(argument)] = "device lost"
        else:
            world.clock.time_ns += int(argument) * 1_000_000  # type: ignore[call-overload]
    world.executor.failing.clear()
    assert world.run() is StepOutcome.IDLE
    return world, submitted


def check_output(world: World, request_id: str, fields: dict) -> None:
    """What a client saw is what the counting model says, cut by its stop strings."""
    events = world.of(request_id)
    closing = [event for event in events if isinstance(event, Finished | Rejected)]
    assert len(closing) == 1
    assert events[-1] is closing[0]
    if isinstance(closing[0], Rejected):
        assert len(events) == 1
        return
    finished = closing[0]
    first = fields["prompt"][-1] + 1
    tokens = world.tokens(request_id)
    assert tokens == tuple((first + index) % 1000 for index in range(len(tokens)))
    whole = "".join(text_of(token) for token in tokens if token != EOS)
    visible, held, matched = slow_reference(
        fields["stop"], whole, include_stop=fields["include_stop"]
    )
    if finished.reason in ("stop", "length"):
        assert world.text(request_id) == visible + held
        assert finished.output_tokens == len(tokens)
        assert (finished.stop_matched == matched) or finished.stop_matched in (EOS, None)
        assert (finished.reason == "stop") == bool(matched or EOS in tokens)
    else:
        assert (visible + held).startswith(world.text(request_id))
        assert finished.output_tokens >= len(tokens)
    scores = [event for event in events if isinstance(event, PromptLogprobs)]
    if scores:
        assert fields["scored"]
        assert events[0] is scores[0]
        assert len(scores[0].entries) == len(fields["prompt"])
    deltas = [event for event in events if isinstance(event, Delta)]
    wanted = fields["top_logprobs"] >= 0
    assert all(len(delta.logprobs) == (len(delta.token_ids) if wanted else 0) for delta in deltas)


@given(ACTIONS)
@settings(max_examples=120)
def test_every_request_ends_once_and_everything_is_back(
    actions: list[tuple[str, object]],
) -> None:
    world, submitted = play(actions, PolicyConfig())
    for request_id, fields in submitted.items():
        check_output(world, request_id, fields)
    stats = world.stats()
    assert isinstance(stats, Stats)
    ended = sum(stats.labelled_counters["flare_requests_finished_total"].values())
    refused = sum(stats.labelled_counters["flare_requests_rejected_total"].values())
    assert ended == stats.counters["flare_requests_submitted_total"]
    assert ended + refused == len(submitted)
    assert stats.counters["flare_engine_stalls_total"] == 0
    world.assert_everything_is_back()
    check_trace(world)


def check_trace(world: World) -> None:
    """Every plan has its frame, and deliveries in the trace are those of the events."""
    plans = [record for record in world.records if record["type"] == "plan"]
    frames = [record for record in world.records if record["type"] == "frame"]
    assert [plan["fence"] for plan in plans] == [frame["fence"] for frame in frames]
    for plan, frame in zip(plans, frames, strict=True):
        planned = [lane["request"] for lane in plan["lanes"]]  # type: ignore[attr-defined]
        assert planned == [lane["request"] for lane in frame["lanes"]]  # type: ignore[attr-defined]
    characters = sum(
        lane["characters"]
        for frame in frames
        for lane in frame["lanes"]  # type: ignore[attr-defined]
    )
    assert characters == sum(len(e.text) for e in world.events if isinstance(e, Delta))


@given(ACTIONS)
@settings(max_examples=30)
def test_same_history_same_events_under_both_presets(
    actions: list[tuple[str, object]],
) -> None:
    for policy in (PolicyConfig.balanced(), PolicyConfig.throughput()):
        first, _ = play(actions, policy)
        second, _ = play(actions, policy)
        assert first.events == second.events
        assert first.records == second.records
