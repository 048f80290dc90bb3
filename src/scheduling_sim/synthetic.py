"""The synthetic platform: a small catalog of every kind with costs from five plain numbers.

Its numbers have the proportions of a GPU: a decode step hardly grows with its batch, a prefill is
nearly linear beyond one pass over the weights, state operations are almost free. It validates the
simulator and serves tests; figures for people come from measured platforms.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    ResourceConfig,
    RowAllocation,
)
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.platform import HostCosts, Platform

_STATE_KINDS = (
    GraphKind.INITIALIZE,
    GraphKind.TERMINAL,
    GraphKind.RESTORE,
    GraphKind.SNAPSHOT,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticCosts:
    """Implements `CostModel`: `weights + rows + prompt tokens + context + draft steps`."""

    weights_ns: int = 3_000_000
    """One pass over the weights."""
    row_ns: int = 20_000
    """One target row of a generating lane."""
    prompt_ns: int = 20_000
    """One prompt token."""
    context_ns: int = 100
    """One cached token that a generating lane attends to."""
    pair_ns: float = 0.25
    """One pair of a prompt token and a token that it attends to."""
    draft_ns: int = 350_000
    """One step of the draft."""
    state_ns: int = 150_000
    """One state operation, plus a fifteenth of it per row."""

    def step_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return the device time of one step in ns. Raises ValueError for too many lanes."""
        if graph is not None and len(lanes) > graph.batch_capacity:
            raise ValueError(f"{graph.name} cannot hold {len(lanes)} lanes")
        if graph is not None and graph.kind in _STATE_KINDS:
            return self.state_ns + self.state_ns // 15 * graph.batch_capacity
        attention = 0.0
        for lane in lanes:
            if lane.is_prompt:
                mean = lane.cached_tokens + lane.new_tokens / 2
                attention += self.pair_ns * lane.new_tokens * mean
            else:
                attention += self.context_ns * lane.cached_tokens
        return self.weights_ns + self._dense_ns(graph, lanes) + round(attention)

    def _dense_ns(self, graph: GraphDescriptor | None, lanes: Sequence[LaneWork]) -> int:
        """Return what rows and prompt tokens cost, padding included where shapes are captured."""
        if graph is None:
            prompt = sum(lane.new_tokens for lane in lanes if lane.is_prompt)
            rows = sum(lane.new_tokens for lane in lanes if not lane.is_prompt)
            return prompt * self.prompt_ns + rows * self.row_ns
        if graph.batch_capacity == 1 and graph.kind not in (
            GraphKind.DECODE,
            GraphKind.SPECULATIVE,
        ):
            return graph.token_capacity * self.prompt_ns
        drafts = graph.proposal_depth if graph.source is ProposalSource.LEARNED else 0
        return (
            graph.rows * self.row_ns
            + graph.prefill_capacity * self.prompt_ns
            + drafts * self.draft_ns
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticOptions:
    """What a synthetic platform has; the defaults serve ordinary text."""

    rows: int = 32
    prefills: tuple[int, ...] = (64, 512, 2048)
    decode: bool = True
    """Programs of one token per lane, for the ordinary mode."""
    widths: tuple[int, ...] = ()
    """Target rows of rectangular rounds, drafted and allocated by the host."""
    device_depths: tuple[int, ...] = ()
    """Proposal depths of rounds whose rows the device allocates: half of all that D + 1 gives."""
    copies: tuple[int, ...] = ()
    """Target rows of rounds with copied proposals."""
    mixed: tuple[int, ...] = ()
    """Prompt capacities of mixed graphs; as wide as the widest round, or of width one."""
    states: bool = False
    """Snapshot and restore programs."""
    vision: tuple[int, ...] = ()
    """Feature rows of image programs."""
    reports_survival: bool = False
    """Programs that propose also write survival."""
    pages: int = 4096
    page_size: int = 64
    context: int = 16_384
    waiting: int = 1_000_000
    snapshot_rows: int = 0
    feature_rows: int = 0
    page_growth: bool = False
    page_prefixes: bool = False
    turn_ns: int = 0
    launch_ns: int = 0
    delivery_ns: int = 0
    costs: SyntheticCosts = SyntheticCosts()


def synthetic(**options: object) -> Platform:
    """Build the platform; options are the fields of SyntheticOptions.

    Raises ValueError for an unknown option, and the scheduler's errors for impossible shapes.
    """
    known = {field.name for field in dataclasses.fields(SyntheticOptions)}
    for name in options:
        if name not in known:
            raise ValueError(f"synthetic has no option {name!r}; it has {', '.join(sorted(known))}")
    chosen = dataclasses.replace(SyntheticOptions(), **options)  # type: ignore[arg-type]
    depths = [width - 1 for width in (*chosen.widths, *chosen.copies)]
    return Platform(
        name="synthetic",
        catalog=Catalog.of(_graphs(chosen)),
        resources=ResourceConfig(
            row_count=chosen.rows,
            page_count=chosen.pages,
            page_size_tokens=chosen.page_size,
            context_length_tokens=chosen.context,
            waiting_limit=chosen.waiting,
            snapshot_rows=chosen.snapshot_rows,
            draft_extent_tokens=max((*depths, *chosen.device_depths), default=0),
            feature_rows=chosen.feature_rows,
            page_growth=chosen.page_growth,
            page_prefixes=chosen.page_prefixes,
        ),
        costs=chosen.costs,
        host=HostCosts(
            turn_ns=chosen.turn_ns, launch_ns=chosen.launch_ns, delivery_ns=chosen.delivery_ns
        ),
    )


def _graphs(chosen: SyntheticOptions) -> Iterator[GraphDescriptor]:
    """Yield one program per bucket; batches are the powers of two up to the rows."""
    batches = [1 << power for power in range(7) if 1 << power <= chosen.rows]
    kinds = [GraphKind.INITIALIZE, GraphKind.TERMINAL]
    kinds += [GraphKind.DECODE] if chosen.decode else []
    kinds += [GraphKind.SNAPSHOT, GraphKind.RESTORE] if chosen.states else []
    for kind, batch in itertools.product(kinds, batches):
        yield GraphDescriptor(kind=kind, batch_capacity=batch)
    for kind, sizes in (
        (GraphKind.PREFILL, chosen.prefills),
        (GraphKind.VISION, chosen.vision),
    ):
        for size in sizes:
            yield GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=size)
    for batch in batches:
        yield from _rounds(chosen, batch)
        if batch > 1:
            yield from (_mixed(chosen, batch, prompt) for prompt in chosen.mixed)


