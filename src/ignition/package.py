"""Opens a prepared package and makes its programs ready; what was not prepared is never added.

Opening a native package does not import PyTorch: that import alone takes longer than the rest.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from helios.engine.manifest import Manifest
from helios.engine.ports import PreparedProgram
from helios.scheduler import Catalog, InvalidCatalogError, ProposalSource, ResourceConfig
from ignition.capacity import resources_of
from ignition.draft.errors import DraftError
from ignition.draft.pair import DraftModel
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.package_errors import CudaUnavailableError, PackageError
from ignition.package_manifest import (
    catalog_of,
    check_files,
    geometry_of,
    model_geometry,
    pool_of,
    read_manifest,
)
from ignition.package_writer import DRAFT_NAME, DRAFT_WEIGHTS_NAME, WEIGHTS_NAME
from ignition.state import ServingState
from ignition.weight_shapes import dense_shapes

Weights = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """Load-time reductions of what was prepared; None keeps it."""

    row_count: int | None = None
    page_count: int | None = None
    context_length_tokens: int | None = None
    graphs: tuple[str, ...] | None = None
    """Names of the programs to keep."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPackage:
    """A package whose programs are ready; implements helios.engine.ports.PreparedModel."""

    manifest: Manifest
    catalog: Catalog
    resources: ResourceConfig
    programs: Sequence[PreparedProgram]
    cost_seeds_ns: Mapping[str, int]
    model: Any
    """The backend's model, which owns weights and state."""

    def close(self) -> None:
        """Release threads and scratch memory of the backend; no program may run afterwards."""
        self.model.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a backend needs to build its programs."""

    directory: Path
    manifest: Manifest
    geometry: ModelGeometry
    pool: PoolGeometry
    catalog: Catalog
    threads: int

    @property
    def needs_draft(self) -> bool:
        """Whether a loaded program proposes by itself; only then is the head's context kept."""
        return any(graph.source is ProposalSource.LEARNED for graph in self.catalog.graphs)


def open_package(
    directory: Path,
    *,
    limits: LoadLimits | None = None,
    verify: bool = False,
    threads: int | None = None,
) -> OpenedPackage:
    """Check and open a package. `verify` hashes every file, however large.

    Raises PackageError, naming the field, file or option. `threads` defaults to those that the
    package was prepared with.
    """
    manifest = read_manifest(directory)
    limits = limits or LoadLimits()
    parts = _Parts(
        directory=directory,
        manifest=manifest,
        geometry=geometry_of(manifest),
        pool=_reduced_pool(pool_of(manifest.pool), limits),
        catalog=_reduced_catalog(catalog_of(manifest.graphs), limits),
        threads=threads or manifest.machine.threads,
    )
    _check_machine(manifest)
    check_files(directory, manifest, verify=verify)
    model = _open_model(parts)
    kept = {graph.name for graph in parts.catalog.graphs}
    return OpenedPackage(
        manifest=manifest,
        catalog=parts.catalog,
        resources=resources_of(parts.pool),
        programs=model.programs,
        cost_seeds_ns={k: v for k, v in manifest.costs_ns.items() if k in kept and v > 0},
        model=model,
    )


def _reduced_pool(pool: PoolGeometry, limits: LoadLimits) -> PoolGeometry:
    for option, asked, prepared in (
        ("row_count", limits.row_count, pool.row_count),
        ("page_count", limits.page_count, pool.page_count),
        (
            "context_length_tokens",
            limits.context_length_tokens,
            pool.context_length_tokens,
        ),
    ):
        if asked is not None and not 1 <= asked <= prepared:
            raise PackageError(
                option, f"{asked} is not within the {prepared} that the package was prepared for"
            )
    return dataclasses.replace(
        pool,
        row_count=limits.row_count or pool.row_count,
        page_count=limits.page_count or pool.page_count,
        context_length_tokens=limits.context_length_tokens or pool.context_length_tokens,
    )


def _reduced_catalog(catalog: Catalog, limits: LoadLimits) -> Catalog:
    if limits.graphs is None:
        return catalog
    prepared = {graph.name: graph for graph in catalog.graphs}
    for name in limits.graphs:
        if name not in prepared:
            raise PackageError(
                "graphs", f"{name} was not prepared; the package has {', '.join(prepared)}"
            )
    try:
        return Catalog.of(prepared[name] for name in limits.graphs)
    except InvalidCatalogError as error:
        raise PackageError("graphs", str(error)) from error


def _check_machine(manifest: Manifest) -> None:
    """A native package is code for one machine; any other package only names where it was made."""
    if manifest.machine.threads < 1:
        raise PackageError("machine.threads", f"must be positive, not {manifest.machine.threads}")
    if manifest.backend != "native":
        return
    from ignition.native.build import machine_features  # noqa: PLC0415 - only native needs it.

    if manifest.machine.architecture != platform.machine():
        raise PackageError(
            "machine.architecture",
            f"prepared for {manifest.machine.architecture}, this machine is {platform.machine()}: "
            "prepare it again here",
        )
    missing = sorted(set(manifest.machine.cpu_features) - machine_features())
    if missing:
        raise PackageError(
            "machine.cpu_features",
            f"this machine lacks {', '.join(missing)}: prepare the package again here",
        )


