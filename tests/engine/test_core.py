"""EngineCore on a virtual clock: event sequences, cancellation, faults, drain, progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from helios.engine.core import StepOutcome
from helios.engine.messages import (
    Cancel,
    Delta,
    Drain,
    EngineEvent,
    Finished,
    PromptLogprobs,
    Rejected,
    SamplingMessage,
)
from helios.engine.ports import Detokenizer, LaneOutput
from helios.scheduler import Catalog, GraphKind, Phase, StalePlanError
from tests.engine.world import STEP_NS, World, request
from tests.runtime.counting import (
    CONTEXT,
    EOS,
    FAULT_TOKEN,
    PAGES,
    POISON_TOKEN,
    ROWS,
    AlphabetDetokenizer,
    CountingModel,
    logprobs_of,
    text_of,
)


def counted(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(prompt[-1] + 1 + index for index in range(count))


# Sequences ----------------------------------------------------------------------------------------


def test_one_request_from_submit_to_finish() -> None:
    world = World()
    world.core.handle(request("a", prompt=[1, 2, 3], max_output_tokens=3))
    assert world.run() is StepOutcome.IDLE
    assert world.events == [
        Delta(request_id="a", text="e", token_ids=(4,)),
        Delta(request_id="a", text="f", token_ids=(5,)),
        Delta(request_id="a", text="g", token_ids=(6,)),
        Finished(request_id="a", reason="length", prompt_tokens=3, output_tokens=3),
    ]
    world.assert_everything_is_back()


def test_an_end_token_is_counted_and_not_shown() -> None:
    world = World()
    world.core.handle(request("a", prompt=[EOS - 3], max_output_tokens=50))
    world.run()
    assert world.tokens("a") == (EOS - 2, EOS - 1, EOS)
    assert world.text("a") == text_of(EOS - 2) + text_of(EOS - 1)
    assert world.finished("a") == Finished(
        request_id="a", reason="stop", prompt_tokens=1, output_tokens=3, stop_matched=EOS
    )
    assert world.stats().counters["flare_deliveries_total"] == 2, "nobody saw the end token"
    world.assert_everything_is_back()


def test_ignored_end_tokens_do_not_end() -> None:
    world = World()
    world.core.handle(request("a", prompt=[EOS - 2], max_output_tokens=4, ignore_eos=True))
    world.run()
    assert world.tokens("a") == (EOS - 1, EOS, 0, 1)
    assert world.finished("a").reason == "length"


def test_a_stop_token_of_the_user_ends_and_its_text_shows_only_with_include_stop() -> None:
    sampling = SamplingMessage(temperature=0.0, stop_token_ids=(6,))
    world = World()
    world.core.handle(request("a", prompt=[3], sampling=sampling))
    world.core.handle(request("b", prompt=[3], sampling=sampling, include_stop=True))
    world.run()
    assert (world.text("a"), world.text("b")) == ("ef", "efg")
    assert world.finished("a").stop_matched == world.finished("b").stop_matched == 6


def test_prompt_in_chunks_gives_the_same_output() -> None:
    """Field report 4: chunked = one-shot in output, while another stream keeps moving."""
    world = World()
    world.core.handle(request("short", prompt=[7], max_output_tokens=30))
    for _ in range(6):
        world.turn()
    prompt = list(range(100, 190))
    world.core.handle(request("long", prompt=prompt, max_output_tokens=4))
    world.run()
    assert world.tokens("long") == counted(prompt, 4)
    assert world.tokens("short") == counted([7], 30)
    chunks = [
        len(lane.prompt_token_ids)
        for frame in world.executor.submitted
        for lane in frame.lanes
        if lane.prompt_token_ids is not None
    ]
    assert sum(chunks) == len(prompt) + 1
    assert len(chunks) >= 3


# Stop strings -------------------------------------------------------------------------------------


def test_a_stop_string_forming_across_tokens_is_never_shown() -> None:
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=20, stop=("efg",)))
    world.run()
    assert world.text("a") == "bcd"
    assert world.tokens("a") == (1, 2, 3, 4, 5, 6), "usage counts what was committed"
    assert world.finished("a") == Finished(
        request_id="a", reason="stop", prompt_tokens=1, output_tokens=6, stop_matched="efg"
    )
    world.assert_everything_is_back()


def test_a_beginning_that_never_becomes_a_stop_string_is_released() -> None:
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=6, stop=("efx", "g!")))
    world.run()
    assert world.text("a") == "bcdefg"
    texts = [event.text for event in world.of("a") if isinstance(event, Delta)]
    assert texts == ["b", "c", "d", "efg"]
    assert world.finished("a").reason == "length"


def test_a_stop_string_in_the_last_allowed_token() -> None:
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=3, stop=("cd",)))
    world.run()
    assert (world.text("a"), world.finished("a").reason) == ("b", "stop")
    assert world.finished("a").stop_matched == "cd"


def test_a_stop_string_at_the_first_token_shows_nothing() -> None:
    world = World()
    world.core.handle(request("a", prompt=[0], stop=("b",)))
    world.core.handle(request("b", prompt=[0], stop=("b",), include_stop=True))
    world.run()
    assert (world.text("a"), world.text("b")) == ("", "b")
    assert world.finished("a").output_tokens == 1
    world.assert_everything_is_back()


def test_frames_of_a_request_with_stop_strings_never_run_ahead() -> None:
    """Host stops need completion feedback: its lanes are submitted one at a time."""
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=10, stop=("zzz",)))
    while world.turn() is not StepOutcome.IDLE:
        assert len(world.executor._frames) <= 1
    assert world.finished("a").output_tokens == 10


def test_ordinary_decode_keeps_two_frames_in_flight() -> None:
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=10))
    world.run_until_in_flight(GraphKind.DECODE, count=2)
    world.run()
    assert world.tokens("a") == counted([0], 10)


# Log-probabilities --------------------------------------------------------------------------------


def test_log_probabilities_stand_next_to_their_tokens() -> None:
    sampling = SamplingMessage(temperature=0.0, top_logprobs=2)
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=6, sampling=sampling))
    world.core.handle(
        request("b", prompt=[0], max_output_tokens=6, sampling=sampling, stop=("cdz",))
    )
    world.run()
    for request_id in ("a", "b"):
        deltas = [event for event in world.of(request_id) if isinstance(event, Delta)]
        entries = [entry for delta in deltas for entry in delta.logprobs]
        assert [entry.token_id for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert all(entry.logprob == logprobs_of(entry.token_id, 2).logprob for entry in entries)
        assert entries[0].top_ids == (1, 2)
        assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 64, 100])
def test_prompt_scores_are_assembled_over_chunks(length: int) -> None:
    prompt = list(range(200, 200 + length))
    sampling = SamplingMessage(temperature=0.0, top_logprobs=1)
    world = World()
    world.core.handle(
        request("a", prompt=prompt, max_output_tokens=2, scored=True, sampling=sampling)
    )
    world.run()
    scores, *rest = world.of("a")
    assert isinstance(scores, PromptLogprobs)
    assert [entry.token_id for entry in scores.entries] == prompt
    assert scores.entries[0].logprob is None
    assert [entry.logprob for entry in scores.entries[1:]] == [
        logprobs_of(token, 1).logprob for token in prompt[1:]
    ]
    assert [type(event) for event in rest] == [Delta, Delta, Finished]


def test_scoring_alone_has_no_output() -> None:
    world = World()
    prompt = list(range(CONTEXT))
    world.core.handle(request("a", prompt=prompt, max_output_tokens=0, scored=True))
    world.run()
    assert [type(event) for event in world.of("a")] == [PromptLogprobs, Finished]
    assert world.finished("a").reason == "length"
    assert world.finished("a").output_tokens == 0
    world.assert_everything_is_back()


# Publication --------------------------------------------------------------------------------------


class Journal:
    """Records the calls that cross the core's boundaries, in order."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[tuple[Any, ...]] = []
        scheduler = world.scheduler
        for name in ("complete", "published_output", "commit", "finish"):
            monkeypatch.setattr(scheduler, name, self._spy(name, getattr(scheduler, name)))
        monkeypatch.setattr(world, "emit", self._spy("emit", world.emit))

    def _spy(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def spied(*arguments: Any) -> Any:
            self.lines.append((name, *arguments))
            return call(*arguments)

        return spied

    def names(self) -> list[str]:
        return [line[0] for line in self.lines]


def test_publication_is_reported_for_its_fence_before_the_next_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ "A publication must be reported before processing another completion"."""
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=20))
    world.run_until_in_flight(GraphKind.DECODE, count=2)
    journal = Journal(world, monkeypatch)
    world.clock.time_ns += 10_000_000  # Both frames are finished when the core looks.
    world.core.step()
    assert journal.names() == [
        *("complete", "emit", "published_output"),
        *("complete", "emit", "published_output"),
        *("commit", "commit"),
    ]
    first, second = journal.lines[2], journal.lines[5]
    assert (first[2], second[2]) == (journal.lines[0][1], journal.lines[3][1])


def test_held_back_text_is_no_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    journal = Journal(world, monkeypatch)
    world.core.handle(request("a", prompt=[0], max_output_tokens=6, stop=("bcdex",)))
    world.run()
    published = [line[2] for line in journal.lines if line[0] == "published_output"]
    completed = [line[1] for line in journal.lines if line[0] == "complete"]
    # b, c, d and e are held until f shows that no stop string forms; then f's fence publishes all.
    deltas = [event for event in world.of("a") if isinstance(event, Delta)]
    assert [delta.text for delta in deltas] == ["bcdef", "g"]
    assert len(published) == 2
    assert published[-1] in completed


def test_a_stop_string_is_finished_before_anything_else_completes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    journal = Journal(world, monkeypatch)
    world.core.handle(request("a", prompt=[0], max_output_tokens=9, stop=("d",)))
    world.run()
    names = journal.names()
    assert names.count("finish") == 1
    assert names[names.index("finish") - 1] == "complete"


def test_output_age_follows_the_actual_publication(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's time at the report is the time after the sink took the events."""
    world = World()
    original = world.emit

    def slow_emit(events: Sequence[EngineEvent]) -> None:
        original(events)
        world.clock.time_ns += 7

    times: list[int] = []
    monkeypatch.setattr(world, "emit", slow_emit)
    advance_to = world.scheduler.advance_to
    published = world.scheduler.published_output
    last = [0]
    monkeypatch.setattr(
        world.scheduler,
        "advance_to",
        lambda now_ns: (last.__setitem__(0, now_ns), advance_to(now_ns)),
    )
    monkeypatch.setattr(
        world.scheduler,
        "published_output",
        lambda *arguments: (times.append(last[0]), published(*arguments)),
    )
    world.core.handle(request("a", prompt=[0], max_output_tokens=1))
    world.run()
    assert len(times) == 1
    assert times[0] % 1_000_000 == 7


class SilentDetokenizer:
    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def test_tokens_without_text_are_delivered_in_small_groups() -> None:
    """A stream of special tokens must not age for ever as if nothing were shown."""

    def silent(prompt_token_ids: Sequence[int]) -> Detokenizer:
        return SilentDetokenizer()

    world = World(detokenizers=silent)
    world.core.handle(request("a", prompt=[0], max_output_tokens=10))
    world.run()
    deltas = [event for event in world.of("a") if isinstance(event, Delta)]
    assert [len(delta.token_ids) for delta in deltas] == [4, 4, 2]
    assert world.tokens("a") == counted([0], 10)


# Cancellation -------------------------------------------------------------------------------------


def test_cancel_while_queued_never_runs() -> None:
    """Field report 15: dropped before its first dispatch."""
    world = World()
    for index in range(ROWS):
        world.core.handle(request(f"r{index}", max_output_tokens=20))
    world.core.handle(request("queued", max_output_tokens=20))
    world.run_until_in_flight(GraphKind.DECODE)
    world.core.handle(Cancel(request_id="queued"))
    world.run()
    assert world.of("queued") == [
        Finished(request_id="queued", reason="cancelled", prompt_tokens=3, output_tokens=0)
    ]
    initialised = [
        lane
        for frame in world.executor.submitted
        for lane in frame.lanes
        if lane.sampling is not None
    ]
    assert len(initialised) == ROWS
    world.assert_everything_is_back()


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (GraphKind.INITIALIZE, 1),
        (GraphKind.PREFILL, 1),
        (GraphKind.DECODE, 1),
        (GraphKind.DECODE, 2),
        (GraphKind.TERMINAL, 1),
    ],
)
def test_cancel_in_flight_answers_at_once_and_harms_nobody(kind: GraphKind, count: int) -> None:
    """Field reports 14, 16 and 17: in any program, in one frame or two, and with slot reuse."""
    world = World()
    world.core.handle(request("gone", prompt=[50], max_output_tokens=20))
    world.core.handle(request("stays", prompt=[1], max_output_tokens=25))
    world.run_until_in_flight(kind, count)
    world.core.handle(Cancel(request_id="gone"))
    world.core.step()
    assert world.finished("gone").reason == "cancelled"
    world.core.handle(request("next", prompt=[300], max_output_tokens=5))
    world.run()
    assert world.finished("gone").reason == "cancelled", "nothing follows the closing event"
    assert world.tokens("stays") == counted([1], 25)
    assert world.tokens("next") == counted([300], 5)
    world.assert_everything_is_back()


