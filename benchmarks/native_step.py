"""Time the native programs of one model: median, minimum and 90th percentile per shape.

    python benchmarks/native_step.py MODEL.gguf [--shapes decode-1,prefill-64] [--threads 2]

Shapes: `decode-B` (B rows), `prefill-C` (first chunk of a prompt), `prefill-C@P` (a chunk at
position P). Each line ends with the share of the machine that other processes used meanwhile: on a
shared machine read the minimum, and repeat when that share is not small.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Self

import numpy as np

from helios.engine.ports import Frame, FrameLane, SamplingParams
from helios.scheduler import Catalog, Fence, GraphDescriptor, GraphKind, RequestHandle
from ignition.geometry import PoolGeometry
from ignition.gguf_reader import read_gguf
from ignition.native.build import build_library
from ignition.native.pack import pack
from ignition.programs.native import NativeModel
from ignition.state import ServingState

DEFAULT_SHAPES = (
    "decode-1,decode-2,decode-4,decode-8,decode-16,"
    "prefill-64,prefill-256,prefill-512,prefill-64@1900"
)
ROWS = 16
POOL = PoolGeometry(
    row_count=ROWS, page_count=ROWS * 40, page_size_tokens=64, context_length_tokens=2560
)


class OtherProcesses:
    """Share of all cores that other processes used while the block ran."""

    share = 0.0

    def __enter__(self) -> Self:
        self._start = (self._machine_busy_s(), sum(os.times()[:2]), time.monotonic())
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, now = self._machine_busy_s(), sum(os.times()[:2]), time.monotonic()
        others = (busy - self._start[0]) - (own - self._start[1])
        cores = os.cpu_count() or 1
        self.share = max(0.0, others / max(now - self._start[2], 1e-3) / cores)

    @staticmethod
    def _machine_busy_s() -> float:
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = fields[3] + fields[4]
        return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def catalog() -> Catalog:
    """Every shape that can be asked for."""
    graphs = [GraphDescriptor(kind=GraphKind.DECODE, batch_capacity=b) for b in range(1, ROWS + 1)]
    graphs += [
        GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=c)
        for c in (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    ]
    graphs += [
        GraphDescriptor(kind=kind, batch_capacity=ROWS)
        for kind in (GraphKind.INITIALIZE, GraphKind.TERMINAL)
    ]
    return Catalog.of(graphs)


class Bench:
    """A model with one request on every row, whose pages lie scattered."""

    def __init__(self, model: NativeModel) -> None:
        self.model = model
        self.rng = np.random.default_rng(1)
        pages = self.rng.permutation(POOL.page_count).reshape(ROWS, -1)
        lanes = [
            lane(
                row,
                pages=tuple(int(p) for p in pages[row]),
                sampling=SamplingParams(temperature=0.0),
            )
            for row in range(ROWS)
        ]
        program = self.program(GraphKind.INITIALIZE, ROWS, 1)
        program.load(Frame(fence=Fence(0), graph_index=0, lanes=tuple(lanes)))
        program.replay()

    def program(self, kind: GraphKind, batch: int, tokens: int):
        for program in self.model.programs:
            d = program.descriptor
            if (d.kind, d.batch_capacity, d.token_capacity) == (kind, batch, tokens):
                return program
        raise SystemExit(f"no program for {kind.name} {batch} x {tokens}")

    def shape(self, name: str, cached: int):
        """Load a shape's frame; return its program and what to reset before each run."""
        kind, _, size = name.partition("-")
        size, _, position = size.partition("@")
        if kind == "decode":
            program = self.program(GraphKind.DECODE, int(size), 1)
            lanes = [lane(row) for row in range(int(size))]
        else:
            cached = int(position or 0)
            program = self.program(GraphKind.PREFILL, 1, int(size))
            tokens = self.rng.integers(100, 40000, int(size)).astype(np.int32)
            lanes = [lane(0, position=cached, prompt_token_ids=tokens, is_final_chunk=True)]
        program.load(Frame(fence=Fence(0), graph_index=0, lanes=tuple(lanes)))
        return program, cached

    def measure(self, name: str, cached: int, repeats: int, budget_s: float) -> str:
        program, position = self.shape(name, cached)
        state, times = self.model.state, []
        with OtherProcesses() as others:
            start = time.perf_counter()
            for i in range(repeats + 2):
                state.cached_tokens[:], state.finished[:] = position, 0
                begin = time.perf_counter()
                program.replay()
                times.append((time.perf_counter() - begin) * 1e3)
                if i > 5 and time.perf_counter() - start > budget_s:
                    break
        times = sorted(times[2:])
        return (
            f"{name:16s} median {times[len(times) // 2]:8.2f}  min {times[0]:8.2f}  "
            f"p90 {times[int(len(times) * 0.9)]:8.2f} ms  n {len(times):3d}  "
            f"others {others.share:4.0%}"
        )


def lane(row: int, **fields: object) -> FrameLane:
    defaults = {"position": 0, "pages": ()}
    return FrameLane(handle=RequestHandle(row, 1), row=row, **{**defaults, **fields})


def open_model(path: Path, threads: int, precision: str, scratch: Path, variant: str | None):
    checkpoint = read_gguf(path, name="bench")
    library = build_library(
        checkpoint.geometry, POOL, precision, scratch / "native.so", variant=variant
    )
    dtype = np.float32 if precision == "fp32" else np.float16
    state = ServingState.allocate(checkpoint.geometry, POOL, dtype)
    # Plausible cache contents: zeros would make softmax and denormals unlike real use.
    rng = np.random.default_rng(2)
    for pool in (state.keys, state.values):
        pool[:] = (rng.standard_normal(pool.shape[1:], dtype=np.float32) * 0.3).astype(dtype)
    model = NativeModel(
        geometry=checkpoint.geometry,
        pool=POOL,
        catalog=catalog(),
        arrays=pack(checkpoint, precision),
        library=library.path,
        state=state,
        threads=threads,
    )
    print(
        f"{checkpoint.source} {precision} {library.variant} {threads} threads, {library.compiler}"
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--shapes", default=DEFAULT_SHAPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("int8", "fp32"), default="int8")
    parser.add_argument("--variant", choices=("vnni", "avx2", "plain"))
    parser.add_argument("--cached", type=int, default=200, help="cached tokens of decode rows")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds per shape")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = open_model(
            options.model, options.threads, options.precision, Path(scratch), options.variant
        )
        bench = Bench(model)
        for name in options.shapes.split(","):
            line = bench.measure(name, options.cached, options.repeats, options.budget)
            print(line, flush=True)
        model.close()


if __name__ == "__main__":
    main()
