"""The default model: rounds say what single steps say, whether proposals are right or wrong."""

from __future__ import annotations

import pytest

from ignition.checkpoint import Checkpoint
from tests.ignition.driver import Driver
from tests.ignition.rounds import Proposer, knowing
from tests.ignition.smollm2 import ROW_PAGES, chunks, generate, native_driver, pages, prompts

pytestmark = [pytest.mark.slow, pytest.mark.model]
ROUNDS = ((1, 8), (4, 4), (8, 8), (32, 2))
COUNT = 48


@pytest.fixture(scope="module")
def driver(default_checkpoint: Checkpoint) -> Driver:
    return native_driver(default_checkpoint, "int8", ROUNDS)


@pytest.fixture(scope="module")
def texts(default_checkpoint: Checkpoint) -> list[list[int]]:
    return prompts(default_checkpoint)


@pytest.fixture(scope="module")
def expected(driver: Driver, texts: list[list[int]]) -> list[list[int]]:
    return generate(driver, texts, list(range(len(texts))), "decode-b32", 0, COUNT)


@pytest.mark.parametrize(("batch", "width"), ROUNDS)
def test_rounds_say_what_single_steps_say(driver, texts, expected, batch, width) -> None:
    assert max(len(text) for text in texts) + COUNT <= ROW_PAGES * 16
    copied = lanes = 0
    for start in range(0, 32 if batch == 32 else 3 * batch, batch):
        group = range(start, start + batch)
        proposers = [knowing(expected[i], 0, seed=i) for i in group]
        outputs, accepted = in_rounds(driver, [texts[i] for i in group], proposers, width)
        assert outputs == [expected[i] for i in group]
        copied += accepted
        lanes += batch
    assert lanes * COUNT // 4 < copied < lanes * COUNT


def in_rounds(
    driver: Driver, texts: list[list[int]], proposers: list[Proposer], width: int
) -> tuple[list[list[int]], int]:
    """Return what each text is continued with, and how many of the tokens were proposed."""
    name = f"speculative-b{len(texts)}-d{width - 1}-w{width}-copy"
    outputs, accepted = [], 0
    for row, text in enumerate(texts):
        driver.initialize([row], [pages(row)])
        outputs.append(list(driver.prefill(row, text, chunks(len(text), row % 4)).tokens))
    while open_rows := [row for row, output in enumerate(outputs) if len(output) < COUNT]:
        offered = {
            row: proposers[row](outputs[row])[: min(width, COUNT - len(outputs[row])) - 1]
            for row in open_rows
        }
        for row, output in driver.round(offered, name).items():
            outputs[row] += output.tokens
            accepted += len(output.tokens) - 1
    for row in range(len(texts)):
        driver.terminal([row])
    return outputs, accepted