def test_an_id_can_be_used_again_while_its_old_frames_are_in_flight() -> None:
    world = World()
    world.core.handle(request("a", prompt=[50], max_output_tokens=20))
    world.run_until_in_flight(GraphKind.DECODE, count=2)
    world.core.handle(Cancel(request_id="a"))
    world.core.step()
    before = len(world.events)
    world.core.handle(request("a", prompt=[300], max_output_tokens=3))
    world.run()
    tokens = [t for e in world.events[before:] if isinstance(e, Delta) for t in e.token_ids]
    assert tuple(tokens) == counted([300], 3)
    world.assert_everything_is_back()


def test_cancel_of_an_unknown_or_finished_request_changes_nothing() -> None:
    world = World()
    world.core.handle(Cancel(request_id="never"))
    world.core.handle(request("a", max_output_tokens=2))
    world.run()
    world.core.handle(Cancel(request_id="a"))
    world.run()
    assert [type(event) for event in world.events] == [Delta, Delta, Finished]


def test_rows_are_reused_by_later_requests() -> None:
    world = World()
    for index in range(5 * ROWS):
        world.core.handle(request(f"r{index}", prompt=[10 * index], max_output_tokens=6))
    world.run()
    for index in range(5 * ROWS):
        assert world.tokens(f"r{index}") == counted([10 * index], 6)
    world.assert_everything_is_back()


