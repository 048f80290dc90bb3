"""Reader of Mooncake's traces (JSON lines): times, lengths, and hashes of 512-token prompt blocks.

Qin et al., Mooncake, FAST 2025; Apache-2.0. A hash names a block together with all blocks before
it, so equal hashes mean an equal prefix: each becomes one segment of content.

The trace marks no messages. Every full block's end is therefore an endpoint: a lookup then finds
the deepest block that an earlier request kept, and the last one becomes the anchor of the request.
The prompt's own end is left out, because the partial last block never continues: the next turn has
another hash there. On the conversation trace a store without limits hits 37.3 % of prompt tokens
when every full block is kept (37.4 % with partial blocks of identical prompts) and 35.0 % when each
request keeps its last full block alone, with 9,633 states instead of 170,899.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.records import Segment, Workload
from scheduling_sim.workload.trace_lines import (
    LineError,
    ReadOptions,
    TraceLine,
    check_tokens,
    raw_lines,
    read_lines,
    to_workload,
)

BLOCK_TOKENS: Final = 512
FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
LICENCE: Final = "Mooncake FAST'25 trace, Apache-2.0"
_NS_PER_MS: Final = 1_000_000
_MAX_MS: Final = 1 << 42


def read_mooncake(
    path: Path, *, name: str = "mooncake-conv", options: ReadOptions | None = None
) -> Workload:
    """Return the workload of a Mooncake trace.

    Raises WorkloadError for a file that is not such a trace; `Workload.skipped` lists single lines
    that are left out.
    """
    rules = options or ReadOptions()
    used, skipped = read_lines(path, raw_lines(path), _parse, rules)
    return to_workload(
        path,
        name,
        used,
        skipped,
        options=rules,
        licence=LICENCE,
        segments=lambda _, line: _blocks(line),
        endpoints=block_ends,
    )


def block_ends(line: TraceLine) -> tuple[int, ...]:
    """Return the ends of the prompt's full blocks."""
    return tuple(range(BLOCK_TOKENS, line.prompt_tokens + 1, BLOCK_TOKENS))


def _blocks(line: TraceLine) -> Iterator[Segment]:
    left = line.prompt_tokens
    for block in line.blocks:
        if left <= 0:
            return
        yield Segment(content_identity("mooncake", block), min(BLOCK_TOKENS, left))
        left -= BLOCK_TOKENS


def _parse(text: str) -> TraceLine:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise LineError(f"a JSON {type(fields).__name__}; an object is right")
    if sorted(fields) != sorted(FIELDS):
        found = ", ".join(sorted(fields))[:200]
        raise LineError(f"the fields are {found!r}; {', '.join(FIELDS)!r} is right")
    time_ms = _whole("timestamp", fields["timestamp"])
    if not 0 <= time_ms <= _MAX_MS:
        raise LineError(f"timestamp is {time_ms} ms; from 0 to {_MAX_MS} is right")
    prompt = check_tokens("input_length", _whole("input_length", fields["input_length"]))
    output = _whole("output_length", fields["output_length"])
    return TraceLine(time_ms * _NS_PER_MS, prompt, output, _hashes(fields["hash_ids"], prompt))


def _hashes(found: object, prompt_tokens: int) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise LineError(f"hash_ids is a {type(found).__name__}; a list of numbers is right")
    blocks = -(-prompt_tokens // BLOCK_TOKENS)
    if len(found) != blocks:
        raise LineError(
            f"{len(found)} hash_ids; {blocks} blocks of {BLOCK_TOKENS} make up {prompt_tokens} "
            "tokens"
        )
    hashes = tuple(_whole("a hash id", block) for block in found)
    if min(hashes) < 0:
        raise LineError(f"a hash id is {min(hashes)}; none is below 0")
    return hashes


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LineError(f"{name} is {str(value)[:40]!r}; a whole number is right")
    return value
