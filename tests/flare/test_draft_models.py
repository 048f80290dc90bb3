"""`--draft MODEL` on the command line: what a plan shows of a draft model, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flare.command_line import run_command
from tests.flare.tiny_directory import write_tiny_directory

FFN, WIDER = 96, 128


def write_draft(path: Path, target: Path) -> Path:
    """Write a copy of a model that has a wider feed-forward part, and weights a little off: most of
    what it proposes for that model is right, and some is not."""
    shutil.copytree(target, path)
    generator, weights = np.random.default_rng(3), load_file(target / "model.safetensors")
    for name, array in weights.items():
        found = array + generator.normal(0, 0.01, array.shape).astype(np.float32)
        if "mlp" in name:
            axis = 1 if "down" in name else 0
            padding = [(0, WIDER - FFN if each == axis else 0) for each in (0, 1)]
            found = np.pad(found, padding)
        weights[name] = np.ascontiguousarray(found)
    save_file(weights, path / "model.safetensors")
    edit(path / "config.json", intermediate_size=WIDER)
    return path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Directories of a target and of its draft."""
    base = tmp_path_factory.mktemp("pair")
    target = write_tiny_directory(base / "tiny")
    return target, write_draft(base / "small", target)


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_plan_shows_what_the_draft_model_takes(models, capsys) -> None:
    target, draft = models
    options = ["--backend", "eager", "--draft", str(draft)]
    assert run_command(["plan", str(target), *options]) == 0
    text = shown(capsys)
    assert "learned tokens" in text
    assert "of which the draft model: weights" in text
    assert run_command(["plan", str(target), *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["draft_model"]["ffn_size"] == WIDER
    assert document["draft_memory"]["kv_bytes"] > 0


def _other_token(path: Path) -> None:
    document = json.loads((path / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]
    (path / "tokenizer.json").write_text(json.dumps(document))


def _larger(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = np.concatenate([embedding, embedding[:3]])
    save_file(weights, path / "model.safetensors")
    edit(path / "config.json", vocab_size=len(embedding) + 3)


def _damage(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_other_token, "the draft model odd has another tokenizer than its target tiny: token"),
        (_larger, "vocabulary: the draft has 260 tokens, the target 257 tokens"),
        (lambda path: edit(path / "config.json", eos_token_id=3), "the tokens that end a text"),
        (lambda path: edit(path / "config.json", model_type="gpt2"), "model_type"),
        (_damage, "model.safetensors"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors"),
    ],
)
def test_drafts_that_cannot_be_are_refused(models, tmp_path, capsys, change, message) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(models[1], odd)
    change(odd)
    arguments = ["plan", str(models[0]), "--backend", "eager", "--draft", str(odd)]
    assert run_command(arguments) == 2
    assert message in shown(capsys)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.gguf", "or the file of a draft head (.safetensors)"),
        ("nothing.safetensors", "nothing.safetensors: cannot be read"),
    ],
)
def test_a_draft_that_is_not_there_is_said_so(models, tmp_path, capsys, name, message) -> None:
    arguments = ["plan", str(models[0]), "--backend", "eager", "--draft", str(tmp_path / name)]
    assert run_command(arguments) == 2
    assert message in shown(capsys)
