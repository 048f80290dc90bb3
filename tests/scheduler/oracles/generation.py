"""Decode, rounds and mixed graphs by exhaustive enumeration: every graph, every cohort, every row.

Nothing here is optimised. A cohort is any subset of decoders with at most one prompt; where the
rule bounds the search to prefixes of three orderings (adaptive, ragged), those prefixes are listed.
The words and letters are those of the design: B, D, W and P are capacities, T durations in ms.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

from helios.scheduler import (
    DecodeMode,
    GraphDescriptor,
    GraphKind,
    PolicyConfig,
    ProposalSource,
    RowAllocation,
    SpeculationConfig,
)
from tests.scheduler.oracles.waiting import further_cost, phi


@dataclasses.dataclass(frozen=True)
class Decoder:
    """A stream as the rule sees it."""

    arrival: int
    row: int
    last_used: int
    token_price: float
    delivery_price: float
    age_ms: float
    limit: int
    """Most target rows that the request allows, the pending token included."""
    learned_limit: int
    """The same of rounds with learned proposals alone; zero: no more than that."""
    copies: int
    survivals: tuple[float, ...]
    """Prefix survival of learned proposals, depth 1 first."""
    copied: tuple[float, ...]
    """The same of copied proposals."""
    forecast: tuple[float, ...]
    """Joint prefix probabilities by which a device allocates."""
    share: float
    """What multiplies its delivery and age coefficients."""
    is_trained: bool
    """Verified acceptance has observations, so it prices predicted prefixes."""
    starts: tuple[tuple[float, ...], ...] = ()
    """Without a forecast of its own: what each program of the catalog starts it from."""

    def forecast_in(self, world: World, graph: GraphDescriptor) -> tuple[float, ...]:
        """Return the forecast that the device of a program allocates by."""
        return self.starts[world.graphs.index(graph)] if self.starts else self.forecast


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt that may be consumed now."""

    arrival: int
    last_used: int
    token_price: float
    remaining: int


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that one decision depends on; zero durations are unmeasured."""

    decoders: tuple[Decoder, ...]
    prompts: tuple[Prompt, ...]
    graphs: tuple[GraphDescriptor, ...]
    durations_ms: tuple[float, ...]
    policy: PolicyConfig
    speculation: SpeculationConfig

    def serves(self, graph: GraphDescriptor) -> bool:
        """Whether decoders may run in the graph in this mode."""
        mode = self.speculation.mode
        if mode is DecodeMode.ORDINARY:
            return graph.kind is GraphKind.DECODE or (
                graph.kind is GraphKind.MIXED and not graph.speculation_enabled
            )
        if graph.kind not in (GraphKind.SPECULATIVE, GraphKind.MIXED):
            return False
        if not graph.speculation_enabled:
            return False
        return mode is DecodeMode.ADAPTIVE or (
            graph.token_capacity == self.speculation.fixed_width
            and graph.allocation is not RowAllocation.DEVICE
        )

    @functools.cached_property
    def sigma(self) -> float:
        """The decoders' reference interval; zero while none of their graphs is measured."""
        count = len(self.decoders)
        spacing = [
            ms / min(graph.batch_capacity, count)
            for graph, ms in zip(self.graphs, self.durations_ms, strict=True)
            if ms > 0 and count and self.serves(graph)
        ]
        return count * min(spacing) if spacing else 0.0


@dataclasses.dataclass(frozen=True)
class Choice:
    """What could be submitted, and how it is ranked."""

    graph: int
    cohort: tuple[int, ...]
    """Arrivals, ascending."""
    prefixes: tuple[int, ...]
    """Target rows or ceilings in the order of `cohort`; the prompt's are its consumed tokens."""
    expected: tuple[float, ...]
    """Output tokens in the order of `cohort`."""
    prompt: int | None
    score: float
    key: tuple[object, ...]


def yield_of(world: World, graph: GraphDescriptor, decoder: Decoder, length: int) -> float:
    """Expected tokens of a lane of `length` target rows."""
    survivals = decoder.survivals
    if graph.source is ProposalSource.COPY:
        survivals = decoder.copied
    elif graph.allocation is RowAllocation.DEVICE and not decoder.is_trained:
        survivals = decoder.forecast_in(world, graph)
    alpha = world.policy.adaptive_verification_alpha
    return 1.0 + sum(s**alpha for s in survivals[: length - 1])


