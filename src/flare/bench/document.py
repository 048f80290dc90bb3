"""A measurement as JSON and CSV: what was measured, where, with what, and every figure."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from flare.bench.comparison import Spread, ratio, spread
from flare.bench.figures import FIGURES
from flare.bench.records import RequestRecord
from flare.bench.rounds import Outcome, Run
from flare.bench.tables import remarks
from scheduling_sim.metrics.distribution import PERCENTILE_METHOD

SCHEMA: Final = "flare-bench"
SCHEMA_VERSION: Final = 1
_DIGITS: Final = 7


class Origin(NamedTuple):
    """Where a measurement was made, and how to make it again."""

    made_at: str
    """UTC, ISO 8601."""
    version: str
    commit: str
    command: str
    """Without keys."""
    machine: dict[str, object]
    """That the load generator ran on; the servers too where their URL is a loopback one."""


def document(outcome: Outcome, origin: Origin) -> dict[str, Any]:
    """Return the whole measurement; readers skip fields that they do not know."""
    settings = outcome.settings
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **origin._asdict(),
        "seed": settings.seed,
        "rounds": settings.rounds,
        "is_partial": outcome.is_partial,
        "is_warmed_up": settings.warm_up,
        "warm_up_requests": outcome.warm_up_requests,
        "timeout_s": settings.timeout_s,
        "has_exact_prompts": settings.tokenizer_file is not None,
        "extra_body": dict(settings.extra_body),
        "percentiles": PERCENTILE_METHOD,
        "scenarios": [
            {"name": named.name, **named.scenario.model_dump(mode="json")}
            for named in settings.scenarios
        ],
        "servers": [_server(outcome, one.name) for one in settings.contenders],
        "results": [_run(run) for run in outcome.runs],
        "medians": _medians(outcome),
        "ratios": list(_ratios(outcome)),
        "remarks": remarks(outcome),
        "failures": list(outcome.failures),
    }


def _server(outcome: Outcome, name: str) -> dict[str, Any]:
    contender = next(one for one in outcome.settings.contenders if one.name == name)
    target = outcome.targets.get(name)
    return {
        "name": name,
        "url": target.base if target and not contender.command else None,
        "is_started": contender.command is not None,
        "model": target.model if target else contender.model,
        "ready_s": [_rounded(value) for value in outcome.ready_s.get(name, [])],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "server": run.server,
        "scenario": run.scenario,
        "round": run.round_number,
        "is_partial": run.is_partial,
        "figures": {name: _rounded(value) for name, value in run.figures.items()},
        "failures": [
            {"reason": reason, "requests": count, "first_message": message}
            for reason, (count, message) in run.failures.items()
        ],
    }


def _medians(outcome: Outcome) -> dict[str, dict[str, dict[str, float | None]]]:
    tree: dict[str, dict[str, dict[str, float | None]]] = {}
    for contender in outcome.settings.contenders:
        for named in outcome.settings.scenarios:
            figures = {}
            for figure in FIGURES:
                found = spread(outcome, contender.name, named.name, figure)
                if found is not None:
                    figures[figure] = _rounded(found.median)
            tree.setdefault(contender.name, {})[named.name] = figures
    return tree


def _ratios(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for named in outcome.settings.scenarios:
        for figure in named.scenario.headline:
            compared = ratio(outcome, named.name, figure)
            if compared is not None:
                yield {
                    "scenario": named.name,
                    "figure": figure,
                    "server": outcome.settings.contenders[0].name,
                    "best_other": compared.other,
                    **Spread(*map(_known, compared.spread))._asdict(),
                }


def _known(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _rounded(value: float | None) -> float | None:
    return _known(value) if isinstance(value, float) else value


def json_text(outcome: Outcome, origin: Origin) -> str:
    """Return the document as text. Raises ValueError for a figure that is not finite."""
    return json.dumps(document(outcome, origin), indent=1, allow_nan=False) + "\n"


_COLUMNS: Final = (
    *("server", "scenario", "round", "request", "role", "is_warm_up", "due_ms", "lag_ms"),
    *("prompt_tokens", "output_tokens", "chunks", "ttft_ms", "worst_gap_ms", "e2e_ms"),
    *("finish_reason", "failure", "message"),
)


def requests_csv(outcome: Outcome) -> str:
    """Return one line per counted request; times are ms, `due_ms` from the run's first request."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for run in outcome.runs:
        begin_ns = min(record.due_ns for record in run.records)
        for record in run.records:
            where = (run.server, run.scenario, run.round_number)
            lines.writerow([*where, *_cells(record, begin_ns)])
    return out.getvalue()


def _cells(record: RequestRecord, begin_ns: int) -> Iterator[str]:
    usage, failure = record.usage, record.failure
    gaps = [after - before for before, after in itertools.pairwise(record.chunk_ns)]
    yield str(record.number)
    yield record.role.value
    yield str(record.is_warm_up)
    yield _ms(record.due_ns - begin_ns)
    yield _ms(record.sent_ns - record.due_ns if record.sent_ns else None)
    yield str(usage.prompt_tokens if usage else record.ordered_prompt_tokens)
    yield str(record.output_tokens)
    yield str(len(record.chunk_ns))
    yield _ms(record.ttft_ns)
    yield _ms(max(gaps, default=None))
    yield _ms(record.ended_ns - record.due_ns if record.is_complete else None)
    yield record.finish_reason or ("left" if record.was_left else "")
    yield failure.reason if failure else ""
    yield failure.message if failure else ""


def _ms(time_ns: int | None) -> str:
    return "" if time_ns is None else f"{time_ns / 1e6:.3f}"
