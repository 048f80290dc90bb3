"""`flare train-draft` from a model directory to a head's file, and again without work."""

from __future__ import annotations

from pathlib import Path

import pytest

from flare.bench.words import question
from flare.command_line import run_command
from flare.draft_prompts import training_questions
from ignition.draft.file import read_draft
from ignition.sources import resolve, summarize_source
from tests.flare.tiny_directory import write_tiny_directory

OPTIONS = ("--shards", "2", "--output-tokens", "8", "--steps", "2", "--draft-tokens", "50")


def test_no_question_is_one_of_the_benchmark() -> None:
    questions = training_questions()
    assert len(set(questions)) == len(questions) > 1024
    assert not {question(seed) for seed in range(400)} & set(questions)


@pytest.mark.slow
def test_a_head_is_trained_measured_and_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_tiny_directory(tmp_path / "model")
    output = tmp_path / "made"
    arguments = ["train-draft", str(directory), "--output", str(output), "--threads", "1"]
    assert run_command([*arguments, *OPTIONS]) == 0
    shown = capsys.readouterr()
    path = Path(shown.out.strip())
    assert path.parent == output
    assert "greedy, so far" in shown.err
    assert "2 steps" in shown.err
    summary = summarize_source(resolve(str(directory)))
    head = read_draft(path, summary.geometry, summary.sha256)
    assert (head.record.steps, len(head.token_ids), head.record.training_texts) == (2, 50, 32)

    before = path.read_bytes()
    assert run_command([*arguments, *OPTIONS]) == 0
    assert path.read_bytes() == before
    capsys.readouterr()
    assert run_command([*arguments, *OPTIONS, "--seed", "2"]) == 2
    assert "begun with other options" in capsys.readouterr().err
