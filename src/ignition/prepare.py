"""Prepares a model: read, plan, pack or compile, write the package, open and measure it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy.typing as npt

from helios.engine.manifest import Manifest
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.checkpoint import Checkpoint
from ignition.libraries import compiled_library, kernel_precision
from ignition.measure import measure_programs
from ignition.native.build import NativeBuildError, NoCompilerError, find_compiler
from ignition.native.pack import pack
from ignition.package import open_package
from ignition.package_writer import (
    CompiledLibrary,
    package_directory,
    write_manifest,
    write_package,
)
from ignition.prepare_draft import Draft, dense_weights, packaged_draft
from ignition.sources import ModelSource, read_source

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
    draft: Draft | None = None,
) -> Manifest:
    """Read a model and prepare it, with a draft where programs propose.

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
    draft: Draft | None = None,
) -> Manifest:
    """Pack, compile, write, open and measure a plan; `destination` appears whole or not at all.

    `draft` is what proposes where programs do so: the file of a head, or a draft model. Raises
    PackageError, PackError, NativeBuildError or DraftError, the last for one of another model.
    """
    threads = threads or usable_threads()
    part, entry = packaged_draft(checkpoint, plan, draft), None
    with package_directory(destination) as directory:
        weights, library = _build(checkpoint, plan, directory, progress)
        if part is not None:
            entry, arrays = part.add(directory, plan, checkpoint)
            weights = {**weights, **arrays}
        progress("write", 0, 1)
        manifest = write_package(
            directory,
            plan=plan,
            checkpoint=checkpoint,
            weights=weights,
            library=library,
            threads=threads,
            draft=entry,
        )
        progress("write", 1, 1)
        manifest = _measured(directory, manifest, progress)
        write_manifest(directory, manifest)
    return manifest


def _build(
    checkpoint: Checkpoint,
    plan: CapacityPlan,
    directory: Path,
    progress: PrepareProgress,
) -> tuple[Mapping[str, npt.NDArray[Any]], CompiledLibrary | None]:
    """Return the weights in serving precision and the library, if this backend has one."""
    progress("pack", 0, 1)
    if plan.backend != "native":
        weights = dense_weights(checkpoint)
        progress("pack", 1, 1)
        return weights, None

    packed = pack(checkpoint, kernel_precision(plan.precision))
    progress("pack", 1, 1)
    progress("compile", 0, 1)
    library = compiled_library(directory, "programs", plan.geometry, plan.pool, plan.precision)
    progress("compile", 1, 1)
    return packed, library


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
