"""Masks: what a row may say is its own affair, in every program and both backends (3.7)."""

from __future__ import annotations

import numpy as np
import pytest

from helios.engine.ports import FrameLane, LaneOutput, SamplingParams
from ignition.programs.frames import FrameError
from ignition.sampling import RowSampling, sample
from tests.ignition.driver import Driver, lane
from tests.ignition.rounds import BACKENDS, SETTINGS, driver_of, plain_run, prompt_of, start
from tests.ignition.test_mixed import chunk_lane, mixing, stream_lane
from tests.ignition.tiny import VOCABULARY

WORDS = -(-VOCABULARY // 32)
FEW = SamplingParams(temperature=1.3, top_k=40, seed=3)


@pytest.fixture(scope="module", params=BACKENDS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return driver_of(request.param)


def mask_of(*tokens: int) -> np.ndarray:
    mask = np.zeros(WORDS, np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def masks_of(*rows: list[int]) -> np.ndarray:
    return np.stack([mask_of(*row) for row in rows])


def masked_step(driver: Driver, row: int, allowed: list[int]) -> LaneOutput:
    (output,) = driver.run("decode-b1", lane(row, masks=masks_of(allowed)))
    return output


@pytest.mark.parametrize("name", [*SETTINGS, "few"])
def test_a_masked_draw_is_the_draw_from_the_allowed_logits_alone(driver, name):
    """The reference is the sampler over logits that were masked by hand, penalties and all."""
    sampling = FEW if name == "few" else SETTINGS[name]
    start(driver, 0, 0, prompt_of(9), sampling)
    rng = np.random.default_rng(4)
    for size in (1, 2, 3, 7, 20, VOCABULARY):
        allowed = sorted(rng.choice(VOCABULARY, size, replace=False).tolist())
        state = driver.model.state
        before = RowSampling.of(state, 0)
        fields = {field: getattr(before, field) for field in before.__slots__}
        fields["output_counts"] = before.output_counts.copy()
        output = masked_step(driver, 0, allowed)
        logits = np.array(driver.program("decode-b1").buffers["last_logits"][0])
        expected = np.full_like(logits, -np.inf)
        expected[allowed] = logits[allowed]
        assert output.tokens == (sample(expected, RowSampling(**fields)),)
        assert output.tokens[0] in allowed
    driver.terminal([0])


def test_the_first_token_of_a_prompt_is_masked_too(driver):
    driver.initialize([0], [[3, 8]], SETTINGS["plain"])
    prompt = np.asarray(prompt_of(9), np.int32)
    chunk = lane(0, prompt_token_ids=prompt, is_final_chunk=True, masks=masks_of([41]))
    (output,) = driver.run("prefill-c16", chunk)
    assert output.tokens == (41,)
    driver.terminal([0])


def test_a_lane_without_masks_draws_as_if_nobody_had_any(driver):
    """Neither a neighbour's mask nor one that an earlier frame left behind is ever taken."""
    expected, _ = plain_run(driver, prompt_of(20, 1), SETTINGS["nucleus"], 12)
    start(driver, 1, 1, prompt_of(9), SETTINGS["plain"])
    found = start(driver, 2, 2, prompt_of(20, 1), SETTINGS["nucleus"])
    for step in range(11):
        lanes = [lane(1, masks=masks_of([step, 60])), lane(2)]
        if step % 2:
            lanes.reverse()
        outputs = driver.run("decode-b2", *lanes)
        found += outputs[1 - step % 2].tokens
        assert outputs[step % 2].tokens[0] in (step, 60)
    assert found == expected
    driver.terminal([1, 2])


def round_lane(row: int, proposals: list[int], masks: np.ndarray | None) -> FrameLane:
    return lane(
        row,
        query_length=1 + len(proposals),
        copied_token_ids=tuple(proposals),
        masks=masks,
    )


def test_a_trimmed_draft_shifts_no_neighbours_mask(driver):
    """Field report 21: each target row is held to its own lane's mask, however short the lanes."""
    rows = (1, 2, 3, 4)
    for row in rows:
        start(driver, row, row, prompt_of(9, row), SETTINGS["plain"])
    rng = np.random.default_rng(11)
    for _ in range(6):
        lanes, allowed = [], {}
        for row in rng.permutation(rows).tolist():
            # Every row's mask allows one token, which no other lane's masks allow; proposals are
            # those tokens, so all of a lane is accepted, and a trimmed lane is just shorter.
            length = int(rng.integers(1, 5))
            tokens = [20 * (row - 1) + int(t) for t in rng.permutation(20)[:length]]
            allowed[row] = tuple(tokens)
            lanes.append(round_lane(row, tokens[:-1], masks_of(*([token] for token in tokens))))
        outputs = driver.run(_round_name(driver, 4, 4), *lanes)
        assert {each.row: out.tokens for each, out in zip(lanes, outputs, strict=True)} == allowed
    driver.terminal(list(rows))


def _round_name(driver: Driver, batch: int, width: int) -> str:
    return next(
        program.descriptor.name
        for program in driver.model.programs
        if "speculative" in program.descriptor.name
        and (program.descriptor.batch_capacity, program.descriptor.token_capacity) == (batch, width)
    )


def test_a_masked_round_is_its_single_steps(driver):
    """A forbidden token is not drawn even where it was proposed, and what follows is the same."""
    allowed = [
        sorted(np.random.default_rng(i).choice(VOCABULARY, 6, False).tolist()) for i in range(9)
    ]
    start(driver, 0, 0, prompt_of(9), SETTINGS["nucleus"])
    expected = [masked_step(driver, 0, allowed[i]).tokens[0] for i in range(8)]
    driver.terminal([0])
    start(driver, 0, 0, prompt_of(9), SETTINGS["nucleus"])
    found: list[int] = []
    while len(found) < 8:
        place = len(found)
        proposals = expected[place : place + 3]
        if place == 1:
            proposals[1] = next(t for t in allowed[2] if t != expected[2])
        masks = masks_of(*allowed[place : place + len(proposals) + 1])
        (output,) = driver.run(_round_name(driver, 1, 4), round_lane(0, proposals, masks))
        found += output.tokens
    assert found[:8] == expected
    driver.terminal([0])


def test_masks_that_do_not_fit_are_refused_before_anything_changes(driver):
    start(driver, 0, 0, prompt_of(9), SETTINGS["plain"])
    for masks, message in (
        (masks_of([]), "allows no token at all"),
        (masks_of([1], [2]), "it must be"),
        (np.ones((1, WORDS + 1), np.uint32), "it must be"),
        (np.ones((1, WORDS), np.int64), "it must be"),
    ):
        with pytest.raises(FrameError, match=message):
            driver.run("decode-b1", lane(0, masks=masks))
    driver.terminal([0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prompt_and_the_streams_beside_it_keep_their_own_masks(backend):
    """In a mixed program the prompt's first token has a mask of its own, wherever its lane is."""
    driver = mixing(backend)
    for row in (1, 2):
        start(driver, row, row, prompt_of(9, row), SETTINGS["plain"])
    driver.initialize([5], [[90, 91]], SETTINGS["plain"])
    prompt = prompt_of(9, 5)
    lanes = [
        stream_lane(2)._replace(masks=masks_of([7])),
        chunk_lane(5, prompt, 0, 9)._replace(masks=masks_of([41])),
        stream_lane(1),
    ]
    outputs = driver.run("mixed-b4-w1-c64", *lanes)
    assert [output.tokens for output in outputs[:2]] == [(7,), (41,)]
    assert len(outputs[2].tokens) == 1
    driver.terminal([1, 2, 5])
