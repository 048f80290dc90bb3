"""The selection rule by exhaustive enumeration: every graph, every cohort, every pair.

Nothing here is optimised. A situation says what the rule needs to know about requests and graphs; a
candidate says what one graph would do for one cohort. `candidates_of` lists every one of them,
`best_of` returns those that the rule cannot tell apart. The words and letters are those of the
design: T and F are durations in ms, A ages, sigma reference intervals, c age coefficients.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from helios.scheduler import GraphKind, PolicyConfig
from tests.scheduler.oracles.waiting import further_cost, phi

PROMPT_STATES = ("new", "prompt")
PREFILLS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)


@dataclasses.dataclass(frozen=True)
class Lane:
    """A request that can run now, as the rule sees it."""

    name: object
    state: str
    """One of `new`, `prompt`, `decode`, `terminal`."""
    token_price: float = 0.0
    """p, in ms per token."""
    delivery_price: float | None = None
    """p of the delivery coordinate, in ms per delivery; None before the first publication."""
    age_ms: float = 0.0
    weight: float = 1.0
    prompt_left: int = 0
    outputs_left: int = 1
    scored: bool = False
    last_used: int = 0
    """Rises with every frame; smaller means less recently used."""
    tenant: str = ""
    """Whose token coordinate it shares; the empty string for one of its own."""
    machine_rate: float | None = None
    """Of a prompt: tokens/ms that the whole machine could consume of it."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """A prepared program and its estimated duration; None is indeterminate."""

    index: int
    kind: GraphKind
    capacity: int
    """Request rows, or prompt tokens of a prefill kind."""
    duration_ms: float | None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What could be submitted: a graph, its cohort, its prompt tokens, and how it is ranked."""

    graph: Graph
    cohort: tuple[object, ...]
    prompt_tokens: tuple[int, ...]
    is_unknown: bool
    score: float
    """Value per ms; for an unknown duration the plain expected useful value."""
    known_ms: float
    served: int
    last_used: tuple[int, ...]
    """Of the cohort, the least recently used first."""
    padding: int
    """Physical rows and prompt positions without work."""
    following: Graph | None = None


@dataclasses.dataclass(frozen=True)
class Situation:
    """Everything that one decision depends on."""

    lanes: tuple[Lane, ...]
    graphs: tuple[Graph, ...]
    policy: PolicyConfig
    class_price: float = 0.0
    """ms of time per ms of machine time that all prompts together receive."""

    def accounts(self, *states: str) -> int:
        """How many accounts have a lane in one of these states; a tenant counts once."""
        members = [lane for lane in self.lanes if lane.state in states]
        own = sum(1 for lane in members if not lane.tenant)
        return own + len({lane.tenant for lane in members if lane.tenant})

    def share(self, lane: Lane) -> float:
        """What a decoder's delivery and age coefficients are multiplied by."""
        if not lane.tenant:
            return 1.0
        return 1.0 / self.streams[lane.tenant]

    @functools.cached_property
    def streams(self) -> Counter[str]:
        """Decoders of each tenant."""
        return Counter(lane.tenant for lane in self.lanes if lane.state == "decode")

    def waiting_cost(self, duration_ms: float) -> float:
        """What the duration costs all active decoders and terminal rows."""
        decoding = [lane for lane in self.lanes if lane.state == "decode"]
        terminals = sum(1 for lane in self.lanes if lane.state == "terminal")
        policy = self.policy
        price = sum(self.share(lane) for lane in decoding) * policy.decode_age_price
        price += terminals * policy.terminal_age_price
        waits = [(lane.age_ms, self.share(lane) * policy.decode_age_price) for lane in decoding]
        return duration_ms / 2 * price + further_cost(policy, waits, duration_ms)

    @functools.cached_property
    def class_weight(self) -> float:
        """What all prompts together weigh: so many times the decoders, of their own mean weight."""
        weights = [lane.weight for lane in self.lanes if lane.state in PROMPT_STATES]
        mean = sum(weights) / len(weights) if weights else 0.0
        return self.policy.prefill_balance * self.accounts("decode") * mean

    def reference_ms(self, kind: GraphKind) -> float | None:
        """Sigma of the decode or terminal family; None while none of its graphs is measured."""
        state = "decode" if kind is GraphKind.DECODE else "terminal"
        members = sum(1 for lane in self.lanes if lane.state == state)
        rates = [
            graph.duration_ms / min(graph.capacity, members)
            for graph in self.graphs
            if graph.kind is kind and graph.duration_ms is not None and members
        ]
        return members * min(rates) if rates else None


