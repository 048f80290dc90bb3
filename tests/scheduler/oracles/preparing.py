"""Candidates with a prerequisite by enumeration: every cohort of both graphs, every chain.

A world says what the rule needs to know. Lanes keep whole lengths, as fixed selection does. Letters
are the design's: T first graph, F what follows, L both, A ages, sigma reference intervals.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from helios.scheduler import GraphDescriptor, GraphKind, PolicyConfig
from tests.scheduler.oracles.waiting import further_cost, phi

PREPARING = (GraphKind.INITIALIZE, GraphKind.RESTORE, GraphKind.VISION, GraphKind.SNAPSHOT)
PREFILLS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
GENERATING = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


@dataclasses.dataclass(frozen=True)
class Item:
    """One request; `stages` are the prerequisites it still needs, none for a ready one."""

    name: int
    role: str
    """`decode`, `prompt` or `terminal`."""
    stages: tuple[GraphKind, ...] = ()
    token_price: float = 0.0
    delivery_price: float = 0.0
    age_ms: float = 0.0
    prompt_left: int = 0
    outputs_left: int = 8
    scored: bool = False
    features: tuple[int, ...] = ()
    """Feature rows of the images that its vision stages encode, in order."""
    last_used: int = 0
    share: float = 1.0
    """What multiplies the delivery and age coefficients of a stream whose tenant has others."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A prepared program and its duration; None is indeterminate."""

    index: int
    graph: GraphDescriptor
    duration_ms: float | None

    @property
    def rows(self) -> int:
        """Requests that it holds."""
        return self.graph.batch_capacity

    @property
    def width(self) -> int:
        """Most target rows of a lane."""
        return min(self.graph.proposal_depth + 1, self.graph.token_capacity)


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that one decision depends on."""

    items: tuple[Item, ...]
    programs: tuple[Program, ...]
    policy: PolicyConfig
    generates: tuple[bool, ...]
    """Per program: decoders may run in it in the loaded mode."""

    def waiting_cost(self, duration_ms: float) -> float:
        """What a duration costs all decoders and terminal rows, blocked ones included."""
        price = {"decode": self.policy.decode_age_price, "terminal": self.policy.terminal_age_price}
        total = sum(price.get(item.role, 0.0) * item.share for item in self.items)
        decoding = [item for item in self.items if item.role == "decode"]
        waits = [(item.age_ms, price["decode"] * item.share) for item in decoding]
        return duration_ms / 2 * total + further_cost(self.policy, waits, duration_ms)

    def decode_sigma(self) -> float:
        """Sigma of the streams that a batch can deliver within two graphs; zero if unmeasured."""
        count = sum(1 for item in self.items if item.role == "decode" and len(item.stages) < 2)
        return self._sigma([p for p in self.programs if self.generates[p.index]], count)

    def terminal_sigma(self) -> float:
        """Sigma of the terminal rows over both kinds that retire them; zero if unmeasured."""
        kinds = (GraphKind.TERMINAL, GraphKind.SNAPSHOT)
        count = sum(1 for item in self.items if item.role == "terminal")
        return self._sigma([p for p in self.programs if p.graph.kind in kinds], count)

    @staticmethod
    def _sigma(programs: Sequence[Program], count: int) -> float:
        spacing = [
            program.duration_ms / min(program.rows, count)
            for program in programs
            if program.duration_ms is not None and count
        ]
        return count * min(spacing, default=0.0)


@dataclasses.dataclass(frozen=True)
class Lane:
    """One request in a following graph: prompt tokens or target rows."""

    item: Item
    prompt_tokens: int
    length: int


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Cohorts of the first graph and of the following one, and how they rank."""

    first: Program
    cohort: tuple[int, ...]
    following: Program | None
    lanes: tuple[Lane, ...]
    is_unknown: bool
    score: float
    known_ms: float
    last_used: tuple[int, ...]
    padding: int


