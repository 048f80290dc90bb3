"""PackageRequest: what the options of prepare, plan and run ask of a package, and its plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from rich.markup import escape

from flare.console import notices
from flare.errors import FlareError
from flare.options import (
    DEFAULT_CONCURRENCY,
    PackageOptions,
    Speculation,
    capacity_list,
    size_bytes,
)
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.geometry import ModelGeometry
from ignition.prepare import choose_backend, machine_memory_bytes, usable_threads
from ignition.round_shapes import (
    DEFAULT_DRAFT_TOKENS,
    DEFAULT_LEARNED_TOKENS,
    DEFAULT_TOKEN_CAPACITY,
)

SOURCES: Final = ("copy", "learned")
"""Where proposals may come from, in the order of options."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackageRequest:
    """Options as checked values; None leaves the choice to the plan."""

    backend: str
    """native, eager or cuda; never auto."""
    precision: str
    threads: int
    concurrency: int
    options: PackageOptions
    """What was typed: there None means that nobody said anything."""
    memory_bytes: int | None = None
    context_length_tokens: int | None = None
    request_buckets: tuple[int, ...] | None = None
    prefill_capacities: tuple[int, ...] | None = None
    draft_tokens: int = 0
    """Zero prepares no programs for copied proposals."""
    learned_tokens: int = 0
    """Zero prepares no programs for learned proposals."""
    draft: Path | None = None
    """The draft head's file or the draft model, where one was named."""
    speculative_token_capacity: int = DEFAULT_TOKEN_CAPACITY
    mixed_prefill: bool = False
    row_sharing: str = "off"
    """off, host or device: who deals the target rows of ragged rounds; off prepares and runs none,
    device those of the host too."""
    survival: bool = False

    @property
    def is_speculation_asked(self) -> bool:
        """Whether somebody says --speculation or --draft; else a package decides."""
        return self.options.speculation is not None or self.options.draft is not None

    @property
    def asked_draft_tokens(self) -> int | None:
        """Return --draft-tokens, whatever the source."""
        return self.options.draft_tokens

    @property
    def sources(self) -> tuple[str, ...]:
        """Where proposals are to come from."""
        return tuple(source for source in SOURCES if self.depth_of(source))

    def depth_of(self, source: str) -> int:
        """Return the most proposals of a source; zero prepares none."""
        return self.learned_tokens if source == "learned" else self.draft_tokens

    def plan(
        self,
        geometry: ModelGeometry,
        *,
        head_tokens: int = 0,
        draft_model: ModelGeometry | None = None,
    ) -> CapacityPlan:
        """Return the capacity plan for a model. Raises CapacityError or FlareError with the option.

        `head_tokens` are those that its draft head can propose; a separate draft model may take its
        place.
        """
        check_sharing_sources(self.row_sharing, self.sources)
        if self.survival and not self.sources:
            raise FlareError("--survival needs --speculation copy, learned or both")
        options = CapacityOptions(
            backend=self.backend,
            precision=self.precision,
            concurrency=self.concurrency,
            context_length_tokens=self.context_length_tokens,
            memory_bytes=self.memory_bytes,
            prefill_capacities=self.prefill_capacities,
            request_buckets=self.request_buckets,
            draft_tokens=self.draft_tokens,
            learned_tokens=self.learned_tokens,
            head_tokens=head_tokens,
            draft_model=draft_model,
            speculative_token_capacity=self.speculative_token_capacity,
            mixed_prefill=self.mixed_prefill,
            row_sharing=self.row_sharing,
            survival=self.survival,
        )
        return plan_capacity(geometry, options, machine_memory_bytes=machine_memory_bytes())


def check_sharing_sources(row_sharing: str, sources: tuple[str, ...]) -> None:
    """Raise FlareError for rounds of shared rows without the proposals that they are for."""
    if row_sharing != "off" and not sources:
        raise FlareError("--row-sharing needs --speculation copy, learned or both")
    if row_sharing == "device" and "learned" not in sources:
        raise FlareError("--row-sharing device needs --speculation learned or both")


def package_request(options: PackageOptions) -> PackageRequest:
    """Check what a command line asks of a model. Raises FlareError and NoCompilerError.

    Says aloud when no compiler leaves only the slow backend, and which precision follows.
    """
    precision = "auto" if options.precision is None else options.precision.value
    choice = choose_backend(options.backend.value, precision)
    if choice.notice is not None:
        notices().print(f"[yellow]{escape(choice.notice)}[/yellow]")
    chosen = options.speculation or (
        default_speculation(choice.backend) if options.draft is None else Speculation.LEARNED
    )
    check_effect(options, chosen.sources)
    return request_of(options, choice.backend, choice.precision, chosen.sources)


def request_of(
    options: PackageOptions, backend: str, precision: str, sources: tuple[str, ...]
) -> PackageRequest:
    """Return options as checked values, with proposals of those sources. Raises FlareError."""
    asked = options.draft_tokens
    copied = (asked or DEFAULT_DRAFT_TOKENS) if "copy" in sources else 0
    learned = (asked or DEFAULT_LEARNED_TOKENS) if "learned" in sources else 0
    return PackageRequest(
        backend=backend,
        precision=precision,
        threads=options.threads or usable_threads(),
        concurrency=options.concurrency or DEFAULT_CONCURRENCY,
        options=options,
        memory_bytes=None if options.memory is None else size_bytes(options.memory),
        context_length_tokens=options.context,
        request_buckets=_capacities(options.request_buckets, "--request-buckets"),
        prefill_capacities=_capacities(options.prefill_capacities, "--prefill-capacities"),
        draft_tokens=copied,
        learned_tokens=learned,
        draft=options.draft,
        speculative_token_capacity=options.speculative_token_capacity
        or max(DEFAULT_TOKEN_CAPACITY, copied + 1, learned + 1),
        mixed_prefill=options.mixed_prefill,
        row_sharing=options.row_sharing.value,
        survival=bool(options.survival),
    )


def _capacities(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else capacity_list(text, option)


def default_speculation(backend: str) -> Speculation:
    """Return what a backend does where nobody says: copies where it was measured not to be slower.

    Eager programs exist to be correct, and cuda ones take no proposals yet.
    """
    return Speculation.COPY if backend == "native" else Speculation.OFF


def check_effect(options: PackageOptions, sources: tuple[str, ...]) -> None:
    """Raise FlareError for options that do nothing without proposals of other sources."""
    if options.draft is not None and "learned" not in sources:
        raise FlareError("--draft needs --speculation learned or both")
    bounds = (
        ("--draft-tokens", options.draft_tokens),
        ("--speculative-token-capacity", options.speculative_token_capacity),
    )
    for option, value in bounds:
        if value is not None and not sources:
            raise FlareError(f"{option} needs --speculation copy, learned or both")