def token_value(situation: Situation, lane: Lane, prompt: int, output: int) -> float:
    """Price `prompt` prompt tokens and `output` output tokens of one lane."""
    policy = situation.policy
    fairness = policy.token_fairness * lane.weight * lane.token_price
    if lane.state in PROMPT_STATES and lane.machine_rate is not None:
        price = situation.class_price / lane.machine_rate
        fairness += policy.token_fairness * situation.class_weight * price
    return prompt * (1.0 + fairness) + output * (policy.output_token_value + fairness)


def delivery_value(situation: Situation, lane: Lane) -> float:
    """Price one visible delivery; before the first one at the reference interval."""
    price = lane.delivery_price
    if price is None:
        price = situation.reference_ms(GraphKind.DECODE) or 0.0
    return situation.policy.delivery_fairness * lane.weight * price * situation.share(lane)


def chunk_of(lane: Lane, capacity: int) -> tuple[int, int]:
    """Return the prompt tokens and output tokens that a prefill of this capacity earns."""
    consumed = min(capacity, lane.prompt_left)
    ends = consumed == lane.prompt_left and lane.outputs_left > 0
    return consumed, int(ends)


def candidates_of(situation: Situation) -> list[Candidate]:
    """Return every candidate of the situation, dominated shapes already removed."""
    found = feasible_of(situation)
    same: dict[object, list[Candidate]] = defaultdict(list)
    for candidate in found:
        same[_work_of(candidate)].append(candidate)
    return [c for c in found if not _is_dominated(c, same[_work_of(c)])]


def _work_of(candidate: Candidate) -> tuple[object, ...]:
    """What shapes of one kind may do for the same cohort."""
    return candidate.graph.kind, candidate.cohort, candidate.following is None


def feasible_of(situation: Situation) -> list[Candidate]:
    """Return everything that could run, shapes with redundant padding included."""
    found: list[Candidate] = []
    for graph in situation.graphs:
        if graph.kind is GraphKind.DECODE:
            found += _decodes(situation, graph)
        elif graph.kind is GraphKind.TERMINAL:
            found += _terminals(situation, graph)
        elif graph.kind in PREFILLS:
            found += _prefills(situation, graph)
        else:
            found += _pairs(situation, graph)
    return found


def _subsets(lanes: Sequence[Lane], capacity: int) -> Iterator[tuple[Lane, ...]]:
    for size in range(1, min(capacity, len(lanes)) + 1):
        yield from itertools.combinations(lanes, size)


def _decodes(situation: Situation, graph: Graph) -> Iterator[Candidate]:
    ready = [lane for lane in situation.lanes if lane.state == "decode"]
    sigma = situation.reference_ms(GraphKind.DECODE) or 0.0
    price = situation.policy.decode_age_price
    for cohort in _subsets(ready, graph.capacity):
        work = sum(token_value(situation, x, 0, 1) + delivery_value(situation, x) for x in cohort)
        policy = situation.policy
        ages = [
            (phi(policy, lane.age_ms), price * sigma * situation.share(lane)) for lane in cohort
        ]
        yield _scored(situation, graph, cohort, work, ages)


def _terminals(situation: Situation, graph: Graph) -> Iterator[Candidate]:
    ready = [lane for lane in situation.lanes if lane.state == "terminal"]
    sigma = situation.reference_ms(GraphKind.TERMINAL) or 0.0
    policy = situation.policy
    for cohort in _subsets(ready, graph.capacity):
        work = len(cohort) * policy.terminal_value
        ages = [(lane.age_ms, policy.terminal_age_price * sigma) for lane in cohort]
        yield _scored(situation, graph, cohort, work, ages)


