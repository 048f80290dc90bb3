"""docs/design/programs.md 2.6 and 3.6: rounds commit exactly what single steps would."""

from __future__ import annotations

import random

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from ignition.programs.frames import FrameError, ReplayError
from tests.ignition.driver import GREEDY, Driver, lane
from tests.ignition.native.models import POOL
from tests.ignition.rounds import (
    BACKENDS,
    ROUNDS,
    SETTINGS,
    driver_of,
    knowing,
    logits_of,
    pages_for,
    plain_run,
    prompt_of,
    start,
    state_of,
)
from tests.ignition.tiny import VOCABULARY

WIDE = [(batch, width) for batch, width in ROUNDS if width > 1]


def name_of(batch: int, width: int) -> str:
    return f"speculative-b{batch}-d{width - 1}-w{width}" + "-copy" * (width > 1)


def run_rounds(driver: Driver, batch: int, width: int, sampling: SamplingParams, count: int):
    """Generate for several requests at once; return what each produced and how many rounds ran."""
    lanes = min(batch, 3)
    prompts = [prompt_of(11 + 9 * i, seed=i) for i in range(lanes)]
    expected = [plain_run(driver, prompt, sampling, count) for prompt in prompts]
    rows = [(5 * i + 2) % POOL.row_count for i in range(lanes)]
    produced, proposers = {}, {}
    for i, row in enumerate(rows):
        produced[row] = start(driver, row, i, prompts[i], sampling)
        proposers[row] = knowing(expected[i][0], 0, seed=i)
    rounds, name = 0, name_of(batch, width)
    while any(len(produced[row]) < count for row in rows):
        offered = {}
        for row in random.Random(rounds).sample(rows, len(rows)):
            left = count - len(produced[row])
            if left > 0:
                offered[row] = proposers[row](produced[row])[: min(width, left) - 1]
        outputs = driver.round(offered, name)
        found = logits_of(driver, name, offered)
        for row, logits in zip(offered, found, strict=True):
            at, tokens = len(produced[row]), outputs[row].tokens
            true = expected[rows.index(row)][1][at - 1 : at - 1 + len(tokens)]
            assert np.array_equal(logits[: len(tokens)], np.stack(true)), (row, at)
            produced[row] += tokens
        rounds += 1
    assert [produced[row] for row in rows] == [tokens for tokens, _ in expected]
    return rounds


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("batch", "width"), WIDE)
def test_2_6_greedy_rounds_equal_single_steps_bit_for_bit(backend, batch, width) -> None:
    rounds = run_rounds(driver_of(backend), batch, width, GREEDY, 24)
    assert rounds < 23, "the proposals are mostly right, so a round brings more than one token"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_3_6_every_sampling_setting_draws_what_single_steps_draw(backend, setting) -> None:
    """Not only the distribution: the same seed gives the same tokens."""
    run_rounds(driver_of(backend), 4, 4, SETTINGS[setting], 30)


@pytest.mark.parametrize("backend", ["eager", "native-int8"])
def test_a_round_of_width_one_is_a_decode_step(backend) -> None:
    driver, prompt = driver_of(backend), prompt_of(20)
    expected = plain_run(driver, prompt, SETTINGS["plain"], 8)[0]
    tokens = start(driver, 3, 1, prompt, SETTINGS["plain"])
    for name in ("speculative-b1-d0-w1", "speculative-b4-d0-w1") * 3:
        (output,) = driver.run(name, lane(3, query_length=1))
        tokens += output.tokens
    assert tokens == expected[:7]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("right", range(4))
