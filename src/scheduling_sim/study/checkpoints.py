"""Checkpoints on Mooncake's conversation hashes: prompt tokens that kept states save, and the cost.

The same trace three times. `hour` is all of it (12,031 requests), one graph of 8,192 prompt tokens
and pages of a block, because what a store keeps does not depend on how prompts are cut. `window` is
150 s of it with the usual graphs, for the cost; `split` is that window with costs of prefills and
decodes kept per interval of the context. Answers are cut, since no prompt of the trace names them
again, and arrivals slowed to what the machine can read. Prompts stay whole.

The cost is device time of prefills and state copies over that of reading the same tokens, each
prompt from where it resumed, in as few chunks as there are: an ideal that pays for no copy, no stop
and no choice. The run that keeps nothing says how much of it is the choice of chunks.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from helios.scheduler import GraphDescriptor, GraphKind
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.platform import Platform
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RequestLog, RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import PLATFORM, Cell, Group, Row, Verdict, number
from scheduling_sim.study.goodput import MOONCAKE
from scheduling_sim.workload.mooncake import BLOCK_TOKENS
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest
from scheduling_sim.workload.summary import summary

HIT_BAR: Final = 0.9
OVERHEAD_BAR: Final = 0.05
_SLOWER: Final = 0.25
_COPY_NS: Final = 200_000
"""Of a state that is not in pages: some hundred MB at the memory bandwidth of this machine."""


class Kept(NamedTuple):
    """What a run keeps."""

    title: str
    options: Mapping[str, object]
    """Of the platform."""
    policy: Mapping[str, object] = {}


class Asked(NamedTuple):
    """A part of the trace and the machine that reads it."""

    title: str
    window: Mapping[str, float]
    answer_tokens: int
    options: Mapping[str, object]


_HOUR: Final = Asked("hour", {}, 1, {"slots": 2, "prefills": (8192,), "page_size": 512})
_WINDOW: Final = Asked("window", {"start_s": 600.0, "length_s": 150.0}, 8, {"slots": 16})
_INTERVALS: Final = (4_096, 16_384, 32_768, 65_536)
_SPLIT: Final = _WINDOW._replace(
    title="split", options={**_WINDOW.options, "context_intervals": _INTERVALS}
)
_NOTHING: Final = Kept("nothing", {})


def _pages(millions: int) -> Kept:
    return Kept("pages", {"page_prefixes": True, "kv_tokens": millions * 1_000_000})


def _rows(count: int, millions: int, extras: float | None = None) -> Kept:
    title = f"{count} rows" if extras is None else f"{count} rows, extra work {extras:.0%}"
    options = {"states": True, "snapshot_rows": count, "kv_tokens": millions * 1_000_000}
    policy = {} if extras is None else {"checkpoint_extra_work_fraction": extras}
    return Kept(title, {**options, "state_ns": _COPY_NS}, policy)


_CASES: Final = (
    (_HOUR, _pages(16)),
    (_HOUR, _pages(24)),
    (_WINDOW, _NOTHING),
    (_WINDOW, _pages(4)),
    (_WINDOW, _rows(512, 4)),
    (_WINDOW, _rows(512, 4, 0.0)),
    (_SPLIT, _NOTHING),
    (_SPLIT, _pages(4)),
)


# What is asked ------------------------------------------------------------------------------------


def _load(asked: Asked, data: Path) -> Workload:
    name = f"mooncake-conv:{data / MOONCAKE}"
    found = workload(name, seed=1, rate=_SLOWER, **asked.window)
    requests = tuple(_short(one, asked.answer_tokens) for one in found.requests)
    return dataclasses.replace(found, requests=requests)


def _short(request: WorkloadRequest, most: int) -> WorkloadRequest:
    tokens = min(most, request.output.tokens)
    output = Segment(request.output.content, tokens)
    return dataclasses.replace(request, output=output, max_output_tokens=tokens)


def lru_hit_tokens(requests: Sequence[WorkloadRequest], blocks: int) -> int:
    """Return the prompt tokens that a least-recently-used cache of `blocks` full blocks hits.

    What a block cache does with the same budget when nothing is in flight. Of a prompt's blocks the
    deeper one gives way first, and at least one token is always left to compute.
    """
    kept: collections.OrderedDict[int, None] = collections.OrderedDict()
    hit = 0
    for request in requests:
        full = [part.content for part in request.prompt if part.tokens == BLOCK_TOKENS]
        usable = full[: (request.prompt_tokens - 1) // BLOCK_TOKENS]
        missed = next((place for place, one in enumerate(usable) if one not in kept), len(usable))
        hit += missed * BLOCK_TOKENS
        for content in reversed(full):
            kept[content] = None
            kept.move_to_end(content)
        while len(kept) > blocks:
            kept.popitem(last=False)
    return hit


# What it costs ------------------------------------------------------------------------------------


def device_s(machine: Platform, log: RunLog, *kinds: GraphKind) -> float:
    """Return the device seconds of all steps of these kinds."""
    graphs = machine.catalog.graphs
    steps = zip(log.steps.graph_index, log.steps.device_ns, strict=True)
    return sum(ns for index, ns in steps if graphs[index].kind in kinds) / 1e9


def ideal_s(machine: Platform, requests: Sequence[RequestLog]) -> float:
    """Return the seconds of reading each prompt from where it resumed, in the fewest chunks."""
    chunks = [graph for graph in machine.catalog.graphs if graph.kind is GraphKind.PREFILL]
    chunks.sort(key=lambda graph: graph.token_capacity)
    return sum(_reading_ns(machine, chunks, one) for one in requests) / 1e9


def _reading_ns(machine: Platform, chunks: Sequence[GraphDescriptor], one: RequestLog) -> int:
    position, end, total = one.cached_prompt_tokens, one.request.prompt_tokens, 0
    while position < end:
        left = end - position
        graph = next((each for each in chunks if each.token_capacity >= left), chunks[-1])
        tokens = min(graph.token_capacity, left)
        work = LaneWork(tokens, position, is_prompt=True, samples=tokens == left)
        total += machine.costs.step_ns(graph, (work,))
        position += tokens
    return total


# Cells --------------------------------------------------------------------------------------------


def _run(asked: Asked, kept: Kept, data: Path) -> Row:
    load = _load(asked, data)
    chosen = {"mode": "ordinary", "page_growth": True, **asked.options, **kept.options}
    machine = platform(PLATFORM, **chosen)
    log = simulate(Setup(platform=machine, workload=load, policy="helios", options=kept.policy))
    bound, stats = summary(load), log.checkpoints
    assert stats is not None, "the production scheduler counts its checkpoints"
    budget = machine.resources.page_count * machine.resources.page_size_tokens
    hit = sum(one.cached_prompt_tokens for one in log.requests)
    lru = lru_hit_tokens(load.requests, budget // BLOCK_TOKENS)
    prefill = device_s(machine, log, GraphKind.PREFILL)
    copies = device_s(machine, log, GraphKind.SNAPSHOT, GraphKind.RESTORE)
    ideal = ideal_s(machine, log.requests)
    return {
        "trace": asked.title,
        "kept": kept.title,
        "cache, M tokens": budget / 1e6,
        "requests": len(log.requests),
        "hit %": 100 * hit / bound.prompt_tokens,
        "without limits %": 100 * bound.hit_share,
        "of the possible %": 100 * hit / bound.hit_tokens,
        "block LRU, of the possible %": 100 * lru / bound.hit_tokens,
        "prefill s": prefill,
        "copies s": copies,
        "ideal s": ideal,
        "over the ideal %": 100 * ((prefill + copies) / ideal - 1),
        "captures": stats.captures,
        "evictions": stats.evictions,
    }


def _name(asked: Asked, kept: Kept) -> str:
    millions = kept.options.get("kv_tokens")
    size = f" {int(str(millions)) // 1_000_000}M" if millions else ""
    return f"{asked.title} {kept.title}{size}"


def _verdicts(rows: Mapping[str, Row]) -> list[Verdict]:
    """Judge the hits of the whole hour, and the cost of a window over keeping nothing in it."""
    found = []
    for row in rows.values():
        if row["trace"] == _HOUR.title:
            share = number(row, "of the possible %") / 100
            lru = number(row, "block LRU, of the possible %")
            found.append(
                Verdict(
                    f"hit of the hour with {number(row, 'cache, M tokens'):.3g}M tokens",
                    f"{share:.1%} of what a store without limits hits",
                    f"at least {HIT_BAR:.0%}",
                    share >= HIT_BAR,
                    f"a block LRU of this size: {lru:.1f} %",
                )
            )
    for name, row in rows.items():
        nothing = rows.get(f"{row['trace']} {_NOTHING.title}")
        if nothing is not None and row is not nothing:
            least = 1 + number(nothing, "over the ideal %") / 100
            overhead = (1 + number(row, "over the ideal %") / 100) / least - 1
            found.append(
                Verdict(
                    f"overhead of {name}",
                    f"{overhead:.1%} of prefill time",
                    f"at most {OVERHEAD_BAR:.0%}",
                    overhead <= OVERHEAD_BAR,
                )
            )
    return found


GROUP = Group(
    "checkpoints",
    tuple(
        Cell(_name(asked, kept), functools.partial(_run, asked, kept), MOONCAKE)
        for asked, kept in _CASES
    ),
    (
        "trace",
        "kept",
        "cache, M tokens",
        "requests",
        "hit %",
        "without limits %",
        "of the possible %",
        "block LRU, of the possible %",
        "prefill s",
        "copies s",
        "ideal s",
        "over the ideal %",
        "captures",
        "evictions",
    ),
    _verdicts,
)