def ceiling_of(graph: GraphDescriptor, decoder: Decoder) -> int:
    """Most rows of a lane: D + 1, W, the request's limits, the supplied copies."""
    ceiling = min(graph.proposal_depth + 1, graph.token_capacity, decoder.limit)
    if graph.source is ProposalSource.COPY:
        return min(ceiling, 1 + decoder.copies)
    return min(ceiling, decoder.learned_limit) if decoder.learned_limit else ceiling


def token_value(world: World, price: float) -> float:
    """Value of one output token."""
    return world.policy.output_token_value + world.policy.token_fairness * price


def lane_value(world: World, graph: GraphDescriptor, decoder: Decoder, length: int) -> float:
    """Additive value of a lane at the graph's start."""
    policy = world.policy
    return (
        yield_of(world, graph, decoder, length) * token_value(world, decoder.token_price)
        + decoder.share * policy.delivery_fairness * decoder.delivery_price
        + decoder.share * policy.decode_age_price * world.sigma * phi(policy, decoder.age_ms)
    )


def causal_lengths(
    world: World, graph: GraphDescriptor, cohort: Sequence[Decoder]
) -> tuple[int, ...]:
    """Give rows one at a time to the best frontier: shorter prefix, then smaller row on ties."""
    lengths = [1] * len(cohort)
    for _ in range(graph.rows - len(cohort)):
        frontier = [
            (-_claim(world, graph, decoder, lengths[i]), lengths[i], decoder.row, i)
            for i, decoder in enumerate(cohort)
            if lengths[i] < ceiling_of(graph, decoder)
        ]
        if not frontier:
            break
        lengths[min(frontier)[3]] += 1
    return tuple(lengths)


def _claim(world: World, graph: GraphDescriptor, decoder: Decoder, length: int) -> float:
    if graph.allocation is RowAllocation.DEVICE:
        return decoder.forecast_in(world, graph)[length - 1]
    longer = yield_of(world, graph, decoder, length + 1)
    gain = longer - yield_of(world, graph, decoder, length)
    return gain * token_value(world, decoder.token_price)


def cohorts_of(
    world: World, graph: GraphDescriptor
) -> Iterator[tuple[tuple[Decoder, ...], tuple[int, ...]]]:
    """List every legal cohort of decoders, the empty one included, with its target rows."""
    everyone = world.decoders
    whole = {d: ceiling_of(graph, d) for d in everyone}
    is_fixed = world.speculation.mode is not DecodeMode.ADAPTIVE
    if is_fixed or graph.rows == graph.batch_capacity * graph.token_capacity:
        for size in range(min(graph.batch_capacity, len(everyone)) + 1):
            for cohort in itertools.combinations(everyone, size):
                lengths = tuple(whole[d] for d in cohort)
                if sum(lengths) <= graph.rows:
                    yield cohort, lengths
        return
    orderings = (
        lambda d: -lane_value(world, graph, d, whole[d]),
        lambda d: -lane_value(world, graph, d, 1),
        lambda d: -lane_value(world, graph, d, whole[d]) / whole[d],
    )
    for ordering in orderings:
        ranked = sorted(everyone, key=lambda d: (ordering(d), d.last_used, -whole[d], d.arrival))
        for size in range(1, min(graph.batch_capacity, len(everyone)) + 1):
            yield tuple(ranked[:size]), causal_lengths(world, graph, ranked[:size])
    # Where P holds the whole lanes of the best cohort it constrains nobody (9.3), and what is best
    # counts each stream's own credit of this program's duration (9.13).
    duration_ms = world.durations_ms[world.graphs.index(graph)]
    credit = world.policy.decode_age_price * world.sigma * duration_ms
    ranked = sorted(
        everyone,
        key=lambda d: (orderings[0](d) - d.share * credit, d.last_used, -whole[d], d.arrival),
    )[: graph.batch_capacity]
    if ranked and sum(whole[d] for d in ranked) <= graph.rows:
        yield tuple(ranked), tuple(whole[d] for d in ranked)


