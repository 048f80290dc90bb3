"""The summary of docs/evaluation.md is written by hand; its figures are counted here from rows.

A row that is made again with another figure fails the sentence that still tells the old one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from scheduling_sim.study import field, goodput
from scheduling_sim.study.cells import Row, Verdict, number
from scheduling_sim.study.groups import GROUPS
from scheduling_sim.study.page import read_rows

DOCS = Path(__file__).parents[3] / "docs"


@functools.cache
def rows_of(name: str) -> Mapping[str, Row]:
    group = next(group for group in GROUPS if group.name == name)
    return read_rows(DOCS / "evaluation", group)


@functools.cache
def summary() -> str:
    """Return the section `In short` in one line."""
    page = (DOCS / "evaluation.md").read_text(encoding="utf-8")
    return " ".join(page.partition("## In short")[2].partition("\n## ")[0].split())


def test_replays() -> None:
    errors = [
        abs(value)
        for row in rows_of("replay").values()
        for key, value in row.items()
        if re.fullmatch(r"T\w+ \w+ %", key) and isinstance(value, float)
    ]
    near = [error for error in errors if error <= 5.0]
    assert f"{len(near)} of {len(errors)} statistics of three real vLLM runs" in summary()
    assert f"the other {max(errors):.1f} % off" in summary()
    own = [
        sum(
            key.endswith(" %") and isinstance(value, float) and abs(value) <= 5.0
            for key, value in row.items()
        )
        for row in rows_of("recorded-run").values()
    ]
    assert f"our own recorded CPU run {max(own)} of 12 at best" in summary()


def ratios(trace: str, policy: str, kind: str) -> tuple[list[str], str]:
    """Return a policy's median ratios to the best baseline over the loads, and the least window."""
    figures = [
        verdict.figure
        for verdict in goodput.verdicts(rows_of(f"goodput-{trace}"))
        if f"`{policy}`" in verdict.what and f"{kind} gap" in verdict.what
    ]
    assert len(figures) == len(goodput.LOADS)
    medians = sorted(figure.partition(" ")[0] for figure in figures)
    return medians, min(figure.partition("windows ")[2].partition(" ")[0] for figure in figures)


def test_goodput_on_mooncake() -> None:
    told = {kind: ratios("mooncake", goodput.STATED, kind) for kind in ("P99", "worst")}
    preset = {kind: ratios("mooncake", "helios", kind)[0] for kind in ("P99", "worst")}
    for kind, words in (("P99", "by P99 gap"), ("worst", "by worst gaps")):
        medians, least = told[kind]
        assert f"{words} {medians[0]} to {medians[-1]} x" in summary()
        assert f"(least window {least})" in summary()
    (low, *_, high), (worst_low, *_, worst_high) = preset["P99"], preset["worst"]
    assert f"({low} to {high} x by P99, {worst_low} to {worst_high} x by worst gaps)" in summary()
    fine = {kind: ratios("mooncake", goodput.FINE, kind)[0] for kind in ("P99", "worst")}
    (low, *_, high), (worst_low, *_, worst_high) = fine["P99"], fine["worst"]
    assert f"{low} to {high} x by P99 gaps and {worst_low} to {worst_high} x by worst" in summary()


def test_goodput_on_azure() -> None:
    for kind in ("P99", "worst"):
        medians, least = ratios("azure", "helios", kind)
        assert float(least) >= goodput.LEAST
        assert medians[-1] == "1.00"
    lowest = ratios("azure", "helios", "worst")[0][0]
    assert f"({lowest} to 1.00 x, by P99 and by the worst gap of each request)" in summary()
    p99, worst = (ratios("azure", goodput.STATED, kind)[1] for kind in ("P99", "worst"))
    assert f"it has a window of {p99} and one of {worst} at 95 % load" in summary()


def test_the_field() -> None:
    counted = {
        word: [sum(_count(verdict.figure, place) for verdict in found) for place in range(3)]
        for word, found in _by_measure(field.verdicts(rows_of("field")))
    }
    (won, tied, lost) = counted["within objectives"]
    assert (
        f"{won + tied + lost} pairs): within the objectives {won} won, {tied} tied, {lost} lost"
        in (summary())
    )
    for word, words in (
        ("gap P99", "gaps at P99"),
        ("TTFT P50", "first tokens at the median"),
        ("TTFT P99", "at P99"),
        ("tok/s", "tokens per second"),
    ):
        won, tied, lost = counted[word]
        assert f"{words} {won}, {tied} and {lost}" in summary()


def _by_measure(found: Iterable[Verdict]) -> list[tuple[str, list[Verdict]]]:
    verdicts = list(found)
    words = dict.fromkeys(verdict.what.partition(", ")[2] for verdict in verdicts)
    return [(word, [one for one in verdicts if one.what.endswith(f", {word}")]) for word in words]