def _rounds(chosen: SyntheticOptions, batch: int) -> Iterator[GraphDescriptor]:
    for width in chosen.widths:
        yield _round(chosen, batch, width, ProposalSource.LEARNED, RowAllocation.HOST)
    for width in chosen.copies:
        yield _round(chosen, batch, width, ProposalSource.COPY, RowAllocation.HOST)
    for depth in chosen.device_depths:
        yield _round(chosen, batch, depth + 1, ProposalSource.LEARNED, RowAllocation.DEVICE)


def _round(
    chosen: SyntheticOptions,
    batch: int,
    width: int,
    source: ProposalSource,
    allocation: RowAllocation,
) -> GraphDescriptor:
    depth = width - 1
    is_device = allocation is RowAllocation.DEVICE
    return GraphDescriptor(
        kind=GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=depth,
        packed_capacity=max(batch, batch * width // 2) if is_device else 0,
        allocation=allocation if depth else RowAllocation.NONE,
        source=source if depth else ProposalSource.NONE,
        speculation_enabled=True,
        confidence_width=depth if is_device else 0,
        reports_survival=chosen.reports_survival and depth > 0,
    )


def _mixed(chosen: SyntheticOptions, batch: int, prompt: int) -> GraphDescriptor:
    width = max(chosen.widths, default=1)
    return GraphDescriptor(
        kind=GraphKind.MIXED,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        prefill_capacity=prompt,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        source=ProposalSource.LEARNED if width > 1 else ProposalSource.NONE,
        speculation_enabled=bool(chosen.widths),
        reports_survival=chosen.reports_survival and width > 1,
    )
