"""Lines of a trace file, and what is believed of them: the part that all readers share.

A file as a whole is refused when it cannot be read, is empty, or is mostly something else. A single
line that cannot be used is skipped with its number and the reason, never silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.errors import WorkloadError, require
from scheduling_sim.workload.lengths import (
    EXACT,
    MAX_TOKENS,
    OutOfContext,
    OutputLimit,
    fit_context,
)
from scheduling_sim.workload.records import Segment, SkippedLine, Workload, WorkloadRequest

MAX_FILE_BYTES: Final = 4 << 30
NS_PER_S: Final = 1_000_000_000
MAX_TIME_NS: Final = 1 << 62


class LineError(ValueError):
    """One line cannot be used; the message says why."""


class TraceLine(NamedTuple):
    """What a reader found in one line."""

    time_ns: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Identities of the prompt's blocks; empty where the trace has none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to do with lines that are readable but inconvenient."""

    context_tokens: int | None = None
    """The model's context; None believes every length up to ten million tokens."""
    out_of_context: OutOfContext = OutOfContext.KEEP
    limit: OutputLimit = EXACT
    max_gap_s: float = 3600.0
    """A later jump of time is an error of its line; a wrong date would end the trace otherwise."""
    max_skipped_share: float = 0.5
    """A file with more unusable lines than this is not of the format and is refused."""

    def __post_init__(self) -> None:
        require(
            self.context_tokens is None or self.context_tokens >= 2,
            f"context_tokens is {self.context_tokens}; at least 2 is right",
        )
        require(
            self.context_tokens is not None or self.out_of_context is OutOfContext.KEEP,
            f"out_of_context {self.out_of_context.value!r} needs context_tokens",
        )
        require(self.max_gap_s > 0.0, f"max_gap_s is {self.max_gap_s}; it must be positive")
        require(
            0.0 <= self.max_skipped_share < 1.0,
            f"max_skipped_share is {self.max_skipped_share}; from 0 to below 1 is right",
        )


class RawLine(NamedTuple):
    """A line of text with its number from 1."""

    number: int
    text: str
    is_complete: bool
    """It ends by a line feed; the last line of a file that was cut off does not."""


def raw_lines(path: Path) -> list[RawLine]:
    """Return the lines of a UTF-8 file; a byte order mark and carriage returns are left out.

    Raises WorkloadError when the file is missing, unreadable, empty, too large or not UTF-8.
    """
    try:
        size = path.stat().st_size
        require(size <= MAX_FILE_BYTES, f"{path}: {size} bytes; at most {MAX_FILE_BYTES} is right")
        data = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None
    require(bool(data.strip()), f"{path}: the file is empty; a trace with requests is right")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise WorkloadError(f"{path}:{line}: not UTF-8 text: {error.reason}") from None
    # Not splitlines: that would end a line at form feeds and Unicode separators too.
    parts = text.split("\n")
    ends = [True] * (len(parts) - 1) + [False]
    lines = [
        RawLine(number, part.rstrip("\r"), end)
        for number, (part, end) in enumerate(zip(parts, ends, strict=True), 1)
    ]
    return lines[:-1] if not parts[-1] else lines


def check_tokens(name: str, tokens: int) -> int:
    """Return a believable length; LineError otherwise."""
    if tokens < 1:
        raise LineError(f"{name} is {tokens}; at least 1 token is right")
    if tokens > MAX_TOKENS:
        raise LineError(f"{name} is {tokens}; more than {MAX_TOKENS} tokens is absurd")
    return tokens


def read_lines(
    path: Path,
    lines: Sequence[RawLine],
    parse: Callable[[str], TraceLine],
    options: ReadOptions,
) -> tuple[list[tuple[int, TraceLine]], list[SkippedLine]]:
    """Return the usable lines with their numbers, in order of time, and those that are skipped."""
    used: list[tuple[int, TraceLine]] = []
    skipped: list[SkippedLine] = []
    last_ns: int | None = None
    for raw in lines:
        try:
            line = _checked(raw, parse, last_ns, options)
        except LineError as error:
            skipped.append(SkippedLine(line=raw.number, why=str(error)))
            continue
        last_ns = line.time_ns
        used.append((raw.number, line))
    if not used or len(skipped) > options.max_skipped_share * len(lines):
        first = f"; the first: line {skipped[0].line}: {skipped[0].why}" if skipped else ""
        raise WorkloadError(
            f"{path}: {len(skipped)} of {len(lines)} lines are unusable, so this is not a trace of "
            f"the expected format{first}"
        )
    return used, skipped