def test_rejected_rows_leave_nothing_behind(backend, right) -> None:
    """State, counters and the cache up to its length are those of single steps, bit for bit."""
    prompt, sampling = prompt_of(14), SETTINGS["greedy-penalised"]
    driver, single = driver_of(backend), driver_of(backend)
    expected = plain_run(driver, prompt, sampling, 5)[0]
    start(driver, 1, 0, prompt, sampling)
    start(single, 1, 0, prompt, sampling)
    proposals = [*expected[1:4]]
    if right < 3:
        proposals[right] = (proposals[right] + 1) % VOCABULARY
    outputs = driver.round({1: proposals}, "speculative-b1-d3-w4-copy")
    assert outputs[1].tokens == tuple(expected[1 : 2 + right])
    for _ in range(right + 1):
        single.decode([1])
    for one, other in zip(state_of(driver, 1, 0), state_of(single, 1, 0), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_short_and_idle_lanes_change_nothing_of_a_neighbour(backend) -> None:
    driver, prompts = driver_of(backend), [prompt_of(10 + i, seed=i) for i in range(3)]
    expected = [plain_run(driver, prompt, GREEDY, 9)[0] for prompt in prompts]
    rows = [6, 0, 3]
    for i, row in enumerate(rows):
        start(driver, row, i, prompts[i], GREEDY)
    before = [state_of(driver, row, 5) for row in (1, 2, 4, 5, 7)]
    lengths = (1, 4, 2)
    offered = {row: expected[i][1 : lengths[i]] for i, row in enumerate(rows)}
    outputs = driver.round(offered, "speculative-b8-d7-w8-copy")
    for i, row in enumerate(rows):
        assert list(outputs[row].tokens) == expected[i][1 : 1 + lengths[i]]
    after = [state_of(driver, row, 5) for row in (1, 2, 4, 5, 7)]
    for one, other in zip(before, after, strict=True):
        assert all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stop_token_inside_an_accepted_burst_ends_it_there(backend) -> None:
    driver, prompt = driver_of(backend), prompt_of(20)
    free = plain_run(driver, prompt, SETTINGS["plain"], 8)[0]
    stop = free[3]
    at = free.index(stop, 1)
    sampling = SamplingParams(temperature=1.0, seed=11, stop_token_ids=(stop,))
    if free[0] == stop:
        pytest.fail("the seed draws the stop token first")
    start(driver, 2, 0, prompt, sampling)
    outputs = driver.round({2: free[1:8]}, "speculative-b1-d7-w8-copy")
    assert list(outputs[2].tokens) == free[1 : at + 1]
    assert outputs[2].terminated
    before = state_of(driver, 2, 0)
    again = driver.round({2: free[1:8]}, "speculative-b1-d7-w8-copy")
    assert again[2].tokens == ()
    assert not again[2].terminated
    for one, other in zip(before, state_of(driver, 2, 0), strict=True):
        assert np.array_equal(one, other)
    (last,) = driver.terminal([2])
    assert (last.cached_tokens, last.output_tokens) == (20 + at, at + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_proposals_of_nothing_but_the_stop_token_are_only_a_slow_step(backend) -> None:
    driver, prompt = driver_of(backend), prompt_of(20)
    free = plain_run(driver, prompt, GREEDY, 6)[0]
    stop = next(token for token in range(VOCABULARY) if token not in free)
    sampling = SamplingParams(temperature=0.0, stop_token_ids=(stop,))
    tokens = start(driver, 2, 0, prompt, sampling)
    for _ in range(5):
        outputs = driver.round({2: [stop] * 7}, "speculative-b1-d7-w8-copy")
        assert not outputs[2].terminated
        tokens += outputs[2].tokens
    assert tokens == free


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_probabilities_of_a_burst_are_those_of_single_steps(backend) -> None:
    sampling = SamplingParams(temperature=0.0, top_logprobs=3)
    driver, prompt = driver_of(backend), prompt_of(17)
    tokens = start(driver, 4, 1, prompt, sampling)
    single = [driver.decode([4])[0] for _ in range(4)]
    start(driver, 4, 1, prompt, sampling)
    proposals = [output.tokens[0] for output in single[:3]]
    outputs = driver.round({4: proposals}, "speculative-b4-d3-w4-copy")
    assert tokens
    assert outputs[4].logprobs == tuple(output.logprobs[0] for output in single)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_round_that_passes_the_last_page_is_refused_and_changes_nothing(backend) -> None:
    driver, prompt = driver_of(backend), prompt_of(28)
    driver.initialize([1], [pages_for(0, 2)], GREEDY)
    driver.prefill(1, prompt, [("prefill-c64", 28)])
    driver.model.state.page_table[1, 2:] = -1
    before = state_of(driver, 1, 0)
    with pytest.raises(ReplayError, match="row 1 has no page"):
        driver.round({1: [3] * 7}, "speculative-b1-d7-w8-copy")
    for one, other in zip(before, state_of(driver, 1, 0), strict=True):
        assert np.array_equal(one, other)
    outputs = driver.round({1: [3] * 3}, "speculative-b1-d3-w4-copy")
    assert outputs[1].tokens


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query_length": 0}, "row 1 has a query length of 0, it must be 1 to 4"),
        ({"query_length": 5, "copied_token_ids": (1,) * 4}, "query length of 5"),
        ({"query_length": 3, "copied_token_ids": (1,)}, "1 proposals, its query length of 3"),
        ({"query_length": 2, "copied_token_ids": (VOCABULARY,)}, "proposal outside"),
        ({"query_length": 2, "copied_token_ids": (-1,)}, "proposal outside"),
    ],
)
def test_a_lane_that_does_not_fit_is_refused_before_anything_is_written(fields, message) -> None:
    driver = driver_of("native-int8")
    start(driver, 1, 0, prompt_of(9), GREEDY)
    program = driver.program("speculative-b1-d3-w4-copy")
    before = {name: array.copy() for name, array in program.buffers.items()}
    with pytest.raises(FrameError, match=message):
        driver.run("speculative-b1-d3-w4-copy", lane(1, **fields))
    for name, array in program.buffers.items():
        assert np.array_equal(array, before[name]), name


def test_native_rounds_have_the_logits_and_tokens_of_eager_ones() -> None:
    eager, native = driver_of("eager"), driver_of("native-fp32")
    prompts = {row: prompt_of(12 + row, seed=row) for row in (0, 3, 5)}
    tokens = {}
    for row, prompt in prompts.items():
        tokens[row] = start(eager, row, row, prompt, GREEDY)
        assert start(native, row, row, prompt, GREEDY) == tokens[row]
    for step in range(6):
        offered = {
            row: [(7 * step + 3 * i + row) % VOCABULARY for i in range(row % 4)] for row in prompts
        }
        outputs = [each.round(offered, "speculative-b4-d3-w4-copy") for each in (eager, native)]
        assert outputs[0] == outputs[1]
        found = [logits_of(d, "speculative-b4-d3-w4-copy", offered) for d in (eager, native)]
        for one, other in zip(*found, strict=True):
            assert np.abs(one - other).max() < 1e-5 * np.abs(one).max()