def _open_model(parts: _Parts) -> Any:
    if parts.manifest.backend == "native":
        return _open_native(parts)
    if parts.manifest.backend == "eager":
        return _open_eager(parts)
    return _open_cuda(parts)


def _open_native(parts: _Parts) -> Any:
    from ignition.native.pack_draft import PREFIX  # noqa: PLC0415 - only native needs it.
    from ignition.programs.native import NativeModel  # noqa: PLC0415 - only native needs it.
    from ignition.programs.native_library import NativeLibraryError  # noqa: PLC0415 - the same.

    draft = parts.manifest.draft
    own = None if draft is None else draft.library
    libraries = [name for name in parts.manifest.files if name.endswith(".so") and name != own]
    if len(libraries) != 1:
        raise PackageError(
            "files", f"a native package has one .so file of its model, this has {libraries}"
        )
    kv_dtype = np.float16 if parts.manifest.precision == "int8" else np.float32
    arrays = read_weights(parts.directory / WEIGHTS_NAME)
    if not parts.needs_draft:
        arrays = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
    pair = _draft_model(parts)
    layers = int(parts.needs_draft and pair is None)
    try:
        return NativeModel(
            geometry=parts.geometry,
            pool=parts.pool,
            catalog=parts.catalog,
            arrays=arrays,
            library=parts.directory / libraries[0],
            state=ServingState.allocate(parts.geometry, parts.pool, kv_dtype, draft_layers=layers),
            threads=parts.threads,
            pair=pair,
        )
    except NativeLibraryError as error:
        raise PackageError(f"files.{libraries[0]}", str(error)) from error


def _open_eager(parts: _Parts) -> Any:
    import torch  # noqa: PLC0415 - opening a native package must not import it.

    from ignition.draft.file import (  # noqa: PLC0415 - only eager reads the file.
        DraftHead,
        read_draft,
    )
    from ignition.programs.eager import EagerModel  # noqa: PLC0415 - the same.

    weights = _dense_weights(parts.directory / WEIGHTS_NAME, parts.geometry)
    try:
        draft: DraftHead | DraftModel | None = _draft_model(parts)
        if parts.needs_draft and draft is None:
            path, sha256 = parts.directory / DRAFT_NAME, parts.manifest.model.sha256
            draft = read_draft(path, parts.geometry, sha256)
        return EagerModel(
            geometry=parts.geometry,
            pool=parts.pool,
            catalog=parts.catalog,
            weights={name: torch.from_numpy(array) for name, array in weights.items()},
            threads=parts.threads,
            draft=draft,
        )
    except DraftError as error:
        raise PackageError(f"files.{DRAFT_NAME}", str(error)) from error


def _open_cuda(parts: _Parts) -> Any:
    from ignition.programs.cuda import CudaModel, require_device  # noqa: PLC0415 - imports torch.

    try:
        require_device()
    except CudaUnavailableError as error:
        raise PackageError("backend", f"a cuda package needs a GPU, and {error}") from error
    return CudaModel(
        geometry=parts.geometry,
        pool=parts.pool,
        catalog=parts.catalog,
        weights=_dense_weights(parts.directory / WEIGHTS_NAME, parts.geometry),
    )


def _draft_model(parts: _Parts) -> DraftModel | None:
    """Return the separate draft model of a package whose loaded programs propose with one.

    Raises PackageError.
    """
    draft = parts.manifest.draft
    if not parts.needs_draft or draft is None or draft.model is None:
        return None
    if DRAFT_WEIGHTS_NAME not in parts.manifest.files:
        raise PackageError(f"files.{DRAFT_WEIGHTS_NAME}", "missing, and the draft model needs it")
    geometry = model_geometry(draft.model, "draft.model")
    path = parts.directory / DRAFT_WEIGHTS_NAME
    if draft.library is None:
        return DraftModel(geometry=geometry, arrays=_dense_weights(path, geometry))
    library = parts.directory / draft.library
    return DraftModel(geometry=geometry, arrays=read_weights(path), library=library)


def _dense_weights(path: Path, geometry: ModelGeometry) -> Weights:
    """Return the float32 weights of a model whose programs are not native. Raises PackageError."""
    weights = read_weights(path)
    for name, shape in dense_shapes(geometry).items():
        if name not in weights:
            raise PackageError(f"files.{path.name}", f"tensor {name} is missing")
        array = weights[name]
        if array.shape != shape or array.dtype != np.float32:
            raise PackageError(
                f"files.{path.name}",
                f"tensor {name} is {array.dtype}{list(array.shape)}, not float32{list(shape)}",
            )
    return weights


def read_weights(path: Path) -> Weights:
    """Return every tensor of the weights file. Raises PackageError."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise PackageError(f"files.{path.name}", f"not readable: {error}") from error