def _checked(
    raw: RawLine, parse: Callable[[str], TraceLine], last_ns: int | None, options: ReadOptions
) -> TraceLine:
    if not raw.text.strip():
        raise LineError("an empty line")
    try:
        line = parse(raw.text)
    except LineError as error:
        if raw.is_complete:
            raise
        raise LineError(f"the last line, cut off in its middle: {error}") from None
    check_tokens("the prompt", line.prompt_tokens)
    check_tokens("the answer", line.output_tokens)
    if not 0 <= line.time_ns < MAX_TIME_NS:
        raise LineError(f"the time is {line.time_ns} ns; from 0 to 146 years is right")
    if last_ns is not None and line.time_ns < last_ns:
        back_s = (last_ns - line.time_ns) / NS_PER_S
        raise LineError(f"{back_s:g} s earlier than the line before; rising times are right")
    if last_ns is not None and line.time_ns - last_ns > options.max_gap_s * NS_PER_S:
        jump_s = (line.time_ns - last_ns) / NS_PER_S
        raise LineError(f"{jump_s:g} s after the line before; max_gap_s is {options.max_gap_s:g}")
    return line


def to_workload(
    path: Path,
    name: str,
    used: Sequence[tuple[int, TraceLine]],
    skipped: Sequence[SkippedLine],
    *,
    options: ReadOptions,
    licence: str,
    segments: Callable[[int, TraceLine], Iterator[Segment]],
    endpoints: Callable[[TraceLine], tuple[int, ...]],
) -> Workload:
    """Return the workload of checked lines, its time starting at the first of them.

    `segments` gives a prompt's content by line number; `endpoints` where its messages end. Both see
    the line after it has been cut to the context.
    """
    start_ns = used[0][1].time_ns
    requests: list[WorkloadRequest] = []
    dropped = list(skipped)
    cut = 0
    for number, found in used:
        line = _fitted(found, options)
        if line is None:
            length = found.prompt_tokens + found.output_tokens
            why = f"{length} tokens; the context has {options.context_tokens}"
            dropped.append(SkippedLine(line=number, why=why))
            continue
        cut += line is not found
        context = options.context_tokens
        requests.append(
            WorkloadRequest(
                request_id=f"{name}-{number}",
                arrival_ns=line.time_ns - start_ns,
                prompt=tuple(segments(number, line)),
                output=Segment(content_identity(name, "answer", number), line.output_tokens),
                max_output_tokens=options.limit.of(
                    line.output_tokens,
                    room_tokens=None if context is None else context - line.prompt_tokens,
                ),
                endpoints=endpoints(line),
            )
        )
    require(bool(requests), f"{path}: no request fits a context of {options.context_tokens}")
    note = f"; {cut} requests cut to {options.context_tokens} tokens" if cut else ""
    dropped.sort(key=lambda line: line.line)
    return Workload(
        name=name,
        requests=tuple(requests),
        source=f"{path.name}: {licence}{note}",
        skipped=tuple(dropped),
    )


def _fitted(line: TraceLine, options: ReadOptions) -> TraceLine | None:
    """Return the line itself, one cut to the context, or None where it is skipped for it."""
    context = options.context_tokens
    if context is None or line.prompt_tokens + line.output_tokens <= context:
        return line
    if options.out_of_context is OutOfContext.KEEP:
        return line
    if options.out_of_context is OutOfContext.SKIP:
        return None
    prompt, output = fit_context(line.prompt_tokens, line.output_tokens, context_tokens=context)
    return line._replace(prompt_tokens=prompt, output_tokens=output)