def prompt_value(world: World, item: Item, capacity: int) -> tuple[int, float]:
    """Return the prompt tokens that a capacity consumes and their value, first output included."""
    policy = world.policy
    fairness = policy.token_fairness * item.token_price
    consumed = min(capacity, item.prompt_left)
    ends = consumed == item.prompt_left and item.outputs_left > 0
    output = policy.output_token_value + fairness if ends else 0.0
    return consumed, consumed * (1.0 + fairness) + output


def stream_value(world: World, item: Item, length: int) -> float:
    """Return what `length` target rows and their delivery are worth, ages apart.

    An untrained row accepts d proposals with probability 0.5**d.
    """
    policy = world.policy
    tokens = sum(0.5**depth for depth in range(length))
    value = policy.output_token_value + policy.token_fairness * item.token_price
    return tokens * value + policy.delivery_fairness * item.share * item.delivery_price


def following_lanes(program: Program, item: Item) -> Lane:
    """Return the lane of a request in a following program."""
    if item.role == "prompt":
        prefill = program.graph.kind in PREFILLS
        capacity = program.graph.token_capacity if prefill else program.graph.prefill_capacity
        return Lane(item, min(capacity, item.prompt_left), 0)
    return Lane(item, 0, min(program.width, item.outputs_left))


def is_legal(world: World, program: Program, cohort: Sequence[Item]) -> bool:
    """Whether one graph may serve these requests together."""
    kind = program.graph.kind
    prompts = [item for item in cohort if item.role == "prompt"]
    if kind in PREFILLS:
        wanted = kind is GraphKind.SCORED_PREFILL
        return len(prompts) == len(cohort) == 1 and prompts[0].scored == wanted
    if not world.generates[program.index] or len(cohort) > program.rows:
        return False
    most = 1 if kind is GraphKind.MIXED else 0
    if len(prompts) > most or any(item.scored for item in prompts):
        return False
    # Whole lanes: programs that shorten lanes to fit their P rows are not for this twin.
    lanes = [following_lanes(program, item) for item in cohort]
    return sum(lane.length for lane in lanes) <= program.graph.rows


def padding_of(program: Program, lanes: Sequence[Lane]) -> int:
    """Return the rows and prompt positions of an inference graph without work."""
    graph = program.graph
    used = sum(lane.prompt_tokens + lane.length for lane in lanes)
    if graph.kind in PREFILLS:
        return graph.token_capacity - used
    if graph.kind is GraphKind.MIXED:
        return graph.prefill_capacity + (graph.batch_capacity - 1) * program.width - used
    return graph.rows - used


def candidates_of(world: World) -> list[Candidate]:
    """Return every candidate of the world, redundant shapes removed."""
    found: list[Candidate] = []
    for first in world.programs:
        if first.graph.kind in PREPARING:
            for cohort in _first_cohorts(world, first):
                found += _pairs(world, first, cohort)
                found += _alone(world, first, cohort)
    return _without_redundant(found)


def _first_cohorts(world: World, first: Program) -> Iterator[tuple[Item, ...]]:
    kind = first.graph.kind
    able = [
        item
        for item in world.items
        if (item.stages[:1] == (kind,) and _holds(first, item))
        or (kind is GraphKind.SNAPSHOT and item.role == "terminal")
    ]
    for size in range(1, min(first.rows, len(able)) + 1):
        yield from itertools.combinations(able, size)


def _holds(first: Program, item: Item) -> bool:
    if first.graph.kind is not GraphKind.VISION:
        return True
    return item.features[0] <= first.graph.token_capacity


def _first_padding(first: Program, cohort: Sequence[Item]) -> int:
    if first.graph.kind is GraphKind.VISION:
        return first.graph.token_capacity - cohort[0].features[0]
    return first.rows - len(cohort)


