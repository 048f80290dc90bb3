"""Reader of the operator tables that LLMServingSim publishes (CSV, one folder per model).

Columns: `attention.csv` prefill_chunk,kv_prefill,n_decode,kv_decode,time_us (one layer);
`dense.csv` layer,tokens,time_us; `per_sequence.csv` layer,sequences,time_us; `moe.csv`
tokens,activated_experts,time_us; `skew.csv` t_mean_us,t_max_us,t_skew_us of uneven decode contexts.
Only points whose chunk and contexts are powers of two (or zero) form a complete grid; the points
between them that some files have are left out, and serve to check the interpolation.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from scheduling_sim.costs.attention import AttentionGrid, Skew
from scheduling_sim.costs.operators import Link, ModelFacts, MoeGrid, OperatorTable

EVEN_RATIO = 0.6
"""Skew is fitted where at most this share of the lanes is long: beyond, mean and longest meet."""

Point = tuple[int, int, int, int]


def read_rows(path: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the named columns of every line; ValueError names file and line of a bad one."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        missing = [name for name in columns if name not in header]
        if missing:
            raise ValueError(f"{path}:1: no column {missing[0]}; the columns are {header}")
        places = [header.index(name) for name in columns]
        rows = []
        for number, row in enumerate(reader, start=2):
            if len(row) != len(header):
                raise ValueError(
                    f"{path}:{number}: {len(row)} fields, the header has {len(header)}"
                )
            rows.append(tuple(row[place] for place in places))
    if not rows:
        raise ValueError(f"{path}: no line of data follows the header")
    return rows


def _numbers(path: Path, rows: Iterable[tuple[str, ...]]) -> Iterable[tuple[float, ...]]:
    for number, row in enumerate(rows, start=2):
        try:
            yield tuple(float(field) for field in row)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}; numbers are needed") from None


def read_attention(path: Path) -> dict[Point, float]:
    """Return every measured point (chunk, kv_prefill, lanes, kv_decode) and its time in us."""
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    points = {}
    for row in _numbers(path, read_rows(path, columns)):
        chunk, cached, lanes, context = (int(value) for value in row[:4])
        points[chunk, cached, lanes, context] = row[4]
    return points


def _doubling(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(value for value in set(values) if value & (value - 1) == 0))


def attention_grid(points: dict[Point, float], skew: Skew, where: str) -> AttentionGrid:
    """Return the complete grid in the points; ValueError names a point that it lacks."""
    chunk = tuple(value for value in _doubling(p[0] for p in points) if value)
    cached = _doubling(p[1] for p in points if p[0])
    context = tuple(value for value in _doubling(p[3] for p in points) if value)
    lanes = tuple(value for value in _doubling(p[2] for p in points if not p[0]) if value)
    beside = tuple(value for value in _doubling(p[2] for p in points if p[0]) if value)
    deep = tuple(sorted({p[3] for p in points if not p[0]}))

    def take(keys: Iterable[Point]) -> tuple[float, ...]:
        found = []
        for key in keys:
            if key not in points:
                raise ValueError(f"{where}: no measured point {key}")
            found.append(points[key])
        return tuple(found)

    return AttentionGrid(
        chunk=chunk,
        kv_prefill=cached,
        lanes=lanes,
        kv_pure=deep,
        mixed_lanes=beside,
        kv_decode=context,
        pure=take((0, 0, n, kv) for n in lanes for kv in deep),
        prompt=take((c, kp, 0, 0) for c in chunk for kp in cached),
        mixed=take(
            (c, kp, n, kv) for c in chunk for kp in cached for n in beside for kv in context
        ),
        skew=skew,
    )


def fit_skew(path: Path) -> Skew:
    """Fit alpha per number of lanes by least squares on relative errors.

    Minimises the sum of ((t_skew - t_mean - alpha (t_max - t_mean)) / t_mean)^2 over the lines in
    which at most EVEN_RATIO of the lanes are long.
    """
    columns = ("regime", "n", "ratio", "t_mean_us", "t_max_us", "t_skew_us")
    rows = read_rows(path, columns)
    sums: dict[tuple[str, int], list[float]] = {}
    numbers = _numbers(path, (row[1:] for row in rows))
    for (regime, *_), (lanes, ratio, mean, longest, uneven) in zip(rows, numbers, strict=True):
        if ratio <= EVEN_RATIO:
            spread = (longest - mean) / mean
            entry = sums.setdefault((regime, int(lanes)), [0.0, 0.0])
            entry[0] += spread * (uneven - mean) / mean
            entry[1] += spread * spread
    fitted = {key: round(max(0.0, up / down), 4) for key, (up, down) in sums.items() if down}
    lanes_axis = tuple(sorted({lanes for regime, lanes in fitted if regime == "pure"}))

    def column(regime: str) -> tuple[float, ...]:
        known = [fitted[regime, lanes] for lanes in lanes_axis if (regime, lanes) in fitted]
        return tuple(known + known[-1:] * (len(lanes_axis) - len(known)))

    return Skew(lanes_axis, column("pure"), column("mixed"))


def _columns(path: Path, axis_name: str) -> tuple[tuple[int, ...], dict[str, tuple[float, ...]]]:
    rows = read_rows(path, ("layer", axis_name, "time_us"))
    times: dict[str, dict[int, float]] = {}
    numbers = _numbers(path, (row[1:] for row in rows))
    for row, (at, us) in zip(rows, numbers, strict=True):
        times.setdefault(row[0], {})[int(at)] = us
    axis = tuple(sorted(next(iter(times.values()))))
    for name, knots in times.items():
        if tuple(sorted(knots)) != axis:
            raise ValueError(f"{path}: {name} was measured at other {axis_name} than the first")
    return axis, {name: tuple(knots[at] for at in axis) for name, knots in times.items()}


def _moe(path: Path) -> MoeGrid:
    columns = ("tokens", "activated_experts", "time_us")
    times = {
        (int(tokens), int(experts)): us
        for tokens, experts, us in _numbers(path, read_rows(path, columns))
    }
    tokens = tuple(sorted({key[0] for key in times}))
    experts = tuple(sorted({key[1] for key in times}))
    grid = []
    for row in tokens:
        for column in experts:
            # T tokens cannot choose more experts than T k: the nearest possible count stands in.
            possible = [key[1] for key in times if key[0] == row and key[1] <= column]
            grid.append(times[row, max(possible)])
    return MoeGrid(tokens, experts, tuple(grid))


def read_table(
    folder: Path, facts: ModelFacts, *, link: Link | None = None, uneven: bool = True
) -> OperatorTable:
    """Read one model's folder, such as `RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2`.

    `uneven` fits the skew of decode contexts where the folder has samples of it. Raises ValueError
    for files that lack points and FileNotFoundError for files that are not there.
    """
    samples = folder / "skew.csv"
    fitted = fit_skew(samples) if uneven and samples.exists() else Skew()
    path = folder / "attention.csv"
    tokens, dense = _columns(folder / "dense.csv", "tokens")
    sequences, sampled = _columns(folder / "per_sequence.csv", "sequences")
    experts = folder / "moe.csv"
    return OperatorTable(
        facts=facts,
        attention=attention_grid(read_attention(path), fitted, str(path)),
        tokens=tokens,
        dense=dense,
        sequences=sequences,
        sampled=sampled,
        moe=_moe(experts) if experts.exists() else None,
        link=link,
    )
