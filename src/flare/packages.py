"""Where packages lie, and how a missing one is prepared."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from pathlib import Path

from rich.markup import escape
from rich.progress import TaskID

from flare.console import notices, step_progress
from flare.drafts import FoundDraft
from flare.request import PackageRequest
from helios import __version__
from helios.engine.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest
from ignition import native
from ignition.capacity import CapacityPlan
from ignition.fetch import cache_directory
from ignition.native.build import machine_features
from ignition.package_errors import PackageError
from ignition.package_manifest import read_manifest
from ignition.prepare import prepare_package
from ignition.sources import ModelSource, ModelSummary, read_source


def is_package(path: Path) -> bool:
    """Whether a directory is a prepared package."""
    return (path / MANIFEST_NAME).is_file()


def default_directory(
    model: ModelSummary, plan: CapacityPlan, draft: FoundDraft | None = None
) -> Path:
    """Return where a package lies unless the person says otherwise.

    Everything that changes its content is part of the name: another option, model, machine or
    version never meets a package that was prepared for something else.
    """
    key = {
        "model": model.sha256,
        "graphs": [program.graph.name for program in plan.programs],
        "pool": dataclasses.asdict(plan.pool),
        "machine": [platform.machine(), *sorted(machine_features())],
        "versions": [__version__, FORMAT_VERSION, _kernel_digest()],
    }
    if any(program.graph.reports_survival for program in plan.programs):
        # The names of programs do not say so.
        key["survival"] = "told"
    if draft is not None:
        key["draft"] = draft.sha256
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    name = f"{model.name}-{plan.precision}-{plan.backend}-{digest}"
    return cache_directory() / "packages" / name


def _kernel_digest() -> str:
    """Return a hash of the kernel sources: an edited kernel must not meet its old build."""
    digest = hashlib.sha256()
    for path in sorted(Path(native.__file__).parent.glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def existing(directory: Path) -> Manifest | None:
    """Return the manifest of a usable package, None when there is none or an unreadable one."""
    if not is_package(directory):
        return None
    try:
        return read_manifest(directory)
    except PackageError as error:
        notices().print(f"the package in {directory} is prepared again: {error}")
        return None


def prepare(
    source: ModelSource,
    plan: CapacityPlan,
    request: PackageRequest,
    directory: Path,
    draft: FoundDraft | None,
) -> Manifest:
    """Prepare a package with a progress bar. Raises PackageError, CheckpointError, OSError."""
    notices().print(
        f"preparing {source.name} ({plan.precision}, {plan.backend}, "
        f"{len(plan.programs)} programs, about {plan.prepare_s:.0f} s) in {directory}"
    )
    if draft is not None:
        notices().print(escape(f"with {draft.title}"), soft_wrap=True)
    for note in plan.notes:
        notices().print(escape(note))
    with step_progress() as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        report("read", 0, 1)
        checkpoint = read_source(source)
        report("read", 1, 1)
        return prepare_package(
            checkpoint,
            plan,
            directory,
            threads=request.threads,
            progress=report,
            draft=None if draft is None else draft.read(),
        )
