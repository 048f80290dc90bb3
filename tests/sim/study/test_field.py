"""The field: who is compared on what, and statements that are counted from rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scheduling_sim.metrics import measure
from scheduling_sim.study import field, standing
from scheduling_sim.study.cells import Row
from tests.sim.logs import request, run_log


def test_a_small_difference_is_a_tie_whichever_way_is_better() -> None:
    share, wait = standing.MEASURES[0], standing.MEASURES[1]
    assert [standing.standing(ours, 100.0, share) for ours in (103, 101, 99, 97)] == [
        "wins",
        "ties",
        "ties",
        "loses",
    ]
    assert [standing.standing(ours, 100.0, wait) for ours in (106, 104, 96, 94)] == [
        "loses",
        "ties",
        "ties",
        "wins",
    ]
    assert standing.standing(0.0, 0.0, share) == "ties"


def field_row(workload: str, policy: str, **changed: float) -> Row:
    row: Row = {measure.key: 100.0 for measure in standing.MEASURES}
    words = {measure.word.replace(" ", "_"): measure.key for measure in standing.MEASURES}
    changes = {words[word]: value for word, value in changed.items()}
    shared = {} if workload == "tenants" else {"service gap": None}
    return {"workload": workload, "policy": policy, **row, **shared, **changes}


def field_rows() -> dict[str, Row]:
    rows = [
        field_row("poisson", "helios"),
        field_row("poisson", "a", within_objectives=90.0, gap_P99=50.0),
        field_row("poisson", "b"),
        field_row("tenants", "helios"),
        field_row("tenants", "a", within_objectives=90.0, service_gap=900.0),
        field_row("tenants", "b", gap_P99=500.0),
        field_row("azure", "c"),
        field_row("tenants, rounds", "helios"),
        field_row("tenants, rounds", "plain", within_objectives=10.0, TTFT_P99=1.0),
    ]
    return {f"{row['workload']}: {row['policy']}": row for row in rows}


def test_every_rival_is_named_once_by_what_is_never_always_or_at_times_lost_to_it() -> None:
    judged = {one.what: (one.figure, one.why) for one in field.verdicts(field_rows())}
    assert judged["without rounds, within objectives"] == (
        "2 won, 2 tied, 0 lost",
        "Helios wins everywhere against a; never loses to b.",
    )
    assert judged["without rounds, gap P99"] == (
        "1 won, 2 tied, 1 lost",
        "Helios never loses to b; loses at times to a (1 of 2).",
    )
    assert judged["without rounds, service gap"][0] == "1 won, 1 tied, 0 lost"
    assert judged["with rounds, TTFT P99"][1] == "Helios loses everywhere to plain."
    assert "with rounds, service gap" not in judged, "nobody's was measured"


def test_tables_count_by_rival_and_name_whom_is_lost_to() -> None:
    text = field.summary(field_rows())
    without, _, rounds = text.partition("**With rounds.**")
    assert without.startswith("**Without rounds.** Workloads won / tied / lost")
    head = "| against | within objectives | TTFT P50 | TTFT P99 | gap P99 |"
    assert head in without
    assert "| a | 2 / 0 / 0 | 0 / 2 / 0 | 0 / 2 / 0 | 0 / 1 / 1 |" in without
    assert "| poisson | - | - | - | a |" in without
    assert "| tenants | - | - | - | - |" in without
    assert "| tenants, rounds | - | - | all | - |" in rounds
    assert "azure" not in text, "where Helios has no row there is nothing to compare"
    assert field.summary({"c": field_row("azure", "c")}) == ""


def test_the_best_fixed_width_is_the_one_whose_answers_end_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int | None] = []
    slowest = {2: 30.0, 3: 10.0, 4: 20.0, 6: 40.0}
    log = run_log(request("a", deliveries=(30, 40), finished=40))
    plain = measure(log)

    def outcome(load: field.Load, policy: str, data: Path, width: int | None = None) -> object:
        asked.append(width)
        whole = dataclasses.replace(plain.e2e_ms, mean=slowest.get(width or 0, 5.0))
        return field.Outcome(log, dataclasses.replace(plain, e2e_ms=whole), width)

    monkeypatch.setattr(field, "outcome_of", outcome)
    cells = {cell.name: cell for cell in field.GROUP.cells}
    row = cells["16 streams, rounds: fixed-width"].run(Path("nowhere"))
    assert (row["width"], row["whole answer mean ms"]) == (3, 10.0)
    assert asked == [2, 3, 4, 6]
    assert cells["16 streams, rounds: turbospec"].run(Path("nowhere"))["width"] is None


def test_every_baseline_meets_every_workload_with_rounds_and_without() -> None:
    for load in field.LOADS:
        names = set(load.policies) - {"helios"}
        if load.has_rounds:
            assert names >= {"plain", "fixed-width", "turbospec"}
            names = {"vllm" if name == "plain" else name for name in names}
            names -= {"fixed-width", "turbospec"}
        assert names == {
            *("fcfs", "prefill-first", "chunked", "vllm", "vtc", "mlfq", "srpt", "vllm-free")
        }
    titles = {load.title for load in field.LOADS}
    assert {f"{load.title}, rounds" for load in field.LOADS if not load.has_rounds} < titles
    assert {"tenants", "mooncake", "azure"} < titles
