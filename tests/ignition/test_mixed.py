"""docs/design/programs.md 2.7: a mixed step does to every row exactly what its own step would."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from helios.engine.ports import FrameLane, LaneOutput, SamplingParams
from ignition.programs.frames import FrameError, ReplayError
from tests.ignition.driver import GREEDY, Driver, catalog_of, lane
from tests.ignition.native.models import POOL
from tests.ignition.rounds import (
    BACKENDS,
    SETTINGS,
    driver_of,
    knowing,
    pages_for,
    prompt_of,
    start,
    state_of,
)
from tests.ignition.tiny import VOCABULARY

MIXED = ((2, 1, 64), (4, 1, 64), (8, 1, 128), (2, 8, 64), (4, 4, 64), (8, 2, 64))
CATALOG = catalog_of(mixed=MIXED)
LONG = 90


def mixing(backend: str) -> Driver:
    return driver_of(backend, CATALOG)


def name_of(batch: int, width: int, prompt: int) -> str:
    return next(
        g.name
        for g in CATALOG.graphs
        if (g.batch_capacity, g.token_capacity, g.prefill_capacity) == (batch, width, prompt)
    )


def chunk_lane(row: int, prompt: Sequence[int], position: int, count: int) -> FrameLane:
    end = position + count
    following = prompt[end] if end < len(prompt) else -1
    tokens = np.asarray(prompt[position:end], np.int32)
    return lane(
        row,
        position=position,
        prompt_token_ids=tokens,
        next_prompt_token_id=following,
        is_final_chunk=following < 0,
        is_prompt=True,
    )


def stream_lane(row: int, proposals: Sequence[int] = ()) -> FrameLane:
    return lane(row, query_length=len(proposals) + 1, copied_token_ids=tuple(proposals))


@dataclasses.dataclass(frozen=True, slots=True)
class Alone:
    """What a request gives when every step serves it alone."""

    tokens: list[int]
    logits: list[np.ndarray]
    outputs: list[LaneOutput]


def alone(driver: Driver, prompt: list[int], sampling: SamplingParams, count: int) -> Alone:
    """Consume a prompt and generate in separate steps."""
    driver.initialize([0], [pages_for(7)], sampling)
    chunks = [("prefill-c64", min(64, len(prompt) - at)) for at in range(0, len(prompt), 64)]
    outputs = [driver.prefill(0, prompt, chunks)]
    logits = [driver.program("prefill-c64").buffers["last_logits"][0].copy()]
    while len(outputs) < count and not outputs[-1].terminated:
        outputs += driver.decode([0])
        logits.append(driver.program("decode-b1").buffers["last_logits"][0].copy())
    driver.terminal([0])
    return Alone([token for output in outputs for token in output.tokens], logits, outputs)


def logits_in(driver: Driver, name: str, lanes: Sequence[FrameLane]) -> dict[int, np.ndarray]:
    """Return each row's logits [length, V] of the mixed step that was just run."""
    table = driver.program(name).buffers["last_logits"]
    drawn = [each for each in lanes if each.query_length or each.is_final_chunk]
    if driver.model.__class__.__name__ == "EagerModel":
        wide = table if table.ndim == 3 else table[:, None]
        at = {each.row: wide[lanes.index(each)] for each in drawn}
        return {each.row: at[each.row][: max(1, each.query_length)] for each in drawn}
    found, first = {}, 0
    # A native step evaluates the head for the prompt's last token first, then for the streams.
    for each in sorted(drawn, key=lambda each: not each.is_prompt):
        count = max(1, each.query_length)
        found[each.row] = table[first : first + count]
        first += count
    return found


def chunk_sizes(length: int, most: int, seed: int) -> Iterator[int]:
    chance = random.Random(seed)
    while length:
        count = min(length, chance.choice([1, 3, 16, 33, most]))
        yield count
        length -= count


