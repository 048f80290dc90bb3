"""The manifest of a prepared package: what it holds, for which model, machine and format.

The manifest is data; opening and checking a package is ignition's work, and reading the tokenizer
and template out of it is the runtime's. Neither needs the other.
"""

from __future__ import annotations

from typing import Final

import msgspec

FORMAT_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"


class BufferEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One named static buffer of a program."""

    name: str
    role: str
    """input, output, state or weight."""
    shape: tuple[int, ...]
    dtype: str


class GraphEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One prepared program."""

    name: str
    kind: str
    """A value of helios.scheduler.catalog.KIND_NAMES."""
    batch_capacity: int
    token_capacity: int
    purpose: str
    """One line for people: what the program is for."""
    buffers: tuple[BufferEntry, ...]
    proposal_depth: int = 0
    source: str = "none"
    """Where proposals come from: none, learned or copy."""
    allocation: str = "none"
    """Who allocates target rows: none, host or device."""
    speculation_enabled: bool = False
    """A program of the speculative modes."""
    prefill_capacity: int = 0
    """Prompt tokens of a mixed program."""
    packed_capacity: int = 0
    """Target rows that the lanes of a ragged round share; zero: W for each of B lanes."""
    confidence_width: int = 0
    """Proposals whose confidence the program reports: its depth, or zero."""
    reports_survival: bool = False
    """Writes the chance of every prefix of proposals that it verifies."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Which model was prepared."""

    name: str
    """The name that the API serves it under."""
    source: str
    """File name or directory name it was read from (never a full path)."""
    sha256: str
    """Hash of the source weights."""
    geometry: dict[str, int | float | str | bool | list[tuple[str, float]] | None]
    """Fields of ignition.geometry.ModelGeometry."""


class PoolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Serving capacities."""

    row_count: int
    page_count: int
    page_size_tokens: int
    context_length_tokens: int


class TokenizerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Text side of the model."""

    file: str
    """tokenizer.json of the `tokenizers` library, inside the package."""
    vocabulary_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool
    chat_template: str | None
    """File name of the jinja2 chat template inside the package."""


class MachineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine-bound package was compiled for."""

    architecture: str
    cpu_features: tuple[str, ...]
    """Sorted instruction-set features that the programs use."""
    threads: int
    compiler: str | None


class DraftEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What proposes in programs with learned proposals: a draft head, or a model of its own."""

    sha256: str
    """Of the head's file, or of the draft model's source weights."""
    target_sha256: str
    """Of the source weights that it proposes for; those of the package's own model."""
    token_count: int
    """Tokens that it can propose."""
    survivals: tuple[float, ...] = ()
    """How often its first 1, 2, ... proposals are expected to be all accepted, by the report of a
    head's training; where a server's estimates start."""
    model: ModelEntry | None = None
    """The separate draft model; None: a head."""
    library: str | None = None
    """The .so file of the draft model's geometry, in native packages."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `flare run` must know before it opens the weights."""

    format_version: int
    flare_version: str
    model: ModelEntry
    pool: PoolEntry
    backend: str
    """native, eager or cuda."""
    precision: str
    """int8 or fp32."""
    graphs: tuple[GraphEntry, ...]
    tokenizer: TokenizerEntry
    machine: MachineEntry
    files: dict[str, str]
    """File name inside the package -> sha256."""
    sizes_bytes: dict[str, int] = {}
    """File name inside the package -> size; what opening checks of files too large to hash."""
    costs_ns: dict[str, int] = {}
    """Graph name -> replay duration measured at prepare time; it seeds stale estimates only."""
    draft: DraftEntry | None = None
    """None: no program proposes by itself."""
