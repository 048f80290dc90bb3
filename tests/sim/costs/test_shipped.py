"""The tables that come with the package: complete, documented, and those of the originals."""

from __future__ import annotations

import csv
import gzip
import importlib.resources
import itertools
import json
import statistics
from pathlib import Path

import pytest
from tools.derive_costs import derive_profiles

from scheduling_sim.costs.composed import ComposedCosts
from scheduling_sim.costs.llmservingsim import fit_skew, read_attention, read_rows, read_table
from scheduling_sim.costs.model import LaneWork
from scheduling_sim.costs.models import PROFILES
from scheduling_sim.costs.shipped import decode, encode, file_name, load_shipped, shipped_names

FOLDER = importlib.resources.files("scheduling_sim.costs") / "data"
ORIGIN = {"source": "s", "commit": "c", "licence": "l"}


def test_every_profile_is_shipped_with_its_source_and_licence() -> None:
    assert all(name in shipped_names() for name in PROFILES)
    provenance = (FOLDER / "PROVENANCE.md").read_text()
    for name in shipped_names():
        document = json.loads(gzip.decompress((FOLDER / file_name(name)).read_bytes()))
        assert document["commit"] in provenance
        assert document["licence"] in provenance
        assert file_name(name) in provenance
        assert load_shipped(name).source.startswith(document["source"])


def test_shipped_data_stays_small() -> None:
    total = sum(len(entry.read_bytes()) for entry in FOLDER.iterdir())
    assert total < 400_000


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_shipped_table_has_its_models_facts(name: str) -> None:
    table = load_shipped(name)
    assert table.facts == PROFILES[name].facts
    assert table.link == PROFILES[name].link
    assert (table.moe is not None) == bool(table.facts.experts)


def test_a_document_survives_encoding() -> None:
    for name in shipped_names():
        table = load_shipped(name)
        again = decode(encode(table, ORIGIN), "memory")
        assert again.source == "s @ c, l"
        assert again.attention == table.attention
        assert (again.dense, again.sampled, again.moe) == (table.dense, table.sampled, table.moe)


def test_unknown_names_and_broken_documents_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there are .*rtx-4090/llama-3\.1-8b"):
        load_shipped("abacus/llama")
    with pytest.raises(ValueError, match="x: not a cost document"):
        decode(b"not gzip", "x")
    with pytest.raises(ValueError, match="format 9, this version reads 1"):
        decode(gzip.compress(b'{"format": 9}'), "x")
    with pytest.raises(ValueError, match="x: not a cost document"):
        decode(gzip.compress(b'{"format": 1}'), "x")


def test_the_shipped_tables_are_those_of_the_originals(originals: Path) -> None:
    for name, data in derive_profiles(originals):
        shipped = (FOLDER / name).read_bytes()
        # Compressors of different versions write different bytes of the same document.
        assert gzip.decompress(shipped) == gzip.decompress(data), name


def test_points_between_the_knots_are_met_within_a_few_per_cent(originals: Path) -> None:
    """The profile has points between the powers of two that the shipped grid leaves out."""
    name = "rtx-pro-6000/llama-3.1-8b"
    grid = load_shipped(name).attention
    path = originals / "llmservingsim" / "profiler" / "perf" / PROFILES[name].folder
    errors = []
    for (chunk, cached, lanes, context), us in read_attention(path / "attention.csv").items():
        on_grid = chunk in grid.chunk and cached in grid.kv_prefill
        if chunk and not (on_grid and (not lanes or context in grid.kv_decode)):
            errors.append(grid.mixed_us(chunk, cached, lanes, context, context) / us - 1)
    assert len(errors) > 10_000
    assert abs(statistics.median(errors)) < 0.01
    assert statistics.fmean(abs(error) for error in errors) < 0.04


def _decode_only_seconds(folder: Path) -> list[tuple[int, float, int, float]]:
    """Return (lanes, mean context, longest, step ms) of the seconds that ran no prompt."""
    with (folder / "timeseries.csv").open() as file:
        series = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    requests = [json.loads(line) for line in (folder / "requests.jsonl").open()]
    start = min(request["queued_ts"] for request in requests)
    found = []
    for before, second in itertools.pairwise(series):
        lanes = (before["running"] + second["running"]) / 2
        if second["prompt_throughput"] or before["running"] != second["running"] or lanes < 2:
            continue
        at = start + second["t"] - 0.5
        contexts = []
        for request in requests:
            first, last = request["first_token_ts"], request["last_token_ts"]
            if first <= at < last:
                share = (at - first) / (last - first)
                contexts.append(request["input_toks"] + request["output_toks"] * share)
        if len(contexts) == lanes:
            step_ms = 1000 * lanes / second["gen_throughput"]
            found.append((len(contexts), statistics.fmean(contexts), round(max(contexts)), step_ms))
    return found


