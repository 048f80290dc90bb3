"""Reads and checks the manifest of a package; nothing else of the package is opened here."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from helios.engine.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    GraphEntry,
    Manifest,
    ModelEntry,
    PoolEntry,
)
from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    InvalidCatalogError,
    InvalidPolicyError,
    ProposalSource,
    RowAllocation,
)
from ignition.capacity import BACKENDS, MAX_ROUND_TOKENS, PRECISIONS, kind_name, resources_of
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.package_errors import PackageError

HASHED_AT_OPEN_BYTES: Final = 16 << 20
"""Files up to this size are hashed at every opening; larger ones only when asked to."""

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MANIFEST_LIMIT_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 20
_KINDS: Final = {kind_name(kind): kind for kind in GraphKind}
_SOURCES: Final = {source.name.lower(): source for source in ProposalSource}
_ALLOCATIONS: Final = {allocation.name.lower(): allocation for allocation in RowAllocation}
_EXECUTED: Final = (
    *(GraphKind.INITIALIZE, GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.DECODE),
    *(GraphKind.TERMINAL, GraphKind.SPECULATIVE, GraphKind.MIXED),
)
"""Kinds that there are prepared programs of."""
_ROUNDS: Final = (GraphKind.SPECULATIVE, GraphKind.MIXED)


def read_manifest(directory: Path) -> Manifest:
    """Return the checked manifest of a package. Raises PackageError, naming the field."""
    path = directory / MANIFEST_NAME
    try:
        if path.stat().st_size > _MANIFEST_LIMIT_BYTES:
            raise PackageError(MANIFEST_NAME, f"larger than {_MANIFEST_LIMIT_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise PackageError(
            MANIFEST_NAME, f"cannot be read in {directory.name}: {error.strerror}"
        ) from error

    _check_version(text)
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise PackageError(place.rstrip("`") or MANIFEST_NAME, reason) from error
    for field, allowed in (("backend", BACKENDS), ("precision", PRECISIONS)):
        value = getattr(manifest, field)
        if value not in allowed:
            raise PackageError(field, f"{value!r} is none of {', '.join(allowed)}")
    _check_names(manifest)
    geometry = geometry_of(manifest)
    _check_capacities(geometry, pool_of(manifest.pool), catalog_of(manifest.graphs))
    _check_draft(manifest)
    return manifest


def _check_capacities(geometry: ModelGeometry, pool: PoolGeometry, catalog: Catalog) -> None:
    """Capacities that no plan makes would ask for absurd allocations, so they are found here."""
    if pool.context_length_tokens > geometry.context_length_tokens:
        raise PackageError(
            "pool.context_length_tokens", "longer than the model's context_length_tokens"
        )
    if pool.page_count > pool.row_count * pool.pages_per_row:
        raise PackageError("pool.page_count", "more pages than all rows together can use")
    for graph in catalog.graphs:
        for field in ("token_capacity", "prefill_capacity"):
            if getattr(graph, field) > pool.context_length_tokens:
                raise PackageError(f"graphs.{graph.name}", f"its {field} is past the context")
        if graph.kind in _ROUNDS and graph.rows > MAX_ROUND_TOKENS:
            raise PackageError(f"graphs.{graph.name}", f"more than {MAX_ROUND_TOKENS} target rows")
        if graph.kind not in _EXECUTED:
            raise PackageError(f"graphs.{graph.name}", "this version executes no such program")


def _check_draft(manifest: Manifest) -> None:
    """A program that proposes needs a draft, and a draft is for the package's own model alone."""
    draft, model = manifest.draft, manifest.model
    if draft is None:
        for graph in manifest.graphs:
            if graph.source == ProposalSource.LEARNED.name.lower():
                raise PackageError(
                    f"graphs.{graph.name}", "proposes with a draft head, and the package has none"
                )
        return
    for field in ("sha256", "target_sha256"):
        digest = getattr(draft, field)
        if not _SHA256.fullmatch(digest):
            raise PackageError(f"draft.{field}", f"{digest!r} is not a sha256")
    if draft.target_sha256 != model.sha256:
        raise PackageError(
            "draft.target_sha256",
            f"the draft head is for {draft.target_sha256[:12]}, the package's {model.name} is "
            f"{model.sha256[:12]}: prepare it again with a head that was trained for it",
        )
    if draft.model is not None:
        _check_draft_model(manifest, draft.model, draft.library)
    if not 1 <= draft.token_count <= manifest.tokenizer.vocabulary_size:
        raise PackageError(
            "draft.token_count",
            f"must be 1 to {manifest.tokenizer.vocabulary_size}, not {draft.token_count}",
        )
    falling = (1.0, *draft.survivals, 0.0)
    if not all(above >= below for above, below in itertools.pairwise(falling)):
        raise PackageError("draft.survivals", f"must fall from 1 to 0, not {draft.survivals}")


def _check_draft_model(manifest: Manifest, model: ModelEntry, library: str | None) -> None:
    assert manifest.draft is not None
    if model.sha256 != manifest.draft.sha256:
        raise PackageError(
            "draft.model.sha256", f"{model.sha256[:12]} is not the draft's {manifest.draft.sha256}"
        )
    size = model_geometry(model, "draft.model").vocabulary_size
    if size != geometry_of(manifest).vocabulary_size:
        raise PackageError(
            "draft.model.geometry.vocabulary_size",
            f"{size}, the package's model has {geometry_of(manifest).vocabulary_size}",
        )
    if (library is None) == (manifest.backend == "native"):
        raise PackageError(
            "draft.library", f"{library!r}, where native packages alone have a .so file for it"
        )