def run_beside(
    backend: str, shape: tuple[int, int, int], sampling: SamplingParams, seed: int = 0
) -> None:
    """Streams generate while a prompt arrives chunk by chunk, and then it streams beside them."""
    driver, (batch, width, capacity) = mixing(backend), shape
    name, streams, count = name_of(*shape), min(batch - 1, 3), 16
    prompts = [prompt_of(9 + 7 * i, seed=seed + i) for i in range(streams)]
    prompts.append(prompt_of(LONG, seed=seed + 9))
    expected = [alone(driver, prompt, sampling, count) for prompt in prompts]
    rows = [(3 * i + 1) % POOL.row_count for i in range(streams + 1)]
    given = dict(zip(rows, expected, strict=True))
    outputs: dict[int, list[LaneOutput]] = {row: [] for row in rows}
    for i, row in enumerate(rows[:-1]):
        start(driver, row, i, prompts[i], sampling)
        outputs[row].append(expected[i].outputs[0])
    driver.initialize([rows[-1]], [pages_for(streams)], sampling)
    steps = list(chunk_sizes(LONG, capacity, seed))
    position, chance = 0, random.Random(seed)
    while any(produced(outputs[row]) < len(given[row].tokens) for row in rows):
        lanes = []
        for row in rows:
            if row == rows[-1] and position < LONG:
                size = steps.pop(0)
                lanes.append(chunk_lane(row, prompts[-1], position, size))
                position += size
            elif produced(outputs[row]) < len(given[row].tokens):
                lanes.append(stream_lane(row, proposals_for(given[row], outputs[row], width)))
        chance.shuffle(lanes)
        found = driver.run(name, *lanes)
        logits = logits_in(driver, name, lanes)
        for each, output in zip(lanes, found, strict=True):
            at = produced(outputs[each.row])
            true = given[each.row].logits[at : at + len(output.tokens)]
            for place, row_logits in enumerate(true):
                assert np.array_equal(logits[each.row][place], row_logits), (each.row, at)
            outputs[each.row].append(output)
    for row in rows:
        assert [t for o in outputs[row] for t in o.tokens] == given[row].tokens
        reported = [score for output in outputs[row] for score in output.logprobs]
        assert reported == [score for output in given[row].outputs for score in output.logprobs]


def produced(outputs: Sequence[LaneOutput]) -> int:
    return sum(len(output.tokens) for output in outputs)


def proposals_for(truth: Alone, outputs: Sequence[LaneOutput], width: int) -> list[int]:
    done = produced(outputs)
    proposer = knowing(truth.tokens, 0, seed=done)
    left = len(truth.tokens) - done
    return proposer([0] * done)[: min(width, left) - 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", MIXED, ids=lambda shape: name_of(*shape))
def test_2_7_a_mixed_step_equals_separate_steps_bit_for_bit(backend, shape) -> None:
    run_beside(backend, shape, SamplingParams(temperature=0.0, top_logprobs=2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(4, 1, 64), (4, 4, 64)], ids=lambda shape: name_of(*shape))
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_every_sampling_setting_draws_what_separate_steps_draw(backend, shape, setting) -> None:
    run_beside(backend, shape, SETTINGS[setting], seed=5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_last", [False, True])
def test_every_row_is_left_as_its_own_step_leaves_it(backend, is_last) -> None:
    """A stream, a prompt in the middle or at its end, and five rows that nobody named."""
    sampling = SETTINGS["greedy-penalised"]
    prompt = prompt_of(40 if is_last else 60, seed=3)
    mixed, single = mixing(backend), mixing(backend)
    for driver in (mixed, single):
        start(driver, 2, 0, prompt_of(13), sampling)
        driver.initialize([5], [pages_for(1)], sampling)
    for count, at in ((24, 0), (16, 24)):
        mixed.run("mixed-b4-w1-c64", stream_lane(2), chunk_lane(5, prompt, at, count))
        single.decode([2])
        single.run("prefill-c64", chunk_lane(5, prompt, at, count))
    for row, page_set in ((2, 0), (5, 1), (0, 6), (7, 6)):
        found = zip(state_of(mixed, row, page_set), state_of(single, row, page_set), strict=True)
        assert all(np.array_equal(one, other) for one, other in found), row


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(4, 1, 64), (4, 4, 64)], ids=lambda shape: name_of(*shape))
def test_a_population_of_only_one_kind_is_the_kind_s_own_step(backend, shape) -> None:
    driver, name = mixing(backend), name_of(*shape)
    expected = [alone(driver, prompt_of(8 + i, seed=i), GREEDY, 4) for i in range(4)]
    for i in range(4):
        assert start(driver, i, i, prompt_of(8 + i, seed=i), GREEDY) == expected[i].tokens[:1]
    outputs = driver.run(name, *map(stream_lane, range(4)))
    assert [o.tokens for o in outputs] == [(each.tokens[1],) for each in expected]
    before = [state_of(driver, row, row) for row in range(4)]
    driver.initialize([6], [pages_for(5)], GREEDY)
    prompt = prompt_of(50, seed=8)
    (output,) = driver.run(name, chunk_lane(6, prompt, 0, 50))
    assert list(output.tokens) == alone_tokens(backend, prompt)
    for row in range(4):
        after = zip(before[row], state_of(driver, row, row), strict=True)
        assert all(np.array_equal(one, other) for one, other in after)


