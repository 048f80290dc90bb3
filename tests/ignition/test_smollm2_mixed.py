"""The default model: prompts that arrive beside running streams; both say what they say alone."""

from __future__ import annotations

import pytest

from ignition.checkpoint import Checkpoint
from tests.ignition.driver import Driver
from tests.ignition.smollm2 import ROW_PAGES, generate, native_driver, pages, prompts
from tests.ignition.test_mixed import chunk_lane, stream_lane

pytestmark = [pytest.mark.slow, pytest.mark.model]
SHAPES = ((2, 1, 64), (4, 1, 64), (8, 1, 64), (4, 4, 64), (32, 1, 64))
COUNT = 40


@pytest.fixture(scope="module")
def driver(default_checkpoint: Checkpoint) -> Driver:
    return native_driver(default_checkpoint, "int8", mixed=SHAPES)


@pytest.fixture(scope="module")
def texts(default_checkpoint: Checkpoint) -> list[list[int]]:
    """Thirty-two prompts of some fifty tokens each."""
    short = prompts(default_checkpoint)
    return [(text + short[i - 1] + short[i - 2])[:60] for i, text in enumerate(short)]


@pytest.fixture(scope="module")
def expected(driver: Driver, texts: list[list[int]]) -> list[list[int]]:
    return generate(driver, texts, list(range(len(texts))), "decode-b32", 0, COUNT)


@pytest.mark.parametrize(("batch", "width", "capacity"), SHAPES)
def test_arriving_prompts_and_streams_say_what_they_say_alone(
    driver, texts, expected, batch, width, capacity
) -> None:
    """One request after the other arrives, its chunks beside all that came before it."""
    assert max(map(len, texts)) + COUNT <= ROW_PAGES * 16
    name = next(
        g.name
        for g in driver.model.catalog.graphs
        if (g.batch_capacity, g.token_capacity, g.prefill_capacity) == (batch, width, capacity)
    )
    outputs: list[list[int]] = []
    for row in range(batch):
        driver.initialize([row], [pages(row)])
        outputs.append([])
        position, chunk = 0, (64, 17, 1 + 7 * row)[row % 3]
        while position < len(texts[row]):
            lanes = [chunk_lane(row, texts[row], position, min(chunk, len(texts[row]) - position))]
            position += chunk
            for other in range(row):
                left = expected[other][len(outputs[other]) :]
                if left:
                    lanes.append(stream_lane(other, left[: min(width, len(left)) - 1]))
            for each, output in zip(lanes, driver.run(name, *lanes), strict=True):
                outputs[each.row] += output.tokens
    for row in range(batch):
        assert outputs[row] == expected[row][: len(outputs[row])]
        assert outputs[row]
    assert sum(map(len, outputs[:-1])) > len(outputs)
    for row in range(batch):
        driver.terminal([row])
