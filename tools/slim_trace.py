"""Keep what replays need of a recorded run: no candidates, no scores, no names of requests.

flare run --trace run.jsonl                        # serve some load, then stop
python tools/slim_trace.py run.jsonl recorded.jsonl.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

KEPT = {
    "header": ("version", "model", "policy", "resources", "graphs"),
    "plan": ("fence", "at_ns", "graph_index", "queued_frames", "lanes"),
    "frame": (
        *("fence", "at_ns", "submitted_ns", "started_ns", "device_ns", "host_gap_ns", "error"),
        "lanes",
    ),
    "arrival": ("at_ns", "request", "prompt_tokens", "max_output_tokens", "weight", "tenant"),
    "finish": ("at_ns", "request", "reason", "output_tokens", "cached_prompt_tokens"),
}
LANES = {
    "plan": ("position", "prompt_tokens"),
    "frame": ("request", "prompt_tokens", "tokens", "offered", "delivered_ns", "characters"),
}
TIMES = ("at_ns", "submitted_ns", "started_ns", "delivered_ns")


def slim(lines: list[str]) -> bytes:
    """Return the slim trace, gzipped; times count from the header, requests are numbered."""
    start = int(json.loads(lines[0])["at_ns"])
    names: dict[str, str] = {}

    def take(entry: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
        taken = {name: entry[name] for name in fields}
        for name in TIMES:
            if taken.get(name) is not None:
                taken[name] -= start
        if "request" in taken:
            taken["request"] = names.setdefault(taken["request"], f"r{len(names)}")
        return taken

    kept: list[dict[str, Any]] = []
    believed: dict[str, int] = {}
    for line in lines:
        record = json.loads(line)
        kind = record["type"]
        if kind not in KEPT:
            continue
        slimmed = {"type": kind, **take(record, KEPT[kind])}
        if kind in LANES:
            slimmed["lanes"] = [take(lane, LANES[kind]) for lane in record["lanes"]]
        kept.append(slimmed)
        for candidate in record.get("candidates", ()):
            if candidate["cost_ns"] > 0:
                believed[candidate["graph"]] = candidate["cost_ns"]
    kept[0]["believed_ns"] = believed
    text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in kept)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def main() -> None:
    """Write the slim trace and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    data = slim(arguments.trace.read_text(encoding="utf-8").splitlines())
    arguments.out.write_bytes(data)
    print(f"{arguments.out}: {len(data)} bytes")


if __name__ == "__main__":
    main()
