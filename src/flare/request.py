"""PackageRequest: what the options of prepare, plan and run ask of a package, and its plan."""

from __future__ import annotations

import dataclasses

from rich.markup import escape

from flare.console import notices
from flare.options import Backend, Precision, capacity_list, size_bytes
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.geometry import ModelGeometry
from ignition.prepare import choose_backend, machine_memory_bytes, usable_threads


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
) -> PackageRequest:
    """Check the options of a command line. Raises FlareError and NoCompilerError.

    Says aloud when no compiler leaves only the slow backend, and which precision follows.
    """
    choice = choose_backend(backend.value, "auto" if precision is None else precision.value)
    if choice.notice is not None:
        notices().print(f"[yellow]{escape(choice.notice)}[/yellow]")
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
    )