@pytest.mark.parametrize(
    ("name", "run", "least"),
    [
        ("rtx-pro-6000/llama-3.1-8b", "RTXPRO6000/Llama-3.1-8B", 3),
        ("rtx-pro-6000/qwen3-32b", "RTXPRO6000/Qwen3-32B", 30),
    ],
)
def test_decode_steps_agree_with_real_vllm_runs(
    originals: Path, name: str, run: str, least: int
) -> None:
    """Seconds without prompts tell the step time: running requests over tokens per second."""
    costs = ComposedCosts(load_shipped(name))
    folder = originals / "llmservingsim" / "bench" / "examples" / run / "vllm"
    errors = []
    for lanes, mean, longest, step_ms in _decode_only_seconds(folder):
        rest = round((mean * lanes - longest) / (lanes - 1))
        work = [LaneWork(1, longest, is_prompt=False)]
        work += [LaneWork(1, rest, is_prompt=False)] * (lanes - 1)
        errors.append(costs.step_ns(None, work) / (1e6 * step_ms) - 1)
    assert len(errors) >= least
    assert abs(statistics.median(errors)) < 0.03


def test_originals_that_lack_points_are_refused_by_file(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    path.write_text("prefill_chunk,kv_prefill,n_decode,kv_decode\n")
    with pytest.raises(ValueError, match=r"attention\.csv:1: no column time_us"):
        read_attention(path)
    path.write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n1,2,3\n")
    with pytest.raises(ValueError, match=r"attention\.csv:2: 3 fields, the header has 5"):
        read_attention(path)
    path.write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n1,2,3,4,fast\n")
    with pytest.raises(ValueError, match=r"attention\.csv:2: could not convert"):
        read_attention(path)
    path.write_text("a\n")
    with pytest.raises(ValueError, match="no line of data"):
        read_rows(path, ("a",))


def test_a_folder_with_a_hole_in_its_grid_is_refused(tmp_path: Path, originals: Path) -> None:
    name = "rtx-4090/llama-3.1-8b"
    source = originals / "llmservingsim" / "profiler" / "perf" / PROFILES[name].folder
    for file in ("dense.csv", "per_sequence.csv"):
        (tmp_path / file).write_bytes((source / file).read_bytes())
    lines = (source / "attention.csv").read_text().splitlines(keepends=True)
    hole = next(line for line in lines if line.startswith("512,1024,8,2048,"))
    (tmp_path / "attention.csv").write_text("".join(line for line in lines if line != hole))
    with pytest.raises(ValueError, match=r"no measured point \(512, 1024, 8, 2048\)"):
        read_table(tmp_path, PROFILES[name].facts)


def test_skew_is_the_share_between_mean_and_longest(tmp_path: Path) -> None:
    header = "regime,n,ratio,t_mean_us,t_max_us,t_skew_us\n"
    rows = ("pure,2,0.5,100,200,120", "pure,2,0.9,100,200,190", "pure,8,0.25,100,300,140")
    rows += ("mixed,2,0.5,100,200,190", "mixed,8,0.5,100,200,95")
    (tmp_path / "skew.csv").write_text(header + "\n".join(rows) + "\n")
    skew = fit_skew(tmp_path / "skew.csv")
    assert (skew.lanes, skew.pure, skew.mixed) == ((2, 8), (0.2, 0.2), (0.9, 0.0))


@pytest.mark.parametrize("name", shipped_names())
def test_more_keys_never_make_a_mixed_step_faster_beyond_the_measured_contexts(name: str) -> None:
    """Both contexts outside the grid: each extended by its own last segment gave 0 ms.

    Few lanes only: beside tens of lanes of 16k the measured times themselves fall by 40 % from one
    prompt context to the next, where the kernel changes its split.
    """
    grid = load_shipped(name).attention
    last = grid.kv_prefill[-1]
    rises = (1.0, 1.3, 2.0, 2.6, 4.0, 6.4)
    for chunk, lanes in itertools.product((16, 64, 512, 2048), (1, 3, 7)):
        for other in (last // 4, last, 2 * last, 4 * last):
            cached = [grid.mixed_us(chunk, last * r, lanes, other, other) for r in rises]
            beside = [grid.mixed_us(chunk, other, lanes, last * r, last * r) for r in rises]
            for times in (cached, beside):
                assert all(b > 0.9 * a for a, b in itertools.pairwise(times)), (chunk, lanes)
            alone = [grid.chunk_us(chunk, last * r) for r in rises]
            assert all(t > 0.9 * a for t, a in zip(cached, alone, strict=True)), (chunk, lanes)