def _pairs(world: World, first: Program, cohort: tuple[Item, ...]) -> Iterator[Candidate]:
    newly = [item for item in cohort if len(item.stages) == 1]
    ready = [item for item in world.items if not item.stages and item.role != "terminal"]
    for following in world.programs if newly else ():
        for size in range(1, following.rows + 1):
            for served in itertools.combinations(newly + ready, size):
                enabled = any(item.stages for item in served)
                if enabled and is_legal(world, following, served):
                    yield _pair(world, first, cohort, following, served)


def _pair(
    world: World,
    first: Program,
    cohort: tuple[Item, ...],
    following: Program,
    served: tuple[Item, ...],
) -> Candidate:
    policy = world.policy
    is_unknown = first.duration_ms is None or following.duration_ms is None
    known_ms = (first.duration_ms or 0.0) + (following.duration_ms or 0.0)
    starts_ms, whole_ms = (0.0, 0.0) if is_unknown else (first.duration_ms or 0.0, known_ms)
    lanes = tuple(following_lanes(following, item) for item in served)
    total = 0.0
    for lane in lanes:
        if lane.item.role == "prompt":
            capacity = max(following.graph.prefill_capacity, following.graph.token_capacity)
            if following.graph.kind is GraphKind.MIXED:
                capacity = following.graph.prefill_capacity
            total += prompt_value(world, lane.item, capacity)[1]
        else:
            total += stream_value(world, lane.item, lane.length)
            age_value = policy.decode_age_price * lane.item.share * world.decode_sigma()
            total += age_value * (phi(policy, lane.item.age_ms) + whole_ms)
    for item in cohort:
        if item.role == "terminal":
            total += policy.terminal_value
            age_value = policy.terminal_age_price * world.terminal_sigma()
            total += age_value * (item.age_ms + starts_ms)
            total += policy.terminal_age_price * (whole_ms**2 - starts_ms**2) / 2
    score = total if is_unknown else total / whole_ms - world.waiting_cost(whole_ms)
    padding = _first_padding(first, cohort) + padding_of(following, lanes)
    return _candidate(first, cohort, following, lanes, (is_unknown, score, known_ms, padding))


def _alone(world: World, first: Program, cohort: tuple[Item, ...]) -> Iterator[Candidate]:
    """The first graph without a following one: retired rows and continuations."""
    if not any(item.role == "terminal" or len(item.stages) > 1 for item in cohort):
        return
    policy, duration = world.policy, first.duration_ms
    worth, is_unknown = [], duration is None
    useful = []
    for item in cohort:
        if item.role == "terminal":
            age_value = policy.terminal_age_price * world.terminal_sigma()
            worth.append(policy.terminal_value + age_value * (item.age_ms + (duration or 0.0)))
            useful.append(policy.terminal_value + age_value * item.age_ms)
        elif len(item.stages) > 1:
            value, plain, is_known = _continuation(world, item, duration)
            worth.append(value)
            useful.append(plain)
            is_unknown = is_unknown or not is_known
    if is_unknown or duration is None:
        score = sum(useful)
    else:
        score = sum(worth) / duration - world.waiting_cost(duration)
    terms = (is_unknown, score, duration or 0.0, _first_padding(first, cohort))
    yield _candidate(first, cohort, None, (), terms)


def _candidate(
    first: Program,
    cohort: tuple[Item, ...],
    following: Program | None,
    lanes: tuple[Lane, ...],
    terms: tuple[bool, float, float, int],
) -> Candidate:
    is_unknown, score, known_ms, padding = terms
    names = tuple(sorted(item.name for item in cohort))
    used = tuple(sorted(item.last_used for item in cohort))
    return Candidate(first, names, following, lanes, is_unknown, score, known_ms, used, padding)