def alone_tokens(backend: str, prompt: list[int]) -> list[int]:
    return alone(mixing(backend), prompt, GREEDY, 1).tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_streams_that_ended_or_were_cancelled_change_nothing(backend) -> None:
    """A stop token ended row 1; row 3 was cancelled and its row given to the new prompt."""
    driver = mixing(backend)
    free = alone(driver, prompt_of(20), SETTINGS["plain"], 3).tokens
    ending = dataclasses.replace(SETTINGS["plain"], stop_token_ids=(free[1],))
    start(driver, 1, 0, prompt_of(20), ending)
    start(driver, 3, 1, prompt_of(25, seed=1), GREEDY)
    (last,) = driver.decode([1])
    assert last.terminated
    driver.terminal([3])
    prompt = prompt_of(30, seed=2)
    driver.initialize([3], [pages_for(1)], GREEDY)
    before = state_of(driver, 1, 0)
    ended, first = driver.run("mixed-b4-w1-c64", stream_lane(1), chunk_lane(3, prompt, 0, 30))
    assert ended == LaneOutput()
    assert list(first.tokens) == alone_tokens(backend, prompt)
    after = zip(before, state_of(driver, 1, 0), strict=True)
    assert all(np.array_equal(one, other) for one, other in after)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_first_token_that_stops_ends_the_prompt_s_row(backend) -> None:
    prompt = prompt_of(21, seed=4)
    (token,) = alone_tokens(backend, prompt)
    driver, sampling = mixing(backend), SamplingParams(temperature=0.0, stop_token_ids=(token,))
    start(driver, 0, 0, prompt_of(9), GREEDY)
    driver.initialize([4], [pages_for(1)], sampling)
    stream, output = driver.run("mixed-b8-w1-c128", stream_lane(0), chunk_lane(4, prompt, 0, 21))
    assert output.terminated
    assert output.tokens == (token,)
    assert len(stream.tokens) == 1
    (again,) = driver.run("mixed-b8-w1-c128", stream_lane(4))
    assert again == LaneOutput()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_without_a_page_is_refused_before_the_prompt_is_consumed(backend) -> None:
    driver, prompt = mixing(backend), prompt_of(30, seed=2)
    start(driver, 1, 0, prompt_of(32), GREEDY)
    driver.model.state.page_table[1, 2:] = -1
    driver.initialize([3], [pages_for(1)], GREEDY)
    before = [state_of(driver, row, page_set) for row, page_set in ((1, 0), (3, 1))]
    with pytest.raises(ReplayError, match="row 1 has no page"):
        driver.run("mixed-b4-w1-c64", chunk_lane(3, prompt, 0, 30), stream_lane(1))
    after = [state_of(driver, row, page_set) for row, page_set in ((1, 0), (3, 1))]
    for one, other in zip(before, after, strict=True):
        assert all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        ([chunk_lane(1, [1] * 65, 0, 65)], "65 prompt tokens, capacity 64"),
        ([chunk_lane(1, [1] * 9, 0, 9), chunk_lane(2, [1] * 9, 0, 9)], "more than one lane"),
        ([chunk_lane(1, [1] * 9, 0, 9), lane(2)], "row 2 has a query length of 0"),
        ([stream_lane(1, [5])], "row 1 has a query length of 2, it must be 1 to 1"),
        ([stream_lane(1), stream_lane(1)], "a row stands in two lanes"),
        ([chunk_lane(1, [VOCABULARY] * 9, 0, 9)], "prompt token outside"),
        ([chunk_lane(1, [1] * 300, 200, 60)], "fewer than the 17 pages"),
        ([stream_lane(row) for row in range(5)], "5 lanes, capacity 4"),
    ],
)
@pytest.mark.parametrize("backend", ["eager", "native-int8"])
def test_a_frame_that_does_not_fit_is_refused_before_anything_is_written(
    backend, lanes, message
) -> None:
    driver = mixing(backend)
    start(driver, 1, 0, prompt_of(9), GREEDY)
    program = driver.program("mixed-b4-w1-c64")
    names = [name for name in program.buffers if name != "last_logits"]
    before = {name: program.buffers[name].copy() for name in names}
    with pytest.raises(FrameError, match=message):
        driver.run("mixed-b4-w1-c64", *lanes)
    for name in names:
        assert np.array_equal(program.buffers[name], before[name]), name


