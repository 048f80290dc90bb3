"""The Mooncake reader: shared blocks, endpoints that serve the next turn, and every bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scheduling_sim.workload.content import token_ids
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.lengths import OutOfContext
from scheduling_sim.workload.mooncake import read_mooncake
from scheduling_sim.workload.summary import prefix_hits, summary
from scheduling_sim.workload.trace_lines import ReadOptions
from tests.sim.workload.sources import MOONCAKE, MOONCAKE_EXCERPT


def line(time_ms: object = 0, prompt: object = 1000, output: object = 5, **more: object) -> str:
    fields = {"timestamp": time_ms, "input_length": prompt, "output_length": output}
    return json.dumps(fields | {"hash_ids": [1, 2]} | more)


GOOD = [line(time_ms) for time_ms in range(0, 10_000, 1000)]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    return path


def test_the_excerpt_is_read_whole() -> None:
    workload = read_mooncake(MOONCAKE_EXCERPT)
    assert len(workload.requests) == 60
    assert workload.skipped == ()
    first = workload.requests[0]
    assert (first.prompt_tokens, first.output.tokens, len(first.prompt)) == (6758, 500, 14)
    assert [segment.tokens for segment in first.prompt] == [512] * 13 + [102]


def test_equal_hashes_are_equal_tokens() -> None:
    """The first two requests share block 0 and differ from block 1 on."""
    first, second = (token_ids(r.prompt) for r in read_mooncake(MOONCAKE_EXCERPT).requests[:2])
    assert len(first) == 6758
    assert (first[:512] == second[:512]).all()
    assert np.mean(first[512:6758] == second[512:6758]) < 0.01


def test_every_full_block_ends_at_an_endpoint_and_the_prompt_does_not() -> None:
    for request in read_mooncake(MOONCAKE_EXCERPT).requests:
        assert request.endpoints == tuple(range(512, request.prompt_tokens + 1, 512))
        assert not request.keep_terminal


def test_the_last_full_block_serves_a_next_turn(tmp_path: Path) -> None:
    """The second turn has the first one's two full blocks and another hash for its partial one."""
    turns = [line(0, 1100, hash_ids=[1, 2, 3]), line(9, 2000, hash_ids=[1, 2, 7, 8])]
    requests = read_mooncake(write(tmp_path, "\n".join(turns))).requests
    assert prefix_hits(requests) == ([0, 1024], [0, 1024])


@pytest.mark.slow
@pytest.mark.skipif(not MOONCAKE.exists(), reason="the original trace is not at hand")
def test_a_store_without_limits_hits_37_percent_of_the_original() -> None:
    """The published figure counts the shared partial blocks of identical prompts too."""
    found = summary(read_mooncake(MOONCAKE))
    assert found.requests == 12_031
    assert found.skipped == 0
    assert found.prompt.mean == pytest.approx(12_035, abs=1)
    assert found.hit_share == pytest.approx(0.3736, abs=0.0001)
    assert found.endpoint_hit_share == pytest.approx(0.3734, abs=0.0001)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "empty line"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "a JSON list"),
        ('{"timestamp": 2000}', "the fields are 'timestamp'"),
        (line(2000, model="x"), "the fields are"),
        (line("2000"), "timestamp is '2000'"),
        (line(True), "timestamp is 'True'"),
        (line(2000.5), "timestamp is '2000.5'"),
        (line(float("nan")), "timestamp is 'nan'"),
        (line(-1), "timestamp is -1"),
        (line(1 << 50), "timestamp is"),
        (line(1999), "earlier"),
        (line(3_700_000), "after the line before"),
        (line(2000, -1000), "input_length is -1000"),
        (line(2000, 0, hash_ids=[]), "input_length is 0"),
        (line(2000, None), "input_length is 'None'"),
        (line(2000, 10**9), "absurd"),
        (line(2000, output=0), "the answer is 0"),
        (line(2000, hash_ids=[1]), "1 hash_ids; 2 blocks"),
        (line(2000, hash_ids=[1, 2, 3]), "3 hash_ids; 2 blocks"),
        (line(2000, hash_ids=[1, -2]), "a hash id is -2"),
        (line(2000, hash_ids=[1, "2"]), "a hash id is '2'"),
        (line(2000, hash_ids="12"), "hash_ids is a str"),
        (line(2000)[:-4], "not JSON"),
        ('{"timestamp": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_a_bad_line_is_skipped_with_its_number(tmp_path: Path, bad: str, why: str) -> None:
    lines = [*GOOD[:3], bad, *GOOD[3:]]
    workload = read_mooncake(write(tmp_path, "\n".join(lines) + "\n"))
    assert len(workload.requests) == len(GOOD)
    (skipped,) = workload.skipped
    assert skipped.line == 4
    assert why in skipped.why


def test_a_last_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join(GOOD) + "\n" + line(99_000)[:30])
    (skipped,) = read_mooncake(path).skipped
    assert skipped.line == 11
    assert "cut off" in skipped.why


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="3 of 3 lines are unusable"):
        read_mooncake(write(tmp_path, "TIMESTAMP,ContextTokens\n1,2\n3,4\n"))
    with pytest.raises(WorkloadError, match="empty"):
        read_mooncake(write(tmp_path, ""))


def test_a_prompt_cut_to_the_context_keeps_its_first_blocks(tmp_path: Path) -> None:
    path = write(tmp_path, line(0, 1100, 50, hash_ids=[1, 2, 3]))
    whole = read_mooncake(path).requests[0]
    options = ReadOptions(context_tokens=1000, out_of_context=OutOfContext.CUT)
    cut = read_mooncake(path, options=options).requests[0]
    assert [segment.tokens for segment in cut.prompt] == [512, 438]
    assert cut.endpoints == (512,)
    assert (token_ids(cut.prompt) == token_ids(whole.prompt)[:950]).all()


def test_times_start_at_the_first_request(tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join([line(5000), line(5250)]))
    assert [r.arrival_ns for r in read_mooncake(path).requests] == [0, 250_000_000]