def _count(figure: str, place: int) -> int:
    return int(figure.split(", ")[place].partition(" ")[0])


def test_one_long_prompt() -> None:
    rows = rows_of("long-prompt")

    def both(name: str) -> str:
        row = rows[name]
        prompt, streams = (number(row, f"{who} rate kept %") for who in ("prefill", "decode"))
        return f"{prompt:.1f} and {streams:.1f} %"

    assert f"the preset has {both('ordinary helios')} on the ordinary catalog, " in summary()
    assert f"{both('mixed helios')} on the mixed one" in summary()
    small = both("mixed helios, prefills to 512, prefill_balance 4")
    assert f"{small} on the mixed one at 4" in summary()
    small = both("ordinary helios, prefills to 512, prefill_balance 6.2")
    assert f"(prefills up to 512: {small} on the ordinary one at `prefill_balance` 6.2" in summary()
    chunked = both("mixed chunked, budget_tokens 256")
    assert f"chunked prefill with a budget of 256 on the mixed one: {chunked})" in summary()


def test_tenants() -> None:
    def span(policy: str) -> str:
        shares = [
            number(row, "service gap") / number(row, "VTC's bound")
            for row in rows_of("tenants").values()
            if row["policy"] == policy
        ]
        return f"{min(shares):.2f} to {max(shares):.2f}"

    assert f"{span('helios')} of VTC's bound under Helios (VTC itself: {span('vtc')})" in summary()


def test_checkpoints() -> None:
    rows = rows_of("checkpoints")
    window, hour, large = (
        f"{number(rows[name], 'of the possible %'):.1f} %"
        for name in ("window pages 4M", "hour pages 16M", "hour pages 24M")
    )
    assert f"4M tokens keep {window} of the possible hit" in summary()
    assert f"16M tokens keep {hour} (**met**) and 24M {large}" in summary()


def test_the_hour_and_prompt_heavy_arrivals() -> None:
    hour, rival = (rows_of("azure-hour")[f"{name} 60 min"] for name in ("helios", "chunked"))
    took = f"{number(hour, 'wall_s'):.0f} s of wall time, {number(hour, 'cpu_s'):.0f} s of one core"
    assert f"{hour['requests']:,} requests and {hour['frames']:,} frames in {took}" in summary()
    ours, theirs = (number(row, "within objectives %") for row in (hour, rival))
    assert f"{ours:.1f} % of its requests are within" in summary()
    assert f"chunked prefill's {theirs:.1f} %" in summary()
    heavy = rows_of("prompt-heavy")
    assert f"worst gap {number(heavy['helios'], 'worst gap ms'):.0f} ms" in summary()
    first, later = (number(heavy[name], "TTFT P50 ms") / 1000 for name in ("helios", "chunked"))
    assert f"after {first:.1f} s, chunked prefill's after {later:.0f} s" in summary()


def test_long_run_rates() -> None:
    rows = rows_of("optimum").values()
    exact = [_error(row) for row in rows if row["is default"] == "no"]
    default = [_error(row) for row in rows if row["is default"] == "yes"]
    assert f"within {max(exact):.1f} % of the concave optimum" in summary()
    assert f"{min(default):.0f} to {max(default):.0f} % at the default adaptation" in summary()


def _error(row: Row) -> float:
    return max(abs(number(row, key)) for key in ("prompt error %", "worst decoder error %"))


@pytest.mark.parametrize("answers", [2, 12])
def test_adaptive_speculation(answers: int) -> None:
    rows = [row for row in rows_of("speculation").values() if row["answers"] == answers]
    shares = [number(row, "adaptive / best of both") for row in rows]
    if answers == 2:
        good = sum(share >= 0.98 for share in shares)
        assert f"Over two answers {good} of {len(rows)} rows have 0.98" in summary()
        alone = [number(row, "adaptive / best of both") for row in rows if row["streams"] == 1]
        assert f"one stream has {min(alone):.2f} to {max(alone):.2f}, so" in summary()
    else:
        strong, mtp, weak = shares
        assert f"one stream has {strong:.2f}, {mtp:.2f} and {weak:.3f}" in summary()


def test_a_full_machine() -> None:
    rtx, small, large = rows_of("saturation").values()
    key = "adaptive / none"
    fixed = number(rtx, "best fixed / none")
    assert f"{number(rtx, key):.2f} x none on RTX PRO 6000 (best fixed width {fixed:.2f})" in (
        summary()
    )
    assert f"{number(small, key):.2f} and **{number(large, key):.2f}** on H200" in summary()
