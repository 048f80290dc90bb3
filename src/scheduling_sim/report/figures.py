"""What each figure means and how it is written: names, units, definitions, shown digits."""

from __future__ import annotations

from typing import Final, NamedTuple


class Meaning(NamedTuple):
    """One figure, or one family of figures when its name ends in a dot."""

    name: str
    title: str
    unit: str
    definition: str


MEANINGS: Final = (
    Meaning("goodput", "Goodput", "requests/s", "Requests that met both objectives, per second."),
    Meaning(
        "goodput_share",
        "Within objectives",
        "share",
        "Requests that met both objectives, of those judged. Abandoned and unfinished requests are "
        "judged as soon as they break an objective; errors and rejections always miss.",
    ),
    Meaning("ttft_ms.", "TTFT", "ms", "Arrival to the first visible token."),
    Meaning(
        "gap_ms.",
        "Inter-token gap",
        "ms",
        "Time between neighbouring visible deliveries of a request, all requests together; "
        "a delivery may bring several tokens.",
    ),
    Meaning(
        "tpot_ms.",
        "Time per output token",
        "ms",
        "(last - first delivery) / (output tokens - 1) of each request.",
    ),
    Meaning("e2e_ms.", "End-to-end latency", "ms", "Arrival to the end of a whole answer."),
    Meaning(
        "unserved_ms",
        "Longest unserved wait",
        "ms",
        "The longest that any request without output waited, to its end or that of the run.",
    ),
    Meaning("prompt_tokens_per_s", "Prompt tokens", "tokens/s", "Computed; replays not counted."),
    Meaning("output_tokens_per_s", "Output tokens", "tokens/s", "Delivered."),
    Meaning("requests_per_s", "Requests", "requests/s", "Whole answers that ended."),
    Meaning(
        "qoe.",
        "Quality of experience",
        "0 to 1",
        "Andes: area under the curve of tokens read over the area under the expected curve.",
    ),
    Meaning(
        "service_gap",
        "Service gap",
        "weighted tokens",
        "Largest difference of service between two tenants over any time both were backlogged.",
    ),
    Meaning(
        "jain",
        "Jain index",
        "1/n to 1",
        "Of the tenants' service while all of them were backlogged.",
    ),
    Meaning(
        "padding_share",
        "Padding",
        "share",
        "Computed rows that neither consumed a prompt token nor yielded an output token.",
    ),
    Meaning("busy_share", "Device busy", "share", "Device time of all steps over the run."),
    Meaning("pages.", "Pages in use", "pages", "Of the cache, weighted by time."),
    Meaning("waiting.", "Waiting requests", "requests", "Without a row, weighted by time."),
    Meaning(
        "cached_share", "Prefix hits", "share", "Prompt tokens that a kept state saved, of all."
    ),
    Meaning("decision_us.", "Decision time", "us", "Real host time per step; not simulated."),
    Meaning("acceptance", "Acceptance", "share", "Accepted of the offered proposals."),
    Meaning("preemptions", "Preemptions", "", "Requests that lost their pages and began again."),
)


def shown(value: float | None, digits: int = 3) -> str:
    """Return a figure with so many significant digits, at most three decimals; a dash for None."""
    if value is None:
        return "-"
    if value == 0 or isinstance(value, int):
        return f"{value:,}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(0, min(3, digits - whole))}f}"


def percent(value: float | None) -> str:
    """Return a share as a percentage with one decimal; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"
