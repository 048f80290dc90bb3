"""Prepares a model: read, plan, pack or compile, write the package, open and measure it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from helios.engine.manifest import DraftEntry, Manifest
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.checkpoint import Checkpoint
from ignition.draft.expected import expected_survivals
from ignition.draft.file import DraftHead, read_draft
from ignition.measure import measure_programs
from ignition.native.build import NativeBuildError, NoCompilerError, build_library, find_compiler
from ignition.native.pack import pack
from ignition.native.pack_draft import pack_draft
from ignition.package import open_package
from ignition.package_errors import PackageError
from ignition.package_manifest import sha256_of
from ignition.package_writer import (
    DRAFT_NAME,
    CompiledLibrary,
    package_directory,
    write_manifest,
    write_package,
)
from ignition.sources import ModelSource, read_source
from ignition.weight_shapes import dense_shapes

STAGES: Final = (
    "download",
    "extract",
    "verify",
    "read",
    "pack",
    "compile",
    "write",
    "open",
    "measure",
)
"""Names of the stages, in order; a stage that is not needed does not report."""


class PrepareProgress(Protocol):
    """Hears how far preparing is."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps of a stage are done (bytes for the first three)."""
        ...


class Notice(Protocol):
    """Hears what a person should know, one sentence at a time."""

    def __call__(self, text: str) -> None:
        """Say it aloud."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendChoice:
    """What `choose_backend` decided."""

    backend: str
    precision: str
    notice: str | None
    """What to tell the user when it is not what they would expect."""


def choose_backend(backend: str = "auto", precision: str = "auto") -> BackendChoice:
    """Resolve `auto`: native where there is a compiler, else eager; int8 for native, else fp32.

    Raises NoCompilerError or CudaUnavailableError when a backend is asked for by name and cannot
    be had here.
    """
    notice = None
    if backend == "auto":
        try:
            find_compiler()
            backend = "native"
        except NoCompilerError as error:
            backend = "eager"
            notice = f"{error}. Falling back to eager PyTorch programs, which are much slower."
            if precision == "int8":
                precision = "fp32"
                notice += " They compute in fp32, not int8."
    elif backend == "native":
        find_compiler()
    elif backend == "cuda":
        from ignition.programs.cuda import require_device  # noqa: PLC0415 - imports torch.

        require_device()
    if precision == "auto":
        precision = "int8" if backend == "native" else "fp32"
    return BackendChoice(backend=backend, precision=precision, notice=notice)


def machine_memory_bytes() -> int:
    """Return the machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_threads() -> int:
    """Return the processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True, slots=True)
class _FetchRelay:
    """Passes on how far a fetch is, in bytes."""

    progress: PrepareProgress

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Report a stage of fetching."""
        self.progress(stage, done_bytes, total_bytes)


def prepare(
    source: ModelSource,
    destination: Path,
    options: CapacityOptions,
    *,
    progress: PrepareProgress,
    notice: Notice,
    threads: int | None = None,
    draft: Path | None = None,
) -> Manifest:
    """Read a model and prepare it, with the draft head of a file where programs propose.

    Raises what reading, planning, building or writing raises.
    """
    progress("read", 0, 1)
    checkpoint = read_source(source, progress=_FetchRelay(progress))
    progress("read", 1, 1)
    plan = plan_capacity(checkpoint.geometry, options, machine_memory_bytes=machine_memory_bytes())
    for note in plan.notes:
        notice(note)
    return prepare_package(
        checkpoint, plan, destination, progress=progress, threads=threads, draft=draft
    )


def prepare_package(
    checkpoint: Checkpoint,
    plan: CapacityPlan,
    destination: Path,
    *,
    progress: PrepareProgress,
    threads: int | None = None,
    draft: Path | None = None,
) -> Manifest:
    """Pack, compile, write, open and measure a plan; `destination` appears whole or not at all.

    `draft` is the file of the head that programs with learned proposals use. Raises PackageError,
    PackError, NativeBuildError or DraftError, the last for a head of another model.
    """
    threads = threads or usable_threads()
    head = _head_of(checkpoint, plan, draft)
    with package_directory(destination) as directory:
        weights, library = _build(checkpoint, plan, head, directory, progress)
        progress("write", 0, 1)
        manifest = write_package(
            directory,
            plan=plan,
            checkpoint=checkpoint,
            weights=weights,
            library=library,
            threads=threads,
            draft=None if head is None else head.entry,
        )
        progress("write", 1, 1)
        manifest = _measured(directory, manifest, progress)
        write_manifest(directory, manifest)
    return manifest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """A draft head that goes into the package."""

    path: Path
    head: DraftHead
    entry: DraftEntry


def _head_of(checkpoint: Checkpoint, plan: CapacityPlan, draft: Path | None) -> _Head | None:
    if not plan.needs_draft:
        return None
    if draft is None:
        raise PackageError("draft", "learned proposals need the file of a draft head")
    head = read_draft(draft, checkpoint.geometry, checkpoint.sha256)
    entry = DraftEntry(
        sha256=sha256_of(draft),
        target_sha256=head.record.target_sha256,
        token_count=len(head.token_ids),
        survivals=expected_survivals(head.record.report),
    )
    return _Head(path=draft, head=head, entry=entry)


def _build(
    checkpoint: Checkpoint,
    plan: CapacityPlan,
    head: _Head | None,
    directory: Path,
    progress: PrepareProgress,
) -> tuple[Mapping[str, npt.NDArray[Any]], CompiledLibrary | None]:
    """Return the weights in serving precision and the library, if this backend has one.

    A head is packed with the weights, or its file put into the directory.
    """
    progress("pack", 0, 1)
    if plan.backend != "native":
        shapes = dense_shapes(plan.geometry)
        weights = {name: np.asarray(checkpoint.float32(name), np.float32) for name in shapes}
        if head is not None:
            shutil.copyfile(head.path, directory / DRAFT_NAME)
        progress("pack", 1, 1)
        return weights, None

    precision: Literal["int8", "fp32"] = "fp32" if plan.precision == "fp32" else "int8"
    packed = pack(checkpoint, precision)
    packed |= {} if head is None else pack_draft(checkpoint, head.head, precision)
    progress("pack", 1, 1)
    progress("compile", 0, 1)
    library = _compile(plan, directory)
    progress("compile", 1, 1)
    return packed, library


def _compile(plan: CapacityPlan, directory: Path) -> CompiledLibrary:
    precision: Literal["int8", "fp32"] = "fp32" if plan.precision == "fp32" else "int8"
    built = build_library(plan.geometry, plan.pool, precision, directory / "programs.so")
    named = directory / f"programs-{sha256_of(built.path)[:12]}.so"
    built.path.rename(named)
    return CompiledLibrary(name=named.name, cpu_features=built.features, compiler=built.compiler)


def _measured(directory: Path, manifest: Manifest, progress: PrepareProgress) -> Manifest:
    """Open what was written, which checks it, and return the manifest with measured costs."""
    progress("open", 0, 1)
    package = open_package(directory)
    progress("open", 1, 1)
    total = len(package.catalog.graphs)
    done = 0
    progress("measure", 0, total)

    def on_measured(_name: str) -> None:
        nonlocal done
        done += 1
        progress("measure", done, total)

    costs = measure_programs(package, on_measured)
    package.close()
    return msgspec.structs.replace(manifest, costs_ns=costs)


__all__ = [
    "STAGES",
    "BackendChoice",
    "NativeBuildError",
    "Notice",
    "PrepareProgress",
    "choose_backend",
    "machine_memory_bytes",
    "prepare",
    "prepare_package",
    "usable_threads",
]
