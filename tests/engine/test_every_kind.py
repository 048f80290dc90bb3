"""The loop drives every kind of program: rounds, mixed graphs, kept states, windows, preemption."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest

from helios.engine.flight import Flight
from helios.engine.messages import Cancel, Delta, ImageMessage, Rejected, SamplingMessage
from helios.engine.ports import FrameResult, LaneOutput
from helios.engine.stats import EngineStats
from helios.scheduler import (
    DecodeMode,
    GraphKind,
    MixedRole,
    SelectionReason,
    SpeculationConfig,
)
from tests.engine.folding import (
    DEVICE_ROUNDS,
    HOST_ROUNDS,
    ORDINARY,
    FoldingModel,
    expected_output,
)
from tests.engine.world import World, request
from tests.runtime.counting import EOS

ADAPTIVE = SpeculationConfig(mode=DecodeMode.ADAPTIVE)


def prompt_of(name: str, length: int) -> list[int]:
    """A prompt of its own for every name."""
    draw = random.Random(name)
    return [draw.randrange(26) for _ in range(length)]


def folding_world(
    names: list[str] = ORDINARY, *, traced: bool = True, **resources: object
) -> World:
    speculation = None if names is ORDINARY else ADAPTIVE
    return World(model=FoldingModel(names, **resources), traced=traced, speculation=speculation)


def kinds_run(world: World) -> set[GraphKind]:
    graphs = world.model.catalog.graphs
    return {graphs[frame.graph_index].kind for frame in world.executor.submitted}


def check_whole(world: World, request_id: str, prompt: list[int], limit: int) -> None:
    """The client has exactly what an undisturbed run produces."""
    output = expected_output(prompt, limit)
    assert list(world.tokens(request_id)) == output
    finished = world.finished(request_id)
    assert finished.reason == ("stop" if EOS in output else "length")
    assert finished.output_tokens == len(output)


def assert_all_back(world: World) -> None:
    """Nothing is owned once kept states are dropped."""
    world.scheduler.drop_checkpoints()
    world.assert_everything_is_back()
    usage = world.scheduler.usage()
    assert (usage.snapshot_rows_in_use, usage.pages_kept, usage.in_flight) == (0, 0, ())


# Rounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [HOST_ROUNDS, DEVICE_ROUNDS], ids=["host", "device"])
def test_rounds_commit_what_single_steps_would(names: list[str]) -> None:
    world = folding_world(names, draft_extent_tokens=3)
    prompts = {f"r{i}": prompt_of(f"r{i}", 9 + i) for i in range(9)}
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=40))
    world.run()
    for name, prompt in prompts.items():
        check_whole(world, name, prompt, 40)
    stats = world.stats().counters
    assert stats["flare_speculative_rounds_total"] > 0
    proposed = stats["flare_speculative_proposed_tokens_total"]
    offered = stats["flare_speculative_offered_tokens_total"]
    accepted = stats["flare_speculative_accepted_tokens_total"]
    assert proposed >= offered >= accepted > 0
    assert_all_back(world)


DEALT = [name for name in DEVICE_ROUNDS if not name.startswith("mixed")]
"""Without mixed programs, which have rows for everybody, rounds of four share eight rows."""


@pytest.mark.parametrize("names", [HOST_ROUNDS, DEALT], ids=["host", "device"])
def test_a_round_proposes_up_to_the_ceiling_of_each_lane(names: list[str]) -> None:
    """Lanes that may have one token more propose nothing, however deep the program is."""
    world = folding_world(names, draft_extent_tokens=3)
    for i in range(9):
        prompt = prompt_of(f"c{i}", 9 + i)
        world.core.handle(request(f"c{i}", prompt=prompt, max_output_tokens=2 + i))
    world.run()
    plans = {record["fence"]: record for record in world.records if record["type"] == "plan"}
    expected = {
        part: Counter[str]() for part in ("depth_proposed", "depth_offered", "depth_accepted")
    }
    probes, lanes_of_rounds = 0, 0
    for record in world.records:
        if record["type"] != "frame" or "-d3-" not in plans[record["fence"]]["graph"]:
            continue
        plan = plans[record["fence"]]
        probes += plan["reason"] == "acceptance-learning"
        for step, lane in zip(plan["lanes"], record["lanes"], strict=True):
            if not lane["tokens"] or step["prompt_tokens"]:
                continue
            lanes_of_rounds += 1
            counts = (step["output_ceiling"] - 1, lane["offered"] - 1, lane["tokens"] - 1)
            for counter, count in zip(expected.values(), counts, strict=True):
                counter.update(f'source="learned",depth="{place + 1}"' for place in range(count))
    stats = world.stats()
    assert stats.counters["flare_speculative_probes_total"] == probes
    assert stats.counters["flare_speculative_lanes_total"] == lanes_of_rounds
    for part, counter in expected.items():
        found = stats.labelled_counters[f"flare_speculative_{part}_total"]
        assert {label: value for label, value in found.items() if value} == counter
        name = f"flare_speculative_{part.removeprefix('depth_')}_tokens_total"
        assert stats.counters[name] == sum(found.values())
    proposed, offered = (expected[f"depth_{part}"].total() for part in ("proposed", "offered"))
    assert (proposed > offered) == (names is DEALT)
    assert expected["depth_accepted"].total() <= proposed < 3 * lanes_of_rounds


def test_rounds_that_run_to_learn_are_counted_as_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of the loop, counted once as it was chosen and once as if it had been a probe."""
    seen: list[tuple[Flight, FrameResult]] = []
    count = EngineStats.on_completed

    def observed(
        self: EngineStats, flight: Flight, result: FrameResult, *, complete_ns: int
    ) -> None:
        seen.append((flight, result))
        count(self, flight, result, complete_ns=complete_ns)

    monkeypatch.setattr(EngineStats, "on_completed", observed)
    world = folding_world(HOST_ROUNDS, draft_extent_tokens=3)
    world.core.handle(request("a", prompt=prompt_of("a", 20), max_output_tokens=30))
    world.run()
    flight, result = next(pair for pair in seen if pair[0].plan.graph.proposal_depth)
    stats, usage = EngineStats(), world.core._usage()
    probe = dataclasses.replace(flight.plan, reason=SelectionReason.ACCEPTANCE_LEARNING)
    for plan, probes in ((flight.plan, 0), (probe, 1), (probe, 2)):
        count(stats, dataclasses.replace(flight, plan=plan), result, complete_ns=1)
        counters = stats.snapshot(usage).counters
        assert counters["flare_speculative_probes_total"] == probes
    assert counters["flare_speculative_rounds_total"] == 3
    executions = stats.snapshot(usage).labelled_counters["flare_scheduler_executions_total"]
    assert executions['class="acceptance-learning"'] == 2


