"""Reader of the Azure LLM inference trace 2023 (conversation and code): CSV of times and lengths.

Patel et al., Splitwise, ISCA 2024; data licensed CC-BY 4.0 by Microsoft. The trace has no content,
so no two prompts share a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.records import Segment, Workload
from scheduling_sim.workload.trace_lines import (
    NS_PER_S,
    LineError,
    ReadOptions,
    TraceLine,
    raw_lines,
    read_lines,
    to_workload,
)

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LICENCE: Final = "Azure LLM inference trace 2023, Microsoft, CC-BY 4.0"

_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII
)
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def read_azure(
    path: Path, *, name: str = "azure-conv", options: ReadOptions | None = None
) -> Workload:
    """Return the workload of a CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.

    Columns may stand in any order, under exactly these names. Raises WorkloadError for a file that
    is not such a trace; `Workload.skipped` lists single lines that are left out.
    """
    rules = options or ReadOptions()
    lines = raw_lines(path)
    header = tuple(field.strip() for field in lines[0].text.split(","))
    if sorted(header) != sorted(COLUMNS):
        raise WorkloadError(
            f"{path}:1: the columns are {', '.join(header)!r}; {', '.join(COLUMNS)!r} is right"
        )
    if not lines[1:]:
        raise WorkloadError(f"{path}: a header and no requests")
    order = tuple(header.index(column) for column in COLUMNS)
    used, skipped = read_lines(path, lines[1:], lambda text: _parse(text, order), rules)
    return to_workload(
        path,
        name,
        used,
        skipped,
        options=rules,
        licence=LICENCE,
        segments=lambda number, line: _content(name, number, line),
        endpoints=lambda _: (),
    )


def _content(name: str, number: int, line: TraceLine) -> Iterator[Segment]:
    yield Segment(content_identity(name, "prompt", number), line.prompt_tokens)


def _parse(text: str, order: tuple[int, ...]) -> TraceLine:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != len(COLUMNS):
        raise LineError(f"{len(fields)} fields; {len(COLUMNS)} are right")
    time, prompt, output = (fields[index] for index in order)
    return TraceLine(
        parse_time_ns(time), _count("ContextTokens", prompt), _count("GeneratedTokens", output)
    )


def _count(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise LineError(f"{name} is {text[:40]!r}; a whole number is right")
    return int(text)


def parse_time_ns(text: str) -> int:
    """Return ns since 1970-01-01 UTC of `YYYY-MM-DD HH:MM:SS[.fraction]`; LineError otherwise.

    Written out because the simulator imports no module that knows the time of day.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise LineError(f"TIMESTAMP is {text[:40]!r}; YYYY-MM-DD HH:MM:SS.fraction is right")
    year, month, day, hour, minute, second = (int(match[index]) for index in range(1, 7))
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= _days(year, month)):
        raise LineError(f"TIMESTAMP is {text!r}; there is no such day between 1970 and 2200")
    if hour > 23 or minute > 59 or second > 59:
        raise LineError(f"TIMESTAMP is {text!r}; there is no such time of day")
    days = sum(365 + _is_leap(earlier) for earlier in range(1970, year))
    days += sum(_days(year, earlier) for earlier in range(1, month)) + day - 1
    fraction_ns = int((match[7] or "0").ljust(9, "0"))
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * NS_PER_S + fraction_ns


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days(year: int, month: int) -> int:
    return _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year))