def _check_version(text: bytes) -> None:
    """A manifest of another version may differ anywhere, so its version is looked at first."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise PackageError(MANIFEST_NAME, f"not JSON: {error}") from error
    except RecursionError as error:
        raise PackageError(MANIFEST_NAME, "nested too deeply") from error
    if not isinstance(document, dict) or "format_version" not in document:
        raise PackageError("format_version", f"missing, so {MANIFEST_NAME} is no package manifest")
    version = document["format_version"]
    if version != FORMAT_VERSION or isinstance(version, (bool, float)):
        raise PackageError(
            "format_version",
            f"the package has {version!r}, this version reads {FORMAT_VERSION}: prepare it again",
        )


def _check_names(manifest: Manifest) -> None:
    """File names must stay inside the package, and every file that is named must be listed."""
    for name, digest in manifest.files.items():
        field = f"files.{name}"
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST_NAME:
            raise PackageError(field, "not a plain file name")
        if not _SHA256.fullmatch(digest):
            raise PackageError(field, f"{digest!r} is not a sha256")
        if manifest.sizes_bytes.get(name, -1) < 0:
            raise PackageError(f"sizes_bytes.{name}", "missing or negative")
    named = {"tokenizer.file": manifest.tokenizer.file}
    if manifest.tokenizer.chat_template is not None:
        named["tokenizer.chat_template"] = manifest.tokenizer.chat_template
    if manifest.draft is not None and manifest.draft.library is not None:
        named["draft.library"] = manifest.draft.library
    for field, name in named.items():
        if name not in manifest.files:
            raise PackageError(field, f"{name!r} is not among the files of the package")


def geometry_of(manifest: Manifest) -> ModelGeometry:
    """Return the model's geometry. Raises PackageError, naming the field."""
    return model_geometry(manifest.model, "model")


def model_geometry(model: ModelEntry, field: str) -> ModelGeometry:
    """Return the geometry of a model entry, which is called `field` in errors (PackageError)."""
    entry = dict(model.geometry)
    fields = {each.name: str(each.type) for each in dataclasses.fields(ModelGeometry)}
    for name in entry.keys() - fields.keys():
        raise PackageError(f"{field}.geometry.{name}", "unknown field")
    for name, type_name in fields.items():
        if name not in entry:
            raise PackageError(f"{field}.geometry.{name}", "missing")
        if not _is_plausible(type_name, entry[name]):
            raise PackageError(f"{field}.geometry.{name}", f"impossible value {entry[name]!r}")
    scaling = entry.pop("rope_scaling")
    pairs = tuple((k, float(v)) for k, v in scaling) if isinstance(scaling, list) else None
    return ModelGeometry(**entry, rope_scaling=pairs)  # type: ignore[arg-type]


def _is_plausible(type_name: str, value: object) -> bool:
    if type_name == "bool":
        return isinstance(value, bool)
    if type_name == "int":
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31
    if type_name == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    if type_name == "str":
        return isinstance(value, str)
    return value is None or isinstance(value, list)


def pool_of(entry: PoolEntry) -> PoolGeometry:
    """Return the serving capacities. Raises PackageError, naming the field."""
    pool = PoolGeometry(
        row_count=entry.row_count,
        page_count=entry.page_count,
        page_size_tokens=entry.page_size_tokens,
        context_length_tokens=entry.context_length_tokens,
    )
    try:
        resources_of(pool)
    except InvalidPolicyError as error:
        field, _, reason = str(error).partition(" ")
        raise PackageError(field.replace("resources.", "pool."), reason) from error
    return pool


def catalog_of(graphs: Iterable[GraphEntry]) -> Catalog:
    """Return the catalog of manifest entries. Raises PackageError, naming the graph."""
    try:
        return Catalog.of([descriptor_of(entry) for entry in graphs])
    except InvalidCatalogError as error:
        raise PackageError("graphs", str(error)) from error


def descriptor_of(entry: GraphEntry) -> GraphDescriptor:
    """Return the descriptor of one entry. Raises PackageError, naming the graph."""
    kind = _KINDS.get(entry.kind)
    if kind is None:
        raise PackageError(f"graphs.{entry.name}.kind", f"{entry.kind!r} is no known kind")
    for field, known in (("source", _SOURCES), ("allocation", _ALLOCATIONS)):
        value = getattr(entry, field)
        if value not in known:
            raise PackageError(
                f"graphs.{entry.name}.{field}", f"{value!r} is none of {', '.join(known)}"
            )
    try:
        graph = GraphDescriptor(
            kind=kind,
            batch_capacity=entry.batch_capacity,
            token_capacity=entry.token_capacity,
            proposal_depth=entry.proposal_depth,
            source=_SOURCES[entry.source],
            allocation=_ALLOCATIONS[entry.allocation],
            speculation_enabled=entry.speculation_enabled,
            prefill_capacity=entry.prefill_capacity,
            packed_capacity=entry.packed_capacity,
            confidence_width=entry.confidence_width,
            reports_survival=entry.reports_survival,
        )
    except InvalidCatalogError as error:
        raise PackageError(f"graphs.{entry.name}", str(error)) from error
    if graph.name != entry.name:
        raise PackageError(f"graphs.{entry.name}.name", f"its shape is that of {graph.name}")
    return graph


def check_files(directory: Path, manifest: Manifest, *, verify: bool) -> None:
    """Check that every file is there, has its size and, when small or asked to, its hash.

    Raises PackageError, naming the file.
    """
    for name, digest in manifest.files.items():
        field, path = f"files.{name}", directory / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise PackageError(field, f"cannot be read: {error.strerror}") from error
        expected = manifest.sizes_bytes[name]
        if size != expected:
            raise PackageError(field, f"has {size} bytes, the manifest says {expected}")
        if (verify or size <= HASHED_AT_OPEN_BYTES) and sha256_of(path) != digest:
            raise PackageError(field, "its content is not what was prepared (sha256 differs)")


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