def test_a_burst_is_one_delivery_and_the_trace_says_what_was_offered() -> None:
    world = folding_world(HOST_ROUNDS)
    prompt = prompt_of("burst", 20)
    world.core.handle(request("a", prompt=prompt, max_output_tokens=60))
    world.run()
    deltas = [event for event in world.of("a") if isinstance(event, Delta)]
    assert any(len(delta.token_ids) > 1 for delta in deltas)
    frames = [record for record in world.records if record["type"] == "frame"]
    lanes = [lane for frame in frames for lane in frame["lanes"] if lane["tokens"]]  # type: ignore[attr-defined]
    assert [lane["tokens"] for lane in lanes] == [len(delta.token_ids) for delta in deltas]
    assert all(lane["offered"] >= lane["tokens"] for lane in lanes)
    # A hidden end token alone is nothing that anybody sees.
    assert all((lane["delivered_ns"] is not None) == (lane["characters"] > 0) for lane in lanes)


def test_a_learned_round_is_queued_behind_a_running_one() -> None:
    """Its inputs lie on the device, so it is there before anybody knows what the front commits."""
    world = folding_world(HOST_ROUNDS)
    prompts = {f"q{i}": prompt_of(f"q{i}", 11 + i) for i in range(3)}
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=60))
    world.run()
    plans = {record["fence"]: record for record in world.records if record["type"] == "plan"}
    wide = {fence for fence, plan in plans.items() if plan["graph"] == "speculative-b4-d3-w4"}
    behind = [fence for fence in wide if plans[fence]["queued_frames"] and fence - 1 in wide]
    assert len(behind) > 3
    frames = {record["fence"]: record for record in world.records if record["type"] == "frame"}
    fronts = [lane for fence in behind for lane in frames[fence - 1]["lanes"]]  # type: ignore[attr-defined]
    assert {lane["tokens"] < lane["offered"] for lane in fronts if lane["tokens"]} == {True, False}
    for name, prompt in prompts.items():
        check_whole(world, name, prompt, 60)
    assert_all_back(world)