def choices_of(world: World) -> list[Choice]:
    """Return every candidate that no smaller shape makes redundant."""
    found = []
    for index, graph in enumerate(world.graphs):
        if world.serves(graph):
            for cohort, lengths in cohorts_of(world, graph):
                prompts: list[Prompt | None] = [None]
                if graph.kind is GraphKind.MIXED:
                    prompts += world.prompts
                found += [
                    _choice(world, index, cohort, lengths, prompt)
                    for prompt in prompts
                    if 0 < len(cohort) + (prompt is not None) <= graph.batch_capacity
                ]
        elif graph.kind is GraphKind.PREFILL:
            found += [_choice(world, index, (), (), prompt) for prompt in world.prompts]
    return [choice for choice in found if not is_redundant(world, choice)]


def _choice(
    world: World,
    index: int,
    cohort: Sequence[Decoder],
    lengths: Sequence[int],
    prompt: Prompt | None,
) -> Choice:
    graph, duration = world.graphs[index], world.durations_ms[index]
    policy = world.policy
    slope = policy.decode_age_price * world.sigma * duration
    lanes = list(zip(cohort, lengths, strict=True))
    value = sum(lane_value(world, graph, d, length) + d.share * slope for d, length in lanes)
    used = [(d.last_used, d.arrival) for d in cohort]
    rows = sum(lengths)
    ceilings = {d.arrival: length for d, length in lanes}
    if graph.allocation is RowAllocation.DEVICE:
        ceilings = {d.arrival: ceiling_of(graph, d) for d in cohort}
    expected = {d.arrival: yield_of(world, graph, d, length) for d, length in lanes}
    physical = graph.rows
    if graph.kind is GraphKind.MIXED:
        physical = graph.prefill_capacity + (graph.batch_capacity - 1) * graph.token_capacity
    if prompt is not None:
        capacity = graph.prefill_capacity or graph.token_capacity
        consumed = min(capacity, prompt.remaining)
        fairness = policy.token_fairness * prompt.token_price
        value += consumed * (1.0 + fairness)
        expected[prompt.arrival] = float(consumed == prompt.remaining)
        if consumed == prompt.remaining:
            value += policy.output_token_value + fairness
        used.append((prompt.last_used, prompt.arrival))
        rows += consumed
        ceilings[prompt.arrival] = consumed
    used.sort()
    waiting = policy.decode_age_price * sum(d.share for d in world.decoders)
    cost = 0.5 * duration * waiting
    waits = [(d.age_ms, d.share * policy.decode_age_price) for d in world.decoders]
    cost += further_cost(policy, waits, duration)
    score = value if duration <= 0 else value / duration - cost
    key = (
        duration > 0,
        -score,
        duration,
        -len(used),
        [last_used for last_used, _ in used],
        physical - rows,
        index,
        [arrival for _, arrival in used],
    )
    arrivals = tuple(sorted(ceilings))
    return Choice(
        index,
        arrivals,
        tuple(ceilings[arrival] for arrival in arrivals),
        tuple(expected[arrival] for arrival in arrivals),
        None if prompt is None else prompt.arrival,
        score,
        key,
    )


def is_redundant(world: World, choice: Choice) -> bool:
    """Whether a smaller shape of the same family holds the same cohort, prefixes and prompt."""
    graph = world.graphs[choice.graph]
    own = _capacities(graph)
    for other in world.graphs:
        same = (
            other.kind is graph.kind
            and other.proposal_depth == graph.proposal_depth
            and other.source is graph.source
            and other.allocation is graph.allocation
            and (graph.kind is GraphKind.PREFILL or world.serves(other))
        )
        capacities = _capacities(other)
        if not same or capacities == own or any(map(int.__gt__, capacities, own)):
            continue
        if _holds(world, graph, other, choice):
            return True
    return False


def _capacities(graph: GraphDescriptor) -> tuple[int, int, int, int]:
    return graph.batch_capacity, graph.token_capacity, graph.rows, graph.prefill_capacity


def _holds(world: World, graph: GraphDescriptor, other: GraphDescriptor, choice: Choice) -> bool:
    if len(choice.cohort) > other.batch_capacity:
        return False
    rows = 0
    for arrival, prefix in zip(choice.cohort, choice.prefixes, strict=True):
        if arrival == choice.prompt:
            capacity = other.prefill_capacity or other.token_capacity
            remaining = next(p.remaining for p in world.prompts if p.arrival == arrival)
            if min(capacity, remaining) != prefix:
                return False
        elif prefix > other.token_capacity:
            return False
        else:
            rows += prefix
    if graph.kind is GraphKind.PREFILL:
        return True
    return min(rows, graph.rows) <= other.rows
