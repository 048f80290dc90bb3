"""The tables of a measurement as text cells; terminal, page and markdown draw the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flare.bench.comparison import by_round, ratio, runs_of, spread
from flare.bench.figures import FIGURES, SAMPLES, Figures
from flare.bench.rounds import Outcome
from flare.bench.scenario_files import NamedScenario
from scheduling_sim.report.figures import percent, shown
from scheduling_sim.report.tables import Table

_LATENCIES: Final = ("count", "mean", "p50", "p90", "p99", "worst")
_LATE_MS: Final = 20.0
"""A load generator that sends later than this at P99 is part of what it measures."""


def tables(outcome: Outcome) -> Iterator[Table]:
    """Yield every table that has something to say, the comparison first."""
    yield headline_table(outcome)
    yield latency_table(outcome)
    yield outcome_table(outcome)
    if outcome.settings.rounds > 1:
        yield round_table(outcome)


def _names(outcome: Outcome) -> list[str]:
    return [one.name for one in outcome.settings.contenders]


def _rows(outcome: Outcome) -> Iterator[tuple[NamedScenario, str]]:
    for named in outcome.settings.scenarios:
        for figure in named.scenario.headline:
            yield named, figure


def _measure(named: NamedScenario, figure: str) -> str:
    meaning = FIGURES[figure]
    unit = f", {meaning.unit}" if meaning.unit else ""
    return f"{named.scenario.title}: {meaning.title}{unit}"


def figure_text(figure: str, value: float | None) -> str:
    """Return a figure as tables show it."""
    return percent(value) if FIGURES[figure].unit == "share" else shown(value)


def headline_table(outcome: Outcome) -> Table:
    """Return one row per headline figure: medians of rounds, and the first server's ratio."""
    names, rows = _names(outcome), []
    for named, figure in _rows(outcome):
        cells = [_measure(named, figure)]
        for name in names:
            found = spread(outcome, name, named.name, figure)
            cells.append(figure_text(figure, found.median if found else None))
        if len(names) > 1:
            compared = ratio(outcome, named.name, figure)
            cells.append(f"{compared.spread.median:.2f} x" if compared else "-")
            if len(names) > 2:
                cells.append(compared.other if compared else "-")
        rows.append(tuple(cells))
    columns = ["measure", *names]
    notes = [f"Median of {outcome.settings.rounds} rounds."] if outcome.settings.rounds > 1 else []
    if len(names) > 1:
        columns.append(f"{names[0]} / {'best other' if len(names) > 2 else names[1]}")
        notes.append("The ratio is the median of the ratios within each round.")
    if len(names) > 2:
        columns.append("best other")
    return Table(
        "Comparison" if len(names) > 1 else "Headline",
        tuple(columns),
        tuple(rows),
        1,
        " ".join(notes),
    )


def latency_table(outcome: Outcome) -> Table:
    """Return the distribution of every latency: medians over rounds of each statistic."""
    rows = []
    for named in outcome.settings.scenarios:
        for server in _names(outcome):
            for place, sample in enumerate(_shown_samples(outcome, server, named.name)):
                cells = [named.name, server] if place == 0 else ["", ""]
                cells.append(SAMPLES[sample].title)
                for statistic in _LATENCIES:
                    found = spread(outcome, server, named.name, f"{sample}.{statistic}")
                    value = None if found is None else found.median
                    cells.append(
                        f"{value:,.0f}" if statistic == "count" and value else shown(value)
                    )
                rows.append(tuple(cells))
    columns = ("scenario", "server", "latency, ms", "count", "mean", "P50", "P90", "P99", "worst")
    return Table("Latency", columns, tuple(rows), 3, "Per round; medians over rounds.")


def _shown_samples(outcome: Outcome, server: str, scenario: str) -> list[str]:
    """Return the latencies that have values; gaps per token only where they differ."""
    found = []
    for sample in SAMPLES:
        counts = by_round(outcome, server, scenario, f"{sample}.count")
        if any(counts.values()):
            found.append(sample)
    if "token_gap_ms" in found and not _chunks_differ(outcome, server, scenario):
        found.remove("token_gap_ms")
    return found