def test_a_stop_string_inside_a_burst_ends_the_request_for_everyone() -> None:
    for seed in range(12):
        world = folding_world(HOST_ROUNDS)
        prompt = prompt_of(f"stop{seed}", 12)
        text = "".join(
            chr(ord("a") + token) for token in expected_output(prompt, 60) if token != EOS
        )
        if len(text) < 9:
            continue
        stop = text[7:9]
        world.core.handle(request("a", prompt=prompt, max_output_tokens=60, stop=(stop,)))
        world.run()
        assert world.text("a") == text[: text.index(stop)]
        finished = world.finished("a")
        assert (finished.reason, finished.stop_matched) == ("stop", stop)
        assert finished.output_tokens == len(world.tokens("a")) >= text.index(stop) + 2
        assert_all_back(world)


def test_a_round_without_its_sidecar_fails_the_frame_and_says_so() -> None:
    world = folding_world(DEVICE_ROUNDS)
    for program in world.model.programs:
        program.confidence = None  # type: ignore[union-attr]
    prompts = [prompt_of(f"x{i}", 10) for i in range(4)]
    for index, prompt in enumerate(prompts):
        world.core.handle(request(f"x{index}", prompt=prompt, max_output_tokens=60))
    world.run()
    errors = [world.finished(f"x{i}").error or "" for i in range(4)]
    assert any("reports confidence" in error for error in errors)
    assert_all_back(world)


def test_more_tokens_than_target_rows_fail_the_frame() -> None:
    world = folding_world(HOST_ROUNDS)
    world.executor.garbled["speculative-b1-d3-w4"] = (LaneOutput(tokens=(1, 2, 3, 4, 5)),)
    world.core.handle(request("a", prompt=prompt_of("a", 10), max_output_tokens=60))
    world.run()
    assert "at most 4 fit" in (world.finished("a").error or "")
    assert_all_back(world)


# Mixed graphs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [ORDINARY, HOST_ROUNDS], ids=["ordinary", "rounds"])
def test_a_prompt_joins_streams_that_go_on(names: list[str]) -> None:
    world = folding_world(names)
    prompts = {f"m{i}": prompt_of(f"m{i}", 20) for i in range(12)}
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=30))
        for _ in range(4):
            world.turn()
    world.run()
    for name, prompt in prompts.items():
        check_whole(world, name, prompt, 30)
    assert GraphKind.MIXED in kinds_run(world)
    graphs = world.model.catalog.graphs
    for frame in world.executor.submitted:
        if graphs[frame.graph_index].kind is GraphKind.MIXED:
            assert all(lane.is_prompt == (lane.query_length == 0) for lane in frame.lanes)
    plans = [record for record in world.records if record["type"] == "plan"]
    roles = {lane.get("role") for plan in plans for lane in plan["lanes"]}  # type: ignore[attr-defined]
    assert {role.name.lower() for role in MixedRole} <= roles
    assert_all_back(world)


# Kept states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "resources", [{"snapshot_rows": 3}, {"page_prefixes": True}], ids=["rows", "pages"]
)
def test_a_prompt_resumes_from_what_an_earlier_one_left(resources: dict[str, object]) -> None:
    world = folding_world(**resources)
    shared = prompt_of("system", 48)
    for turn in range(3):
        prompt = shared + prompt_of(f"user{turn}", 10 + turn)
        world.core.handle(request(f"t{turn}", prompt=prompt, max_output_tokens=12, endpoints=(48,)))
        world.run()
        check_whole(world, f"t{turn}", prompt, 12)
    assert [world.finished(f"t{turn}").cached_prompt_tokens for turn in range(3)] == [0, 48, 48]
    counters = world.stats().counters
    assert counters["flare_checkpoint_hits_total"] == 2
    assert counters["flare_checkpoint_restored_tokens_total"] == 96
    consumed = sum(
        len(lane.prompt_token_ids)
        for frame in world.executor.submitted
        for lane in frame.lanes
        if lane.prompt_token_ids is not None
    )
    assert counters["flare_prompt_tokens_total"] == consumed == 58 + 11 + 12
    assert_all_back(world)