def _scored(
    situation: Situation,
    graph: Graph,
    cohort: tuple[Lane, ...],
    work: float,
    ages: Sequence[tuple[float, float]],
) -> Candidate:
    """Score a cohort; `ages` are the age (ms) of each lane and what a ms of it is worth."""
    duration = graph.duration_ms
    known = duration or 0.0
    credit = sum(age_value * (age + known) for age, age_value in ages)
    if duration is None:
        score = work + credit
    else:
        score = (work + credit) / duration - situation.waiting_cost(duration)
    return Candidate(
        graph=graph,
        cohort=tuple(sorted((x.name for x in cohort), key=repr)),
        prompt_tokens=(),
        is_unknown=duration is None,
        score=score,
        known_ms=known,
        served=len(cohort),
        last_used=tuple(sorted(lane.last_used for lane in cohort)),
        padding=graph.capacity - len(cohort),
    )


def _prefills(situation: Situation, graph: Graph) -> Iterator[Candidate]:
    wants_scores = graph.kind is GraphKind.SCORED_PREFILL
    for lane in situation.lanes:
        if lane.state != "prompt" or lane.scored != wants_scores:
            continue
        prompt, output = chunk_of(lane, graph.capacity)
        work = token_value(situation, lane, prompt, output)
        candidate = _scored(situation, graph, (lane,), work, ())
        padding = graph.capacity - prompt
        yield dataclasses.replace(candidate, prompt_tokens=(prompt,), padding=padding)


def _pairs(situation: Situation, first: Graph) -> Iterator[Candidate]:
    """Every initialisation cohort followed by every prefill of one of its rows."""
    fresh = [lane for lane in situation.lanes if lane.state == "new"]
    for cohort in _subsets(fresh, first.capacity):
        for following in situation.graphs:
            for lane in cohort:
                wanted = GraphKind.SCORED_PREFILL if lane.scored else GraphKind.PREFILL
                if following.kind is not wanted:
                    continue
                prompt, output = chunk_of(lane, following.capacity)
                work = token_value(situation, lane, prompt, output)
                pair = (first.duration_ms, following.duration_ms)
                is_unknown = None in pair
                total = sum(ms or 0.0 for ms in pair)
                score = work if is_unknown else work / total - situation.waiting_cost(total)
                yield Candidate(
                    graph=first,
                    cohort=tuple(sorted((x.name for x in cohort), key=repr)),
                    prompt_tokens=(prompt,),
                    is_unknown=is_unknown,
                    score=score,
                    known_ms=total,
                    served=len(cohort),
                    last_used=tuple(sorted(x.last_used for x in cohort)),
                    padding=first.capacity - len(cohort) + following.capacity - prompt,
                    following=following,
                )


def _is_dominated(candidate: Candidate, others: Sequence[Candidate]) -> bool:
    """Whether a smaller shape, of those for the same work, does the same for the cohort."""
    for other in others:
        if candidate.following is None or other.following is None:
            if other.prompt_tokens != candidate.prompt_tokens:
                continue
            if other.graph.capacity < candidate.graph.capacity:
                return True
            continue
        sizes = (candidate.graph.capacity, candidate.following.capacity)
        smaller = (other.graph.capacity, other.following.capacity)
        if other.following.kind is not candidate.following.kind:
            continue
        if other.prompt_tokens != candidate.prompt_tokens:
            continue
        if smaller != sizes and smaller[0] <= sizes[0] and smaller[1] <= sizes[1]:
            return True
    return False


def best_of(candidates: Sequence[Candidate], *, tolerance: float = 1e-9) -> list[Candidate]:
    """Return every candidate that is best up to rounding and up to equal tie-break keys.

    Order: unknown before known, then value; then shorter known time, more requests served, less
    recently used requests, smaller physical shape.
    """
    if not candidates:
        return []
    unknown = [c for c in candidates if c.is_unknown]
    pool = unknown or list(candidates)
    top = max(c.score for c in pool)
    pool = [c for c in pool if math.isclose(c.score, top, rel_tol=tolerance, abs_tol=tolerance)]
    shortest = min(c.known_ms for c in pool)
    pool = [c for c in pool if math.isclose(c.known_ms, shortest, rel_tol=tolerance)]
    most = max(c.served for c in pool)
    pool = [c for c in pool if c.served == most]
    oldest = min(c.last_used for c in pool)
    pool = [c for c in pool if c.last_used == oldest]
    smallest = min(c.padding for c in pool)
    return [c for c in pool if c.padding == smallest]
