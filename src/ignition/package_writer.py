"""Writes a prepared package: into a directory beside the destination, then renamed as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from helios import __version__
from helios.engine.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    BufferEntry,
    DraftEntry,
    GraphEntry,
    MachineEntry,
    Manifest,
    ModelEntry,
    PoolEntry,
    TokenizerEntry,
)
from ignition.capacity import CapacityPlan, PlannedProgram, kind_name
from ignition.checkpoint import Checkpoint
from ignition.package_errors import PackageError
from ignition.package_manifest import sha256_of
from ignition.programs.buffers import BufferSpec

WEIGHTS_NAME: Final = "weights.safetensors"
TOKENIZER_NAME: Final = "tokenizer.json"
TEMPLATE_NAME: Final = "chat_template.jinja"
DRAFT_NAME: Final = "draft.safetensors"
"""The head's own file, in packages whose programs read it; native ones have it packed."""
DRAFT_WEIGHTS_NAME: Final = "draft-weights.safetensors"
"""The weights of a separate draft model, in the precision and layout of the package's own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLibrary:
    """The machine-bound part of a native package, already inside it."""

    name: str
    """File name with a hash in it: a process that has loaded a library keeps it by its path."""
    cpu_features: tuple[str, ...]
    """Sorted instruction-set features that the library uses."""
    compiler: str


@contextlib.contextmanager
def package_directory(destination: Path) -> Iterator[Path]:
    """Yield an empty directory that becomes `destination` when the block ends without an error.

    Raises PackageError when the destination is something that is no package; it is left alone.
    """
    if destination.exists() and not _may_be_replaced(destination):
        raise PackageError(
            "destination", f"{destination.name} exists and is no package, so it is left alone"
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    partial.chmod(0o755)
    try:
        yield partial
        _move_into_place(partial, destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _may_be_replaced(destination: Path) -> bool:
    if not destination.is_dir():
        return False
    return (destination / MANIFEST_NAME).is_file() or not any(destination.iterdir())


def _move_into_place(partial: Path, destination: Path) -> None:
    replaced = destination.with_name(f".{destination.name}.{os.getpid()}.replaced")
    if destination.exists():
        destination.rename(replaced)
    partial.rename(destination)
    shutil.rmtree(replaced, ignore_errors=True)


def write_package(
    directory: Path,
    *,
    plan: CapacityPlan,
    checkpoint: Checkpoint,
    weights: Mapping[str, npt.NDArray[np.generic]],
    library: CompiledLibrary | None,
    threads: int,
    draft: DraftEntry | None = None,
) -> Manifest:
    """Write the package around what is already in the directory: libraries, a draft's files.

    Returns the manifest, which lists every file of the directory; `draft` goes into it.
    """
    write_weights(directory / WEIGHTS_NAME, weights)
    (directory / TOKENIZER_NAME).write_text(checkpoint.text.tokenizer_json, encoding="utf-8")
    if checkpoint.text.chat_template is not None:
        template = checkpoint.text.chat_template
        (directory / TEMPLATE_NAME).write_text(template, encoding="utf-8", newline="")

    manifest = _manifest_of(directory, plan, checkpoint, library, threads)
    manifest = msgspec.structs.replace(manifest, draft=draft)
    write_manifest(directory, manifest)
    return manifest


def write_weights(path: Path, weights: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Write arrays by name, for everybody to read."""
    save_file({name: np.ascontiguousarray(array) for name, array in weights.items()}, path)
    path.chmod(0o644)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, replacing an earlier one at once."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    partial = directory / f".{MANIFEST_NAME}.partial"
    partial.write_bytes(text + b"\n")
    partial.replace(directory / MANIFEST_NAME)


def _manifest_of(
    directory: Path,
    plan: CapacityPlan,
    checkpoint: Checkpoint,
    library: CompiledLibrary | None,
    threads: int,
) -> Manifest:
    names = sorted(path.name for path in directory.iterdir())
    return Manifest(
        format_version=FORMAT_VERSION,
        flare_version=__version__,
        model=model_entry(checkpoint),
        pool=PoolEntry(**dataclasses.asdict(plan.pool)),
        backend=plan.backend,
        precision=plan.precision,
        graphs=tuple(_graph_entry(program) for program in plan.programs),
        tokenizer=_tokenizer_entry(checkpoint),
        machine=MachineEntry(
            architecture=platform.machine(),
            cpu_features=library.cpu_features if library else (),
            threads=threads,
            compiler=library.compiler if library else None,
        ),
        files={name: sha256_of(directory / name) for name in names},
        sizes_bytes={name: (directory / name).stat().st_size for name in names},
    )


def model_entry(checkpoint: Checkpoint) -> ModelEntry:
    """Return what a manifest says of a model."""
    geometry = dataclasses.asdict(checkpoint.geometry)
    if geometry["rope_scaling"] is not None:
        geometry["rope_scaling"] = list(geometry["rope_scaling"])
    return ModelEntry(
        name=checkpoint.name,
        source=checkpoint.source,
        sha256=checkpoint.sha256,
        geometry=geometry,
    )


def _tokenizer_entry(checkpoint: Checkpoint) -> TokenizerEntry:
    text = checkpoint.text
    return TokenizerEntry(
        file=TOKENIZER_NAME,
        vocabulary_size=checkpoint.geometry.vocabulary_size,
        bos_token_id=text.bos_token_id,
        eos_token_ids=text.eos_token_ids,
        add_bos=text.add_bos,
        chat_template=None if text.chat_template is None else TEMPLATE_NAME,
    )


def _graph_entry(program: PlannedProgram) -> GraphEntry:
    return GraphEntry(
        name=program.graph.name,
        kind=kind_name(program.graph.kind),
        batch_capacity=program.graph.batch_capacity,
        token_capacity=program.graph.token_capacity,
        purpose=program.purpose,
        buffers=tuple(_buffer_entry(buffer) for buffer in program.buffers),
        proposal_depth=program.graph.proposal_depth,
        source=program.graph.source.name.lower(),
        allocation=program.graph.allocation.name.lower(),
        speculation_enabled=program.graph.speculation_enabled,
        prefill_capacity=program.graph.prefill_capacity,
        packed_capacity=program.graph.packed_capacity,
        confidence_width=program.graph.confidence_width,
        reports_survival=program.graph.reports_survival,
    )


def _buffer_entry(buffer: BufferSpec) -> BufferEntry:
    return BufferEntry(name=buffer.name, role=buffer.role, shape=buffer.shape, dtype=buffer.dtype)