@pytest.mark.parametrize("names", [ORDINARY, HOST_ROUNDS], ids=["ordinary", "rounds"])
@pytest.mark.parametrize(
    "resources", [{"snapshot_rows": 4}, {"page_prefixes": True}], ids=["rows", "pages"]
)
def test_a_conversation_goes_on_from_its_answer(
    names: list[str], resources: dict[str, object]
) -> None:
    world = folding_world(names, **resources)
    measure(world)
    prompt, ends = prompt_of("talk", 20), []
    cached = []
    for turn in range(4):
        world.core.handle(
            request(
                f"t{turn}",
                prompt=prompt,
                max_output_tokens=14,
                endpoints=tuple(ends),
                keep_terminal=True,
            )
        )
        world.run()
        check_whole(world, f"t{turn}", prompt, 14)
        cached.append(world.finished(f"t{turn}").cached_prompt_tokens)
        answer = expected_output(prompt, 14)
        # The last token of an answer was never fed: the state ends before it.
        ends.append(len(prompt) + len(answer) - 1)
        prompt = prompt + answer + prompt_of(f"next{turn}", 3)
    size = 16 if "page_prefixes" in resources else 1
    assert cached[1:] == [end // size * size for end in ends[:3]]
    assert_all_back(world)


def measure(world: World) -> None:
    """Let every program be measured, so that copies have a known price, and a low one."""
    world.executor.durations_ns = {
        graph.name: 50_000
        for graph in world.model.catalog.graphs
        if graph.kind in (GraphKind.SNAPSHOT, GraphKind.RESTORE)
    }
    for index in range(6):
        prompt = prompt_of(f"warm{index}", 40)
        world.core.handle(
            request(f"warm{index}", prompt=prompt, max_output_tokens=60, keep_terminal=True)
        )
    world.run()
    world.core.handle(
        request(
            "warm", prompt=[*prompt_of("warm5", 40), 3, 4], max_output_tokens=5, endpoints=(40,)
        )
    )
    world.run()


def test_a_failing_restore_or_snapshot_ends_its_own_requests_only() -> None:
    for name in ("restore-b1", "snapshot-b1"):
        world = folding_world(snapshot_rows=3)
        shared = prompt_of("system", 40)
        for turn in range(3):
            world.executor.failing = {name: "device lost"} if turn == 1 else {}
            prompt = shared + prompt_of(f"user{turn}", 9)
            ends = (40, 49) if turn == 1 else (40,)
            world.core.handle(
                request(f"t{turn}", prompt=prompt, max_output_tokens=8, endpoints=ends)
            )
            world.run()
            if world.finished(f"t{turn}").reason != "error":
                check_whole(world, f"t{turn}", prompt, 8)
        assert world.finished("t1").error == f"{name} failed: device lost"
        assert world.finished("t2").reason != "error"
        assert_all_back(world)


# Windows of images --------------------------------------------------------------------------------


def test_images_are_encoded_window_by_window() -> None:
    world = folding_world(feature_rows=32, snapshot_rows=2)
    prompt = prompt_of("album", 100)
    images = tuple(
        ImageMessage(start=start, tokens=12, features=20, digest=bytes([start]))
        for start in (5, 30, 60)
    )
    world.core.handle(request("a", prompt=prompt, max_output_tokens=10, images=images))
    world.run()
    check_whole(world, "a", prompt, 10)
    assert world.model.device.encoded == [("a", 0), ("a", 1), ("a", 2)]  # type: ignore[union-attr]
    assert {GraphKind.VISION, GraphKind.SNAPSHOT, GraphKind.RESTORE} <= kinds_run(world)
    plans = [record for record in world.records if record["type"] == "plan"]
    lanes = [lane for plan in plans for lane in plan["lanes"]]  # type: ignore[attr-defined]
    assert [lane["image_index"] for lane in lanes if lane["position"] < 5 and "image_index" in lane]
    useful = world.stats().labelled_counters["flare_useful_rows_total"]
    assert useful['kind="vision"'] == 60
    assert_all_back(world)


# Growth and preemption ----------------------------------------------------------------------------


@pytest.mark.parametrize("names", [ORDINARY, HOST_ROUNDS], ids=["ordinary", "rounds"])
@pytest.mark.parametrize("snapshot_rows", [0, 2])
def test_a_preempted_request_ends_as_if_nothing_had_happened(
    names: list[str], snapshot_rows: int
) -> None:
    """Field report 22: pages run out, and everybody still finishes."""
    world = folding_world(names, page_growth=True, page_count=9, snapshot_rows=snapshot_rows)
    prompts = {f"p{i}": prompt_of(f"p{i}", 14) for i in range(8)}
    for name, prompt in prompts.items():
        world.core.handle(request(name, prompt=prompt, max_output_tokens=100))
    world.run()
    for name, prompt in prompts.items():
        check_whole(world, name, prompt, 100)
    counters = world.stats().counters
    assert counters["flare_preemptions_total"] > 0
    assert counters["flare_engine_stalls_total"] == 0
    bindings = [
        lane
        for frame in world.executor.submitted
        for lane in frame.lanes
        if lane.sampling is not None and lane.replayed_tokens
    ]
    assert bindings
    assert_all_back(world)


def test_scores_and_stop_strings_survive_preemption() -> None:
    world = folding_world(page_growth=True, page_count=9)
    sampling = SamplingMessage(temperature=0.0, top_logprobs=1)
    for index in range(6):
        prompt = prompt_of(f"s{index}", 30)
        world.core.handle(
            request(
                f"s{index}",
                prompt=prompt,
                max_output_tokens=90,
                scored=True,
                stop=("zzz",),
                sampling=sampling,
            )
        )
    world.run()
    assert world.stats().counters["flare_preemptions_total"] > 0
    for index in range(6):
        check_whole(world, f"s{index}", prompt_of(f"s{index}", 30), 90)
        kinds = [type(event).__name__ for event in world.of(f"s{index}")]
        assert kinds[0] == "PromptLogprobs"
        assert kinds.count("PromptLogprobs") == 1
        assert len(world.of(f"s{index}")[0].entries) == 30  # type: ignore[union-attr]
    assert_all_back(world)


def test_a_preempted_request_that_waits_can_be_cancelled() -> None:
    world = folding_world(page_growth=True, page_count=9)
    for index in range(8):
        world.core.handle(
            request(f"c{index}", prompt=prompt_of(f"c{index}", 14), max_output_tokens=100)
        )
    for _ in range(2000):
        world.turn()
        away = world.scheduler.preempted()
        if away:
            break
    ids = {live.handle: live.request_id for live in world.core._roster.all()}
    cancelled = ids[away[0]]
    world.core.handle(Cancel(request_id=cancelled))
    world.run()
    assert world.finished(cancelled).reason == "cancelled"
    for index in range(8):
        if f"c{index}" != cancelled:
            check_whole(world, f"c{index}", prompt_of(f"c{index}", 14), 100)
    assert_all_back(world)


# Cancels and failures in every kind ---------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [GraphKind.SPECULATIVE, GraphKind.MIXED, GraphKind.RESTORE, GraphKind.SNAPSHOT]
)
def test_cancel_while_any_program_is_in_flight(kind: GraphKind) -> None:
    """Field report 17."""
    world = folding_world(HOST_ROUNDS, snapshot_rows=3)
    shared = prompt_of("shared", 32)
    seen = False
    for index in range(16):
        prompt = shared + prompt_of(f"f{index}", 12)
        world.core.handle(
            request(f"f{index}", prompt=prompt, max_output_tokens=25, endpoints=(32,))
        )
        for _ in range(5):
            world.core.step()
            flights = [flight for flight in world.core._flights if flight.plan.graph.kind is kind]
            if flights and not seen:
                seen = True
                for live in flights[0].requests:
                    world.core.handle(Cancel(request_id=live.request_id))
            finish_ns = world.executor.next_finish_ns()
            if finish_ns is not None:
                world.clock.time_ns = max(world.clock.time_ns, finish_ns)
    world.run()
    assert seen
    reasons = [world.finished(f"f{i}").reason for i in range(16)]
    assert "cancelled" in reasons
    for index, reason in enumerate(reasons):
        if reason != "cancelled":
            check_whole(world, f"f{index}", shared + prompt_of(f"f{index}", 12), 25)
    assert_all_back(world)