# Faults -------------------------------------------------------------------------------------------


def test_a_failing_program_ends_its_own_requests_only() -> None:
    """Field report 23: the loop survives any one request's fault."""
    world = World()
    world.core.handle(request("good", prompt=[1], max_output_tokens=20))
    world.run_until_in_flight(GraphKind.DECODE)
    world.core.handle(request("bad", prompt=[5, FAULT_TOKEN, 6], max_output_tokens=5))
    world.run()
    assert world.finished("bad").reason == "error"
    assert "the fault token" in (world.finished("bad").error or "")
    assert world.tokens("good") == counted([1], 20)
    world.core.handle(request("later", prompt=[2], max_output_tokens=3))
    world.run()
    assert world.tokens("later") == counted([2], 3)
    failed = world.stats().labelled_counters["flare_failed_frames_total"]
    assert failed == {'graph="prefill-c16"': 1.0}
    world.assert_everything_is_back()


@pytest.mark.parametrize("name", ["initialize-b1", "prefill-c16", "decode-b1", "terminal-b1"])
def test_any_program_may_fail(name: str) -> None:
    world = World()
    world.executor.failing[name] = "device lost"
    world.core.handle(request("a", prompt=[1], max_output_tokens=4))
    world.core.handle(request("b", prompt=[1], max_output_tokens=4))
    world.run()
    del world.executor.failing[name]
    world.core.handle(request("c", prompt=[1], max_output_tokens=4))
    world.run()
    assert world.finished("c").reason == "length"
    world.assert_everything_is_back()


