"""What the records of one scenario say, as named figures; what each one means is written here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from flare.bench.records import RequestRecord, Role
from flare.bench.scenario import Objectives
from scheduling_sim.metrics.distribution import Floats, distribution_of

Figures = dict[str, float | None]


class Meaning(NamedTuple):
    """How a figure is shown and what it is."""

    title: str
    unit: str
    definition: str
    is_better_when: str = ""
    """`more`, `less`, or nothing where neither is better."""


_SAMPLES: Final[dict[str, Meaning]] = {
    "ttft_ms": Meaning(
        "first token",
        "ms",
        "From when a request was due (sent, for closed streams) to its first text, connecting "
        "included; also of requests that failed later.",
        "less",
    ),
    "gap_ms": Meaning(
        "gap per chunk",
        "ms",
        "Between neighbouring chunks of one answer; a chunk may bring several tokens.",
        "less",
    ),
    "token_gap_ms": Meaning(
        "gap per token",
        "ms",
        "A chunk's gap divided by its tokens, counted once for each of them. Where an answer has "
        "more tokens than chunks, tokens are shared among its chunks by letters.",
        "less",
    ),
    "tpot_ms": Meaning(
        "time per output token",
        "ms",
        "Of each whole answer: (last - first chunk) / (output tokens - 1).",
        "less",
    ),
    "e2e_ms": Meaning(
        "end to end", "ms", "From when a request was due to the end of its whole answer.", "less"
    ),
}
_STATISTICS: Final = {
    "mean": "mean",
    "p50": "P50",
    "p90": "P90",
    "p95": "P95",
    "p99": "P99",
    "worst": "worst",
    "count": "count",
}
_SINGLE: Final[dict[str, Meaning]] = {
    "output_tokens_per_s": Meaning(
        "output",
        "tok/s",
        "Output tokens of the counted requests over the time from the first of them being due to "
        "their last chunk.",
        "more",
    ),
    "requests_per_s": Meaning("answers", "req/s", "Whole answers over the same time.", "more"),
    "requests": Meaning("requests", "", "Counted requests."),
    "complete": Meaning("complete", "", "Whole answers."),
    "failed": Meaning("failed", "", "Requests that brought no whole answer, by reason.", "less"),
    "short": Meaning(
        "short", "", "Whole answers with fewer tokens than an exact order asked for.", "less"
    ),
    "output_tokens": Meaning("output tokens", "", "By the server's usage, else by chunks."),
    "chunks": Meaning("chunks", "", "Events that carried text."),
    "tokens_per_chunk": Meaning("tokens per chunk", "", "Output tokens over chunks."),
    "without_usage": Meaning("without usage", "", "Whole answers whose tokens are chunks."),
    "prompt_tokens_mean": Meaning(
        "prompt tokens", "", "Mean by the server's usage, a chat's template included."
    ),
    "unserved_ms": Meaning(
        "longest unserved wait", "ms", "Of requests that got no output at all.", "less"
    ),
    "lag_p99_ms": Meaning(
        "own lag P99",
        "ms",
        "From due to sent: connecting, and what the load generator itself was late by.",
    ),
    "goodput_per_s": Meaning("goodput", "req/s", "Answers within the objectives.", "more"),
    "goodput_share": Meaning(
        "within objectives", "share", "Of all counted requests; failed ones never are.", "more"
    ),
    "inside_programs_share": Meaning(
        "inside programs",
        "share",
        "Of the scenario's time, by the server's own /metrics; servers that do not say have none.",
        "more",
    ),
    "meeting.worst_gap_ms": Meaning(
        "worst gap of the streams",
        "ms",
        "Longest wait of any running stream that overlaps the long prompt's wait.",
        "less",
    ),
    "meeting.ttft_ms": Meaning("first token of the long prompt", "ms", "As first token.", "less"),
    "meeting.chunks_per_s": Meaning(
        "chunks of the streams meanwhile", "1/s", "Delivered during that wait.", "more"
    ),
}


def _all_figures() -> dict[str, Meaning]:
    named = dict(_SINGLE)
    for sample, meaning in _SAMPLES.items():
        for statistic, title in _STATISTICS.items():
            named[f"{sample}.{statistic}"] = meaning._replace(title=f"{meaning.title} {title}")
    return named


FIGURES: Final[Mapping[str, Meaning]] = _all_figures()
SAMPLES: Final[Mapping[str, Meaning]] = _SAMPLES


def sample_ms(records: Sequence[RequestRecord], name: str) -> Floats:
    """Return every value of a sample (a name of SAMPLES) over counted stream requests, in ms."""
    streams = _streams(records)
    parts = [_OF_RECORD[name](record) for record in streams]
    return np.concatenate([np.zeros(0), *parts]) / 1e6


def figures_of(records: Sequence[RequestRecord], objectives: Objectives) -> Figures:
    """Return the figures of one run of a scenario; None is what has no value in it."""
    streams = _streams(records)
    figures: Figures = {**_throughput(streams), **_counts(streams), **_goodput(streams, objectives)}
    for name in SAMPLES:
        figures |= distribution_of(sample_ms(records, name)).figures(name)
    lags = np.array([one.sent_ns - one.due_ns for one in streams if one.sent_ns])
    figures["lag_p99_ms"] = distribution_of(lags, 1e6).p99
    meeting = next((one for one in records if one.role is Role.MEETING), None)
    if meeting is not None:
        figures |= _meeting(streams, meeting)
    return figures


def failures_of(records: Sequence[RequestRecord]) -> dict[str, tuple[int, str]]:
    """Return reason -> (requests, the first message) over all counted requests, meetings too."""
    failed = [one.failure for one in records if one.failure and not one.is_warm_up]
    counts = Counter(failure.reason for failure in failed)
    first = {failure.reason: failure.message for failure in reversed(failed)}
    return {reason: (count, first[reason]) for reason, count in counts.most_common()}


def _streams(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [one for one in records if one.role is Role.STREAM and not one.is_warm_up]


def _throughput(streams: Sequence[RequestRecord]) -> Figures:
    begin_ns = min((one.due_ns for one in streams), default=0)
    end_ns = max((one.chunk_ns[-1] for one in streams if one.chunk_ns), default=begin_ns)
    seconds = (end_ns - begin_ns) / 1e9
    if seconds <= 0:
        return {"output_tokens_per_s": None, "requests_per_s": None}
    # A request that failed or was left has no usage; what it delivered counts by chunks.
    return {
        "output_tokens_per_s": sum(one.output_tokens for one in streams) / seconds,
        "requests_per_s": sum(one.is_complete for one in streams) / seconds,
    }


def _counts(streams: Sequence[RequestRecord]) -> Figures:
    complete = [one for one in streams if one.is_complete]
    tokens, chunks = (
        sum(one.output_tokens for one in complete),
        sum(len(one.chunk_ns) for one in complete),
    )
    prompts = [one.usage.prompt_tokens for one in streams if one.usage is not None]
    unserved = [one.ended_ns - one.due_ns for one in streams if one.failure and not one.chunk_ns]
    return {
        "requests": len(streams),
        "complete": len(complete),
        "failed": sum(one.failure is not None for one in streams),
        "short": sum(0 < one.output_tokens < one.ordered_output_tokens for one in complete),
        "output_tokens": tokens,
        "chunks": chunks,
        "tokens_per_chunk": tokens / chunks if chunks else None,
        "without_usage": sum(one.usage is None for one in complete),
        "prompt_tokens_mean": float(np.mean(prompts)) if prompts else None,
        "unserved_ms": max(unserved) / 1e6 if unserved else None,
    }


def _goodput(streams: Sequence[RequestRecord], objectives: Objectives) -> Figures:
    if objectives == Objectives() or not streams:
        return {}
    good = sum(_is_good(one, objectives) for one in streams)
    begin_ns = min(one.due_ns for one in streams)
    seconds = (max(one.ended_ns for one in streams) - begin_ns) / 1e9
    return {
        "goodput_share": good / len(streams),
        "goodput_per_s": good / seconds if seconds > 0 else None,
    }


def _is_good(record: RequestRecord, objectives: Objectives) -> bool:
    if not record.is_complete or record.ttft_ns is None:
        return False
    gaps = _gaps_ns(record)
    worst_ms = float(gaps.max()) / 1e6 if gaps.size else 0.0
    return (objectives.ttft_ms is None or record.ttft_ns / 1e6 <= objectives.ttft_ms) and (
        objectives.gap_ms is None or worst_ms <= objectives.gap_ms
    )


def _meeting(streams: Sequence[RequestRecord], meeting: RequestRecord) -> Figures:
    if meeting.ttft_ns is None:
        return {}
    begin_ns, end_ns = meeting.due_ns, meeting.chunk_ns[0]
    delivered = sum(begin_ns < at <= end_ns for one in streams for at in one.chunk_ns)
    return {
        "meeting.ttft_ms": meeting.ttft_ns / 1e6,
        "meeting.worst_gap_ms": worst_gap_ns(streams, begin_ns, end_ns) / 1e6,
        "meeting.chunks_per_s": delivered / ((end_ns - begin_ns) / 1e9),
    }


def worst_gap_ns(streams: Sequence[RequestRecord], begin_ns: int, end_ns: int) -> int:
    """Return the longest wait for a chunk that overlaps [begin, end], over all streams.

    A stream that is still waiting at the end counts with what it has waited so far.
    """
    worst = 0
    for record in streams:
        times = list(record.chunk_ns)
        if not times or times[-1] < end_ns:
            times.append(end_ns)
        for before, after in itertools.pairwise(times):
            if after > begin_ns and before < end_ns:
                worst = max(worst, after - before)
    return worst


def _gaps_ns(record: RequestRecord) -> Floats:
    gaps: Floats = np.diff(np.array(record.chunk_ns, dtype=np.float64))
    return gaps


def tokens_of_chunks(record: RequestRecord) -> Floats:
    """Return the tokens of each chunk, shape [chunks], at least one in each.

    One each where the answer has no more tokens than chunks; otherwise shared by letters, since
    the wire does not say.
    """
    chunks, tokens = len(record.chunk_ns), record.output_tokens
    if tokens <= chunks:
        return np.ones(chunks)
    letters = np.array(record.chunk_letters, dtype=np.float64)
    shared: Floats = 1 + (tokens - chunks) * letters / letters.sum()
    return shared


def _token_gaps_ns(record: RequestRecord) -> Floats:
    gaps = _gaps_ns(record)
    if not gaps.size:
        return gaps
    # The first chunk has no gap, so its tokens have none either.
    tokens = tokens_of_chunks(record)[1:]
    return np.repeat(gaps / tokens, np.maximum(1, np.rint(tokens)).astype(np.int64))


def _ttft_ns(record: RequestRecord) -> Floats:
    return np.array([] if record.ttft_ns is None else [record.ttft_ns], dtype=np.float64)


def _tpot_ns(record: RequestRecord) -> Floats:
    if not record.is_complete or record.output_tokens < 2 or len(record.chunk_ns) < 2:
        return np.zeros(0)
    span_ns = record.chunk_ns[-1] - record.chunk_ns[0]
    return np.array([span_ns / (record.output_tokens - 1)])


def _e2e_ns(record: RequestRecord) -> Floats:
    return np.array([record.ended_ns - record.due_ns] if record.is_complete else [], np.float64)


_OF_RECORD: Final[dict[str, Callable[[RequestRecord], Floats]]] = {
    "ttft_ms": _ttft_ns,
    "gap_ms": _gaps_ns,
    "token_gap_ms": _token_gaps_ns,
    "tpot_ms": _tpot_ns,
    "e2e_ms": _e2e_ns,
}