# Admission ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"endpoints": (3, 3)}, "endpoints", "endpoints[1] is 3"),
        ({"endpoints": (0,)}, "endpoints", "endpoints[0] is 0"),
        ({"endpoints": (9, 21)}, "endpoints", "endpoints[1] is 21"),
        ({"boundaries": (4, 2)}, "boundaries", "boundaries[1]"),
        ({"width_limit": -1}, "width_limit", "width_limit"),
        ({"images": (ImageMessage(start=3, tokens=4, features=2),)}, "images", "digest"),
        (
            {"images": (ImageMessage(start=18, tokens=4, features=2, digest=b"x"),)},
            "images",
            "images[0] ends at 22",
        ),
    ],
)
def test_wrong_fields_are_refused_by_name(fields: dict[str, object], param: str, said: str) -> None:
    world = folding_world(snapshot_rows=2, feature_rows=32)
    world.core.handle(request("a", prompt=prompt_of("a", 20), **fields))
    world.core.step()
    (rejected,) = world.of("a")
    assert isinstance(rejected, Rejected)
    assert rejected.param == param
    assert said in rejected.message


def test_an_array_is_a_prompt_and_is_not_copied() -> None:
    world = folding_world()
    prompt = np.array(prompt_of("array", 30), dtype=np.int32)
    submit = request("a", prompt=(), max_output_tokens=9)
    submit = type(submit)(
        request_id="a", prompt_token_ids=prompt, max_output_tokens=9, sampling=submit.sampling
    )
    world.core.handle(submit)
    live = world.core._roster.with_id("a")
    assert live is not None
    assert live.accepted.prompt is prompt
    world.run()
    check_whole(world, "a", prompt.tolist(), 9)