def test_a_failed_frame_voids_the_frame_queued_behind_it_for_its_requests() -> None:
    world = World()
    world.core.handle(request("a", prompt=[1], max_output_tokens=20))
    world.run_until_in_flight(GraphKind.DECODE, count=2)
    name = "decode-b1"
    world.executor.failing[name] = "device lost"
    world.clock.time_ns += 1_000_000
    world.core.step()
    del world.executor.failing[name]
    assert world.finished("a").reason == "error"
    world.run()
    assert isinstance(world.of("a")[-1], Finished)
    world.assert_everything_is_back()


@pytest.mark.parametrize(
    "outputs",
    [
        (),
        (LaneOutput(), LaneOutput()),
        (LaneOutput(tokens=(1, 2)),),
        (LaneOutput(tokens=()),),
        (LaneOutput(tokens=(1,), logprobs=(logprobs_of(1, 0),) * 2),),
    ],
    ids=["no lanes", "too many lanes", "too many tokens", "no token", "too many logprobs"],
)
def test_garbled_outputs_fail_the_frame(outputs: tuple[LaneOutput, ...]) -> None:
    world = World()
    world.executor.garbled["decode-b1"] = outputs
    world.core.handle(request("a", prompt=[1], max_output_tokens=20))
    world.run()
    assert world.finished("a").reason == "error"
    assert "decode-b1" in (world.finished("a").error or "")
    world.executor.garbled.clear()
    world.core.handle(request("b", prompt=[1], max_output_tokens=3))
    world.run()
    assert world.tokens("b") == counted([1], 3)
    world.assert_everything_is_back()