def _chunks_differ(outcome: Outcome, server: str, scenario: str) -> bool:
    runs = runs_of(outcome, server, scenario)
    return any(run.figures.get("output_tokens") != run.figures.get("chunks") for run in runs)


def outcome_table(outcome: Outcome) -> Table:
    """Return what became of the requests of all rounds; nothing is left out."""
    rows, reasons = [], []
    for named in outcome.settings.scenarios:
        for server in _names(outcome):
            runs = runs_of(outcome, server, named.name)
            if not runs:
                rows.append((named.name, server, *("-" for _ in range(7))))
                continue
            totals = [
                sum(int(run.figures.get(name) or 0) for run in runs)
                for name in ("requests", "complete", "failed", "short", "output_tokens", "chunks")
            ]
            unserved = [v for run in runs if (v := run.figures.get("unserved_ms")) is not None]
            rows.append(
                (
                    *(named.name, server),
                    *(f"{total:,}" for total in totals),
                    shown(max(unserved) if unserved else None),
                )
            )
            reasons += [
                f"{server} {named.name} round {run.round_number}: {count} x {reason} ({message})"
                for run in runs
                for reason, (count, message) in run.failures.items()
            ]
    columns = (
        *("scenario", "server", "requests", "complete", "failed", "short"),
        *("output tokens", "chunks", "longest unserved, ms"),
    )
    return Table("Outcomes, all rounds", columns, tuple(rows), 2, "; ".join(reasons))


def round_table(outcome: Outcome) -> Table:
    """Return the headline figures of every round, so that their noise can be seen."""
    rounds = range(1, outcome.settings.rounds + 1)
    rows = []
    for named, figure in _rows(outcome):
        for place, server in enumerate(_names(outcome)):
            values = by_round(outcome, server, named.name, figure)
            cells = (figure_text(figure, values.get(number)) for number in rounds)
            rows.append((_measure(named, figure) if place == 0 else "", server, *cells))
    columns = ("measure", "server", *(f"round {number}" for number in rounds))
    return Table("Rounds", columns, tuple(rows), 2)


def remarks(outcome: Outcome) -> list[str]:
    """Return what a reader must know about the figures, a sentence each."""
    found = []
    if outcome.warm_up_requests:
        found.append(
            f"Warm-up: {outcome.warm_up_requests} requests were sent first and not counted."
        )
    elif not outcome.settings.warm_up:
        found.append("There was no warm-up: first executions are in the figures.")
    found += [f"{note[:1].upper()}{note[1:]}." for note in outcome.notes]
    for named in outcome.settings.scenarios:
        for server in _names(outcome):
            runs = runs_of(outcome, server, named.name)
            for remark in _remarks_of([run.figures for run in runs]):
                found.append(f"{server}, {named.name}: {remark}")
    return found


def _remarks_of(rounds: list[Figures]) -> Iterator[str]:
    def total(name: str) -> int:
        return sum(int(figures.get(name) or 0) for figures in rounds)

    tokens, chunks = total("output_tokens"), total("chunks")
    if chunks and tokens != chunks:
        yield (
            f"usage says {tokens:,} output tokens, {chunks:,} chunks arrived "
            f"({tokens / chunks:.2f} tokens per chunk); gaps are per chunk and per token."
        )
    if total("without_usage"):
        yield f"{total('without_usage')} answers without usage are counted by chunks."
    if total("short"):
        yield f"{total('short')} of {total('complete')} answers are shorter than ordered."
    late = max((float(figures.get("lag_p99_ms") or 0) for figures in rounds), default=0.0)
    if late > _LATE_MS:
        yield (
            f"requests were sent up to {late:.0f} ms late (P99: connecting and the load "
            "generator itself); latencies count from when they were due."
        )


def markdown(outcome: Outcome) -> str:
    """Return the comparison as a markdown table."""
    table = headline_table(outcome)
    rule = ["---", *("---:" for _ in table.columns[1:])]
    lines = (table.columns, rule, *table.rows)
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