def _continuation(world: World, item: Item, first_ms: float | None) -> tuple[float, float, bool]:
    """Return V*T/(T + F) of the best ending, its plain V, and whether its duration is known."""
    later = [_stage_ms(world, item, place) for place in range(1, len(item.stages))]
    own = [_stage_ms(world, item, 0), *later]
    endings = list(_endings(world, item))
    fastest = min((ms for _, ms in endings if ms is not None), default=None)
    sigma = 0.0
    if item.role == "decode" and fastest is not None and None not in own:
        sigma = sum(ms or 0.0 for ms in own) + fastest
    slope = world.policy.decode_age_price * item.share * sigma
    known, unknown = [], []
    for value, ms in endings:
        plain = value + slope * phi(world.policy, item.age_ms)
        if first_ms is None or ms is None or None in later:
            unknown.append((plain, plain, False))
            continue
        whole_ms = first_ms + sum(each or 0.0 for each in later) + ms
        known.append(((plain + slope * whole_ms) * first_ms / whole_ms, plain, True))
    return max(known or unknown, key=lambda option: option[0])


def _endings(world: World, item: Item) -> Iterator[tuple[float, float | None]]:
    reached = 0
    for program in world.programs:
        if item.role == "prompt" and is_legal(world, program, (item,)):
            if program.graph.kind not in PREFILLS:
                continue
            consumed, value = prompt_value(world, item, program.graph.token_capacity)
            if consumed > reached:
                yield value, program.duration_ms
            reached = max(reached, consumed)
        elif item.role == "decode" and world.generates[program.index]:
            length = following_lanes(program, item).length
            yield stream_value(world, item, length), program.duration_ms


def _stage_ms(world: World, item: Item, place: int) -> float | None:
    kind = item.stages[place]
    able = [program for program in world.programs if program.graph.kind is kind]
    if kind is GraphKind.VISION:
        features = item.features[item.stages[:place].count(kind)]
        able = [p for p in able if p.graph.token_capacity >= features][:1]
    return min((p.duration_ms for p in able if p.duration_ms is not None), default=None)


def _without_redundant(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop a candidate when a smaller shape of the same kinds does the same work for the same."""
    same_work: dict[object, list[Candidate]] = {}
    for candidate in candidates:
        following = None if candidate.following is None else _family(candidate.following)
        key = (candidate.first.graph.kind, candidate.cohort, following, candidate.lanes)
        same_work.setdefault(key, []).append(candidate)
    return [
        candidate
        for group in same_work.values()
        for candidate in group
        if not any(_is_smaller(other, candidate) for other in group)
    ]


def _family(program: Program) -> tuple[object, ...]:
    graph = program.graph
    speculation = (graph.proposal_depth, graph.source, graph.allocation, graph.speculation_enabled)
    return (graph.kind, *speculation)


def _sizes(candidate: Candidate) -> tuple[int, ...]:
    sizes: tuple[int, ...] = ()
    for program in (candidate.first, candidate.following):
        if program is not None:
            graph = program.graph
            sizes += (
                graph.batch_capacity,
                graph.token_capacity,
                graph.rows,
                graph.prefill_capacity,
            )
    return sizes


def _is_smaller(one: Candidate, other: Candidate) -> bool:
    sizes = list(zip(_sizes(one), _sizes(other), strict=True))
    return all(a <= b for a, b in sizes) and any(a < b for a, b in sizes)


def best_of(candidates: Sequence[Candidate], *, tolerance: float) -> list[Candidate]:
    """Return every candidate that is best up to `tolerance` and equal tie-break keys."""
    pool = [c for c in candidates if c.is_unknown] or list(candidates)
    top = max(c.score for c in pool)
    pool = [c for c in pool if math.isclose(c.score, top, rel_tol=tolerance, abs_tol=tolerance)]
    shortest = min(c.known_ms for c in pool)
    pool = [c for c in pool if c.known_ms <= shortest + tolerance]
    most = max(len(c.cohort) for c in pool)
    pool = [c for c in pool if len(c.cohort) == most]
    oldest = min(c.last_used for c in pool)
    pool = [c for c in pool if c.last_used == oldest]
    least = min(c.padding for c in pool)
    return [c for c in pool if c.padding == least]
