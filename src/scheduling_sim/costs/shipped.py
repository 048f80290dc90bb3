"""Operator tables as the project ships them: one gzipped JSON document per platform.

Times are integer ns. A document holds its source, commit and licence; `tools/derive_costs.py`
writes it from the originals, byte for byte the same each time.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import importlib.resources
import json
from collections.abc import Iterable, Mapping
from typing import Any

from scheduling_sim.costs.attention import AttentionGrid, Skew
from scheduling_sim.costs.operators import Link, ModelFacts, MoeGrid, OperatorTable
from scheduling_sim.costs.trace_file import RecordedRun, parse_trace

FORMAT = 1
_PACKAGE = "scheduling_sim.costs"
RECORDED_FILE = "cpu-recorded.jsonl.gz"
_GRID_TIMES = ("pure", "prompt", "mixed")


def file_name(name: str) -> str:
    """Return the data file of a platform: `gpu/model` becomes `gpu--model.json.gz`."""
    return name.replace("/", "--") + ".json.gz"


def shipped_names() -> tuple[str, ...]:
    """Return the platforms whose operator tables come with the package, in order."""
    folder = importlib.resources.files(_PACKAGE) / "data"
    names = (entry.name for entry in folder.iterdir())
    found = (name.removesuffix(".json.gz") for name in names if "--" in name)
    return tuple(sorted(name.replace("--", "/") for name in found))


def _ns(values: Iterable[float]) -> list[int]:
    return [round(value * 1000) for value in values]


def _us(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(value / 1000 for value in values)


def encode(table: OperatorTable, origin: Mapping[str, str]) -> bytes:
    """Return the document of a table; `origin` says source, commit and licence."""
    attention = dataclasses.asdict(table.attention)
    for name in _GRID_TIMES:
        attention[name] = _ns(attention[name])
    document: dict[str, Any] = {
        "format": FORMAT,
        **origin,
        "facts": dataclasses.asdict(table.facts),
        "attention": attention,
        "tokens": table.tokens,
        "dense": {name: _ns(values) for name, values in table.dense.items()},
        "sequences": table.sequences,
        "sampled": {name: _ns(values) for name, values in table.sampled.items()},
    }
    if table.moe is not None:
        document["moe"] = {
            "tokens": table.moe.tokens,
            "experts": table.moe.experts,
            "ns": _ns(table.moe.us),
        }
    if table.link is not None:
        document["link"] = dataclasses.asdict(table.link)
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def _skew(entry: Mapping[str, Any]) -> Skew:
    return Skew(tuple(entry["lanes"]), tuple(entry["pure"]), tuple(entry["mixed"]))


def _grid(entry: Mapping[str, Any]) -> AttentionGrid:
    fields: dict[str, Any] = {
        name: _us(values) if name in _GRID_TIMES else tuple(values)
        for name, values in entry.items()
        if name != "skew"
    }
    return AttentionGrid(**fields, skew=_skew(entry["skew"]))


def decode(data: bytes, where: str) -> OperatorTable:
    """Return the table in a document; ValueError names `where` for anything malformed."""
    try:
        document = json.loads(gzip.decompress(data))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, this version reads {FORMAT}")
        moe, link = document.get("moe"), document.get("link")
        return OperatorTable(
            facts=ModelFacts(**document["facts"]),
            attention=_grid(document["attention"]),
            tokens=tuple(document["tokens"]),
            dense={name: _us(values) for name, values in document["dense"].items()},
            sequences=tuple(document["sequences"]),
            sampled={name: _us(values) for name, values in document["sampled"].items()},
            moe=MoeGrid(tuple(moe["tokens"]), tuple(moe["experts"]), _us(moe["ns"]))
            if moe
            else None,
            link=Link(**link) if link else None,
            source=f"{document['source']} @ {document['commit']}, {document['licence']}",
        )
    except (KeyError, TypeError, OSError, EOFError, ValueError) as error:
        raise ValueError(f"{where}: not a cost document of the simulator: {error}") from error


def load_shipped(name: str) -> OperatorTable:
    """Return the shipped operators of one platform; ValueError lists the names otherwise."""
    if name not in shipped_names():
        raise ValueError(f"no shipped costs for {name!r}; there are {', '.join(shipped_names())}")
    path = importlib.resources.files(_PACKAGE) / "data" / file_name(name)
    return decode(path.read_bytes(), file_name(name))


@functools.cache
def shipped_run() -> RecordedRun:
    """Return the recorded run of our CPU engine that comes with the package."""
    path = importlib.resources.files(_PACKAGE) / "data" / RECORDED_FILE
    return parse_trace(path.read_bytes(), RECORDED_FILE)