def test_native_mixed_steps_have_the_logits_and_tokens_of_eager_ones() -> None:
    drivers = [mixing("eager"), mixing("native-fp32")]
    prompt, name = prompt_of(LONG, seed=6), "mixed-b4-d3-w4-c64-copy"
    for driver in drivers:
        start(driver, 2, 0, prompt_of(12), GREEDY)
        driver.initialize([6], [pages_for(1)], GREEDY)
    for at, count in ((0, 50), (50, 40)):
        lanes = [chunk_lane(6, prompt, at, count), stream_lane(2, [at % VOCABULARY, 3])]
        outputs = [driver.run(name, *lanes) for driver in drivers]
        assert outputs[0] == outputs[1]
        found = [logits_in(driver, name, lanes) for driver in drivers]
        for row, one in found[0].items():
            length = len(one)
            assert np.abs(one - found[1][row][:length]).max() < 1e-5 * np.abs(one).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["mixed-b4-w1-c64", "mixed-b4-d3-w4-c64-copy"])
def test_masks_hold_for_their_own_lane_alone(backend, name) -> None:
    """A stream and the end of a prompt may say one token each, a stream beside them anything."""
    driver = mixing(backend)
    prompts = [prompt_of(12 + i, seed=i) for i in range(3)]
    free = [alone(driver, prompt, GREEDY, 3).tokens for prompt in prompts]
    masks = []
    for token in (free[0][1] + 5, free[1][0] + 9):
        mask = np.zeros((1, -(-VOCABULARY // 32)), np.uint32)
        mask[0, token % VOCABULARY // 32] = 1 << (token % VOCABULARY % 32)
        masks.append(mask)
    start(driver, 1, 0, prompts[0], GREEDY)
    start(driver, 6, 2, prompts[2], GREEDY)
    driver.initialize([4], [pages_for(1)], GREEDY)
    held, first, other = driver.run(
        name,
        stream_lane(1)._replace(masks=masks[0]),
        chunk_lane(4, prompts[1], 0, 13)._replace(masks=masks[1]),
        stream_lane(6),
    )
    assert held.tokens == ((free[0][1] + 5) % VOCABULARY,)
    assert first.tokens == ((free[1][0] + 9) % VOCABULARY,)
    assert other.tokens == (free[2][1],)