def test_text_that_cannot_be_decoded_ends_one_request() -> None:
    world = World()
    world.core.handle(request("bad", prompt=[POISON_TOKEN - 3], max_output_tokens=20))
    world.core.handle(request("good", prompt=[1], max_output_tokens=20))
    world.run()
    assert world.finished("bad").reason == "error"
    assert "poison" in (world.finished("bad").error or "")
    assert world.tokens("good") == counted([1], 20)
    world.assert_everything_is_back()


def test_a_detokenizer_that_cannot_be_made_ends_one_request() -> None:
    def picky(prompt_token_ids: Sequence[int]) -> Detokenizer:
        if prompt_token_ids[0] == 13:
            raise ValueError("unlucky")
        return AlphabetDetokenizer()

    world = World(detokenizers=picky)
    world.core.handle(request("bad", prompt=[13]))
    world.core.handle(request("good", prompt=[14], max_output_tokens=2))
    world.run()
    assert world.finished("bad").reason == "error"
    assert world.finished("good").reason == "length"
    world.assert_everything_is_back()


def test_scores_that_do_not_continue_end_the_request() -> None:
    world = World()
    world.executor.garbled["scored-prefill-c64"] = (LaneOutput(),)
    prompt = list(range(70))
    world.core.handle(request("a", prompt=prompt, max_output_tokens=1, scored=True))
    world.run()
    assert world.finished("a").reason == "error"
    world.assert_everything_is_back()


# Admission, drain, progress -----------------------------------------------------------------------


def test_rejections_name_code_and_field() -> None:
    world = World(waiting_limit=1)
    world.core.handle(request("twice", max_output_tokens=20))
    world.core.handle(request("twice"))
    world.core.handle(request("long", prompt=[1] * (CONTEXT + 1)))
    world.core.step()
    rejected = [event for event in world.events if isinstance(event, Rejected)]
    assert [(event.request_id, event.code, event.param) for event in rejected] == [
        ("twice", "invalid_request", "request_id"),
        ("long", "invalid_request", "prompt"),
    ]
    world.run()
    assert [type(e) for e in world.events].count(Finished) == 1


def test_what_the_catalog_cannot_do_is_refused_at_the_door() -> None:
    class WithoutScores(CountingModel):
        @property
        def catalog(self) -> Catalog:
            graphs = super().catalog.graphs
            return Catalog.of(g for g in graphs if g.kind is not GraphKind.SCORED_PREFILL)

    world = World(model=WithoutScores())
    world.core.handle(request("a", scored=True))
    world.core.step()
    (rejected,) = world.events
    assert isinstance(rejected, Rejected)
    assert rejected.code == "invalid_request"
    assert "scored" in rejected.message


def test_requests_beyond_the_waiting_limit_are_refused_and_the_rest_is_served() -> None:
    world = World(waiting_limit=10)
    for index in range(50):
        world.core.handle(request(f"r{index}", max_output_tokens=3))
    world.run()
    refused = [event for event in world.events if isinstance(event, Rejected)]
    finished = [event for event in world.events if isinstance(event, Finished)]
    assert {event.code for event in refused} == {"queue_full"}
    assert len(finished) == ROWS + 10
    assert len(refused) + len(finished) == 50
    world.assert_everything_is_back()


