"""The head that comes with the package, in native rounds of the default model on open questions."""

from __future__ import annotations

import numpy as np
import pytest

from flare.bench.words import question
from flare.commands.train_draft import _prompts
from helios.scheduler import Catalog
from ignition.checkpoint import Checkpoint
from ignition.draft.file import read_draft
from ignition.draft.shipped import shipped_draft
from ignition.native.pack import pack
from ignition.native.pack_draft import pack_draft
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from tests.ignition.driver import Driver, lane
from tests.ignition.native.models import library_for
from tests.ignition.smollm2 import POOL, ROW_PAGES, catalog, generate, pages
from tests.ignition.test_learned_rounds import learned_graph

pytestmark = [pytest.mark.slow, pytest.mark.model]
BATCH, WIDTH, COUNT = 4, 4, 48
QUESTIONS = 16


@pytest.fixture(scope="module")
def driver(default_checkpoint: Checkpoint) -> Driver:
    geometry = default_checkpoint.geometry
    path = shipped_draft(default_checkpoint.sha256)
    assert path is not None
    head = read_draft(path, geometry, default_checkpoint.sha256)
    model = NativeModel(
        geometry=geometry,
        pool=POOL,
        catalog=Catalog.of([*catalog().graphs, learned_graph(BATCH, WIDTH)]),
        arrays=pack(default_checkpoint, "int8") | pack_draft(default_checkpoint, head, "int8"),
        library=library_for(geometry, "int8", pool=POOL),
        state=ServingState.allocate(geometry, POOL, np.float16, draft_layers=1),
        threads=2,
    )
    return Driver(model)


def test_open_questions_are_answered_as_in_single_steps_and_proposals_are_often_right(
    driver: Driver, default_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [question(seed) for seed in range(1, QUESTIONS + 1)]
    monkeypatch.setattr("flare.commands.train_draft.training_questions", lambda: asked)
    texts = _prompts(default_checkpoint)
    assert max(map(len, texts)) + COUNT <= ROW_PAGES * 16
    rounds = right = 0
    for start in range(0, QUESTIONS, BATCH):
        group = texts[start : start + BATCH]
        expected = generate(driver, group, list(range(BATCH)), "decode-b4", 0, COUNT)
        outputs, own_rounds, own_right = in_learned_rounds(driver, group)
        assert outputs == expected
        rounds += own_rounds
        right += own_right
    assert right / rounds > 0.4, "the report of the head says 0.5 and more on its own questions"


def in_learned_rounds(driver: Driver, texts: list[list[int]]) -> tuple[list[list[int]], int, int]:
    """Return the answers, how many lanes proposed, and in how many the first was right."""
    name, outputs = f"speculative-b{BATCH}-d{WIDTH - 1}-w{WIDTH}", []
    for row, text in enumerate(texts):
        driver.initialize([row], [pages(row)])
        outputs.append(list(driver.prefill(row, text, [("prefill-c64", len(text))]).tokens))
    rounds = right = 0
    while open_rows := [row for row, output in enumerate(outputs) if len(output) < COUNT]:
        lengths = {row: min(WIDTH, COUNT - len(outputs[row])) for row in open_rows}
        lanes = [lane(row, query_length=length) for row, length in lengths.items()]
        for row, output in zip(open_rows, driver.run(name, *lanes), strict=True):
            outputs[row] += output.tokens
            rounds += lengths[row] > 1
            right += len(output.tokens) > 1
    for row in range(len(texts)):
        driver.terminal([row])
    return outputs, rounds, right
