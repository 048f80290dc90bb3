"""What a scenario's records say: throughput in tokens, first-token times, delivery gaps."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence

from flare.load.http_stream import LoadError, StreamRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One scenario, measured once."""

    scenario: str
    figures: dict[str, float]
    """Figure name with its unit last -> value."""


def output_tokens_of(record: StreamRecord, expected: int) -> int:
    """Return the tokens of one finished request, by the server's own count.

    Deliveries are not tokens: several tokens may come at once, and one may carry no text. Raises
    LoadError where the count is missing or not what `ignore_eos` and the limit prescribe.
    """
    if record.usage is None:
        raise LoadError("the server sent no usage, so tokens cannot be counted")
    counted = record.usage.completion_tokens
    if counted != expected:
        raise LoadError(f"{counted} output tokens where {expected} were ordered (ignore_eos?)")
    return counted


def gaps_ms(record: StreamRecord) -> list[float]:
    """Return the intervals between successive deliveries of one request."""
    times = record.deliveries_ns
    return [(after - before) / 1e6 for before, after in itertools.pairwise(times)]


def worst_gap_during_ms(records: Iterable[StreamRecord], begin_ns: int, end_ns: int) -> float:
    """Return the longest wait for a delivery that overlaps [begin, end], over all streams.

    A stream that is still waiting at the end counts with what it has waited so far.
    """
    worst = 0.0
    for record in records:
        times = [*record.deliveries_ns]
        if not times or times[-1] < end_ns:
            times.append(end_ns)
        for before, after in itertools.pairwise(times):
            if after > begin_ns and before < end_ns:
                worst = max(worst, (after - before) / 1e6)
    return worst


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at `share` (0 to 1) of the sorted values, by the nearest-rank rule."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def inside_share(records: Sequence[StreamRecord], replay_ns: float) -> dict[str, float]:
    """Return the share of the wall time of these requests that was spent replaying programs."""
    begin_ns = min(record.sent_ns for record in records)
    end_ns = max(record.ended_ns for record in records)
    return {"inside_programs_percent": 100 * replay_ns / (end_ns - begin_ns)}


def throughput(name: str, records: Sequence[StreamRecord], output_tokens: int) -> Measurement:
    """Summarise streams that started together: aggregate rate, first tokens, gaps."""
    tokens = sum(output_tokens_of(record, output_tokens) for record in records)
    begin_ns = min(record.sent_ns for record in records)
    end_ns = max(record.deliveries_ns[-1] for record in records)
    gaps = [gap for record in records for gap in gaps_ms(record)] or [0.0]
    return Measurement(
        scenario=name,
        figures={
            "tokens_per_s": tokens / ((end_ns - begin_ns) / 1e9),
            "first_token_ms": statistics.median(record.first_token_ms for record in records),
            "gap_p50_ms": percentile(gaps, 0.50),
            "gap_p99_ms": percentile(gaps, 0.99),
            "gap_max_ms": max(gaps),
        },
    )
