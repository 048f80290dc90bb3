"""The study of checkpoints: its block cache, its ideal, its verdicts, a cell on a small trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from helios.scheduler import GraphKind
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.platforms import platform
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.study.cells import Row
from scheduling_sim.study.checkpoints import GROUP, device_s, ideal_s, lru_hit_tokens
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Segment, WorkloadRequest
from tests.sim.worlds import asked


def prompt_of(name: str, blocks: Sequence[int], rest: int = 100) -> WorkloadRequest:
    """Return a request whose prompt is full blocks of these contents and a partial one."""
    parts = [Segment(block, 512) for block in blocks]
    return WorkloadRequest(
        request_id=name,
        arrival_ns=0,
        prompt=(*parts, Segment(9_999, rest)) if rest else tuple(parts),
        output=Segment(7, 1),
        max_output_tokens=1,
        endpoints=tuple(512 * (place + 1) for place in range(len(blocks))),
    )


def test_a_block_cache_hits_prefixes_and_gives_up_the_oldest_use() -> None:
    first, second = prompt_of("a", [1, 2, 3]), prompt_of("b", [1, 2, 4])
    assert lru_hit_tokens([first, second], 100) == 1024
    assert lru_hit_tokens([first, prompt_of("c", [9, 2, 3])], 100) == 0, "a prefix starts at zero"
    assert lru_hit_tokens([first, first], 2) == 1024, "the deepest block gave way first"
    assert lru_hit_tokens([first, prompt_of("c", [5, 6, 7]), first], 3) == 0
    whole = prompt_of("d", [1, 2, 3], rest=0)
    assert lru_hit_tokens([whole, whole], 100) == 1024, "one token is left to compute"


def test_the_ideal_reads_in_the_fewest_chunks_from_where_a_prompt_resumed() -> None:
    machine = platform("synthetic", prefills=(64, 256), page_prefixes=True)
    load = asked(prompt_of("a", [1], rest=88), prompt_of("b", [1], rest=88))
    log = simulate(Setup(platform=machine, workload=load, policy="helios"))
    assert [one.cached_prompt_tokens for one in log.requests] == [0, 0], "both came at once"
    late = [log.requests[0], log.requests[1]]
    late[1].cached_prompt_tokens = 512
    graphs = {graph.token_capacity: graph for graph in machine.catalog.graphs if is_prefill(graph)}

    def chunk(capacity: int, tokens: int, position: int, *, samples: bool = False) -> float:
        work = LaneWork(tokens, position, is_prompt=True, samples=samples)
        return machine.costs.step_ns(graphs[capacity], (work,)) / 1e9

    last = chunk(256, 88, 512, samples=True)
    whole = chunk(256, 256, 0) + chunk(256, 256, 256) + last
    assert ideal_s(machine, late[:1]) == pytest.approx(whole)
    assert ideal_s(machine, late) == pytest.approx(whole + last)
    spent = device_s(machine, log, GraphKind.PREFILL)
    everything = sum(log.steps.device_ns) / 1e9
    assert whole * 2 <= spent < everything
    assert device_s(machine, log, GraphKind.SNAPSHOT, GraphKind.RESTORE) == 0.0


def is_prefill(graph: object) -> bool:
    return getattr(graph, "kind", None) is GraphKind.PREFILL


def row(trace: str, *, possible: float = 95.0, over: float = 10.0) -> Row:
    return {
        "trace": trace,
        "cache, M tokens": 16.0,
        "of the possible %": possible,
        "block LRU, of the possible %": 96.0,
        "over the ideal %": over,
    }


def test_hits_are_judged_on_the_hour_and_cost_against_keeping_nothing() -> None:
    found = {
        "hour pages 16M": row("hour", possible=90.0),
        "hour pages 8M": row("hour", possible=89.9),
        "window nothing": row("window"),
        "window pages 16M": row("window", over=15.4),
        "window 512 rows 4M": row("window", over=15.6),
    }
    judged = GROUP.verdicts(found)
    assert [verdict.is_met for verdict in judged] == [True, False, True, False]
    assert judged[2].figure == "4.9% of prefill time"
    del found["window nothing"]
    assert len(GROUP.verdicts(found)) == 2, "without the twin there is nothing to compare with"


def test_a_cell_keeps_all_that_a_small_trace_repeats(tmp_path: Path) -> None:
    """Ten conversations of three turns, apart in time: every repeated block is found again."""
    lines = []
    for turn in range(3):
        for talk in range(10):
            blocks = [100 * talk + block for block in range(4 * (turn + 1))]
            stamp = 60_000 * (10 * turn + talk)
            line = {"timestamp": stamp, "input_length": 512 * len(blocks) + 1, "output_length": 50}
            lines.append({**line, "hash_ids": [*blocks, 5_000 + 10 * turn + talk]})
    path = tmp_path / "mooncake" / "conversation_trace.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(workload(f"mooncake-conv:{path}").requests) == 30
    cell = next(cell for cell in GROUP.cells if cell.name == "hour pages 16M")
    found = cell.run(tmp_path)
    assert set(GROUP.columns) <= set(found)
    assert found["requests"] == 30
    assert found["of the possible %"] == pytest.approx(100.0)
    assert found["block LRU, of the possible %"] == pytest.approx(100.0)
    assert found["copies s"] == 0.0
    assert found["over the ideal %"] == pytest.approx(0.0, abs=0.01), "each prompt is one chunk"
