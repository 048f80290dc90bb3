"""The draft heads that come with the package: found by their target, and fit to be used."""

from __future__ import annotations

from pathlib import Path

from flare.options import DEFAULT_MODEL
from ignition.draft import shipped
from ignition.draft.file import MAX_FILE_BYTES, read_record
from ignition.draft.shipped import shipped_draft, shipped_name
from ignition.fetch import KNOWN_MODELS

SHA256 = "b179" + "0" * 60


def test_a_head_is_found_by_the_hash_of_its_target_alone(tmp_path: Path) -> None:
    (tmp_path / shipped_name("another", "c" * 64)).touch()
    assert shipped_draft(SHA256, tmp_path) is None
    mine = tmp_path / shipped_name("some-model", SHA256)
    mine.touch()
    assert shipped_draft(SHA256, tmp_path) == mine
    assert shipped_draft(SHA256, tmp_path / "nothing") is None


def test_every_shipped_head_belongs_to_its_name_and_is_often_right() -> None:
    """Docs/speculation-on-the-model.md: a head is used only if its report says so."""
    for path in sorted((Path(shipped.__file__).parent / "data").glob("*.safetensors")):
        record = read_record(path)
        assert path.name == shipped_name(record.target, record.target_sha256)
        assert path.stat().st_size <= MAX_FILE_BYTES
        first = record.report[0]
        assert first.depth == 1
        assert first.greedy_chains > 1000
        assert first.greedy_agreement >= 0.5


def test_the_default_model_has_a_head_made_from_its_own_text() -> None:
    model = KNOWN_MODELS[DEFAULT_MODEL]
    path = shipped_draft(model.gguf_sha256)
    assert path is not None
    record = read_record(path)
    assert (record.target, record.target_sha256) == (model.name, model.gguf_sha256)
    assert record.training_tokens > 200_000