def test_drain_serves_what_was_accepted_and_refuses_what_comes() -> None:
    world = World()
    for index in range(ROWS + 3):
        world.core.handle(request(f"r{index}", max_output_tokens=5))
    world.turn()
    world.core.handle(Drain())
    world.core.handle(request("late"))
    assert world.run() is StepOutcome.DRAINED
    late = world.of("late")
    assert [event.code for event in late if isinstance(event, Rejected)] == ["draining"]
    assert len([e for e in world.events if isinstance(e, Finished)]) == ROWS + 3


def test_drain_of_an_idle_engine_is_immediate() -> None:
    world = World()
    world.core.handle(Drain())
    assert world.core.step() is StepOutcome.DRAINED


def test_a_standstill_becomes_an_error_and_not_a_livelock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Field report 22: progress is asserted."""
    world = World()
    world.core.handle(request("a"))
    monkeypatch.setattr(world.scheduler, "plan", lambda: None)
    outcomes = [world.core.step() for _ in range(8)]
    assert outcomes == [StepOutcome.STALLED] * 7 + [StepOutcome.IDLE]
    assert world.finished("a").reason == "error"
    monkeypatch.undo()
    assert world.stats().counters["flare_engine_stalls_total"] == 1
    world.core.handle(request("b", max_output_tokens=2))
    world.run()
    assert world.finished("b").reason == "length"
    world.assert_everything_is_back()


def test_a_plan_gone_stale_before_its_commit_is_planned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    commit = world.scheduler.commit
    failures = [3]

    def flaky(*arguments: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise StalePlanError("too late")
        commit(*arguments)

    monkeypatch.setattr(world.scheduler, "commit", flaky)
    world.core.handle(request("a", prompt=[1], max_output_tokens=4))
    world.run()
    assert world.tokens("a") == counted([1], 4)
    fences = [frame.fence for frame in world.executor.submitted]
    assert fences == list(range(1, len(fences) + 1)), "no fence is lost to a refused commit"


def test_large_requests_wait_for_pages_and_are_served() -> None:
    """Field report 23: the count that admission uses is the count that execution uses."""
    world = World()
    for index in range(6):
        world.core.handle(request(f"r{index}", prompt=[1] * 100, max_output_tokens=28))
    world.run()
    for index in range(6):
        assert world.finished(f"r{index}").output_tokens == 28
    world.assert_everything_is_back()


def test_a_released_handle_is_not_kept() -> None:
    world = World()
    world.core.handle(request("a", max_output_tokens=1))
    world.run_until_in_flight(GraphKind.TERMINAL)
    (flight,) = world.core._flights
    handle = flight.requests[0].handle
    assert world.scheduler.phase_of(handle) is Phase.TERMINAL
    world.run()
    assert world.core._roster.with_handle(handle) is None
    assert len(world.core._roster) == 0


# Counters -----------------------------------------------------------------------------------------


def test_counters_of_a_simple_run() -> None:
    world = World()
    world.core.handle(request("a", prompt=[1] * 20, max_output_tokens=5))
    world.core.handle(request("b", prompt=[1] * 3, max_output_tokens=5))
    world.run()
    stats = world.stats()
    counters, labelled = stats.counters, stats.labelled_counters
    assert counters["flare_requests_submitted_total"] == 2
    assert counters["flare_prompt_tokens_total"] == 23
    assert counters["flare_output_tokens_total"] == 10
    assert counters["flare_deliveries_total"] == 10
    assert labelled["flare_requests_finished_total"] == {'reason="length"': 2}
    useful, executed = (
        labelled["flare_useful_rows_total"],
        labelled["flare_executed_rows_total"],
    )
    assert useful['kind="prefill"'] == 23
    assert useful['kind="decode"'] == 8
    assert all(useful[kind] <= executed[kind] for kind in useful)
    executions = labelled["flare_scheduler_executions_total"]
    assert sum(executions.values()) == counters["flare_scheduler_completes_total"]
    assert sum(labelled["flare_frames_total"].values()) == sum(executions.values())
    first = stats.histograms["flare_time_to_first_token_seconds"]
    gaps = stats.histograms["flare_delivery_gap_seconds"]
    assert (sum(first.counts), sum(gaps.counts)) == (2, 8)
    assert sum(stats.histograms["flare_queue_wait_seconds"].counts) == 2


def test_bursts_count_one_gap_and_several_tokens() -> None:
    """Field report 20: delivery gaps apart from time per token; tokens, not chunks."""
    world = World()
    world.core.handle(request("a", prompt=[0], max_output_tokens=6, stop=("cdex",)))
    world.run()
    stats = world.stats()
    assert stats.counters["flare_deliveries_total"] == 3  # "b", "cdef", "g"
    assert stats.counters["flare_output_tokens_total"] == 6
    assert sum(stats.histograms["flare_delivery_gap_seconds"].counts) == 2
    per_token = stats.histograms["flare_time_per_output_token_seconds"]
    assert sum(per_token.counts) == 5
    gap_total = stats.histograms["flare_delivery_gap_seconds"].total
    assert per_token.total == pytest.approx(gap_total)


def test_what_a_replay_lost_to_other_work_is_service_and_no_cost() -> None:
    """Decision 41: estimates are of the program alone, service and metrics of what it took."""
    world = World(traced=True)
    world.executor.lost_ns["decode-b1"] = STEP_NS // 4
    world.core.handle(request("a", prompt=[1] * 3, max_output_tokens=12))
    world.run()
    steps = [record for record in world.records if record.get("graph") == "decode-b1"]
    # Two frames may be in flight before the first of them is completed.
    assert {step["cost_ns"] for step in steps[2:]} == {STEP_NS * 3 // 4}
    fences = {step["fence"] for step in steps}
    frames = [record for record in world.records if record["type"] == "frame"]
    lost = [frame["readiness_ns"] for frame in frames if frame["fence"] in fences]
    assert lost == [STEP_NS // 4] * 11
    counters = world.stats().counters
    assert counters["flare_replay_delay_nanoseconds_total"] == 11 * STEP_NS // 4
    assert counters["flare_replay_nanoseconds_total"] == len(frames) * STEP_NS


def test_time_without_requests_counts_neither_as_active_nor_as_host_gap() -> None:
    world = World()
    for index in range(3):
        world.core.handle(request(f"r{index}", max_output_tokens=3))
        world.run()
        world.clock.time_ns += 10_000_000_000
    stats = world.stats()
    assert stats.counters["flare_active_nanoseconds_total"] < 1_000_000_000
    assert stats.counters["flare_host_gap_nanoseconds_total"] == 0
    assert stats.gauges["flare_program_time_share"] == pytest.approx(1.0)


def test_pages_in_use_while_running() -> None:
    world = World()
    world.core.handle(request("a", prompt=[1] * 20, max_output_tokens=20))
    world.turn()
    gauges = world.stats().gauges
    assert gauges["flare_pages_used"] == 3
    assert gauges["flare_pages_total"] == PAGES
    assert gauges["flare_rows_used"] == 1
    world.run()


# Determinism --------------------------------------------------------------------------------------


def test_the_same_commands_give_the_same_events_and_frames() -> None:
    def history() -> tuple[list[EngineEvent], list[Any]]:
        world = World()
        for index in range(12):
            world.core.handle(request(f"r{index}", prompt=[index] * (7 * index + 1)))
            world.turn()
        world.core.handle(Cancel(request_id="r3"))
        world.run()
        frames = [
            (frame.fence, frame.graph_index, tuple(lane.row for lane in frame.lanes))
            for frame in world.executor.submitted
        ]
        return world.events, frames

    assert history() == history()


def test_frames_carry_what_their_kind_reads() -> None:
    world = World()
    sampling = SamplingMessage(temperature=0.5, seed=77, stop_token_ids=(3,))
    world.core.handle(request("a", prompt=[9, 8], max_output_tokens=2, sampling=sampling))
    world.run()
    graphs = world.model.catalog.graphs
    by_kind = {graphs[frame.graph_index].kind: frame for frame in world.executor.submitted}
    (initial,) = by_kind[GraphKind.INITIALIZE].lanes
    assert initial.prompt_length == 2
    assert initial.sampling is not None
    assert dataclasses.asdict(initial.sampling)["stop_token_ids"] == (EOS, 3)
    (prefill,) = by_kind[GraphKind.PREFILL].lanes
    assert prefill.prompt_token_ids is not None
    assert prefill.prompt_token_ids.tolist() == [9, 8]
    assert prefill.is_final_chunk
    (decode,) = by_kind[GraphKind.DECODE].lanes
    assert decode.prompt_token_ids is None
    assert decode.sampling is None
