"""PackageRequest: what the options of prepare, plan and run ask of a package, and its plan."""

from __future__ import annotations

import dataclasses

from rich.markup import escape

from flare.console import notices
from flare.errors import FlareError
from flare.options import Backend, Precision, Speculation, capacity_list, size_bytes
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.geometry import ModelGeometry
from ignition.prepare import choose_backend, machine_memory_bytes, usable_threads
from ignition.round_shapes import DEFAULT_DRAFT_TOKENS, DEFAULT_TOKEN_CAPACITY


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackageRequest:
    """Options as checked values; None leaves the choice to the plan."""

    backend: str
    """native, eager or cuda; never auto."""
    precision: str
    threads: int
    concurrency: int
    memory_bytes: int | None = None
    context_length_tokens: int | None = None
    request_buckets: tuple[int, ...] | None = None
    prefill_capacities: tuple[int, ...] | None = None
    draft_tokens: int = 0
    """Zero prepares no programs for proposals."""
    is_speculation_asked: bool = False
    """The command line says --speculation or one of its options; else a package decides."""
    speculative_token_capacity: int = DEFAULT_TOKEN_CAPACITY
    mixed_prefill: bool = False

    def plan(self, geometry: ModelGeometry) -> CapacityPlan:
        """Return the capacity plan for a model. Raises CapacityError naming the option."""
        options = CapacityOptions(
            backend=self.backend,
            precision=self.precision,
            concurrency=self.concurrency,
            context_length_tokens=self.context_length_tokens,
            memory_bytes=self.memory_bytes,
            prefill_capacities=self.prefill_capacities,
            request_buckets=self.request_buckets,
            draft_tokens=self.draft_tokens,
            speculative_token_capacity=self.speculative_token_capacity,
            mixed_prefill=self.mixed_prefill,
        )
        return plan_capacity(geometry, options, machine_memory_bytes=machine_memory_bytes())


def package_request(
    *,
    backend: Backend,
    precision: Precision | None,
    memory: str | None,
    concurrency: int,
    threads: int | None,
    context: int | None,
    request_buckets: str | None,
    prefill_capacities: str | None,
    speculation: Speculation | None,
    draft_tokens: int | None,
    speculative_token_capacity: int | None,
    mixed_prefill: bool,
) -> PackageRequest:
    """Check the options of a command line. Raises FlareError and NoCompilerError.

    Says aloud when no compiler leaves only the slow backend, and which precision follows.
    """
    choice = choose_backend(backend.value, "auto" if precision is None else precision.value)
    if choice.notice is not None:
        notices().print(f"[yellow]{escape(choice.notice)}[/yellow]")
    drafts = _draft_tokens(
        speculation or default_speculation(choice.backend),
        draft_tokens,
        speculative_token_capacity,
    )
    return PackageRequest(
        backend=choice.backend,
        precision=choice.precision,
        threads=threads or usable_threads(),
        concurrency=concurrency,
        memory_bytes=None if memory is None else size_bytes(memory),
        context_length_tokens=context,
        request_buckets=(
            None if request_buckets is None else capacity_list(request_buckets, "--request-buckets")
        ),
        prefill_capacities=(
            None
            if prefill_capacities is None
            else capacity_list(prefill_capacities, "--prefill-capacities")
        ),
        draft_tokens=drafts,
        is_speculation_asked=speculation is not None or draft_tokens is not None,
        speculative_token_capacity=(
            max(DEFAULT_TOKEN_CAPACITY, drafts + 1)
            if speculative_token_capacity is None
            else speculative_token_capacity
        ),
        mixed_prefill=mixed_prefill,
    )


def default_speculation(backend: str) -> Speculation:
    """Return what a backend does where nobody says: copies where it was measured not to be slower.

    Eager programs exist to be correct, and cuda ones take no proposals yet.
    """
    return Speculation.COPY if backend == "native" else Speculation.OFF


def _draft_tokens(speculation: Speculation, asked: int | None, capacity: int | None) -> int:
    """Return the most proposals to prepare for. Raises FlareError for options without effect."""
    if speculation is Speculation.COPY:
        return DEFAULT_DRAFT_TOKENS if asked is None else asked
    for option, value in (("--draft-tokens", asked), ("--speculative-token-capacity", capacity)):
        if value is not None:
            raise FlareError(f"{option} needs --speculation copy")
    return 0
