"""Checks the CUDA programs on a machine with a GPU: captures every kind and compares with eager.

    python tools/gpu_check.py            about two minutes, nothing is downloaded
    python tools/gpu_check.py --quick    a smaller model, seconds

Weights are random. Every program kind runs the same frames on captured graphs and on eager PyTorch
programs; logits must agree within 1e-4 of their largest value and tokens must be equal. On the GPU
alone, a request must also come out the same, bit for bit, with other neighbours and other chunks.
Replay times are printed. Exits with 0 when everything holds, 1 when not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from helios.engine.ports import Frame, FrameLane, LaneOutput, PreparedProgram, SamplingParams
from helios.scheduler import Catalog, Fence, GraphDescriptor, GraphKind, RequestHandle
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.programs.cuda import CudaModel, CudaUnavailableError, require_device
from ignition.programs.eager import EagerModel
from ignition.weight_shapes import dense_shapes

TOLERANCE: Final = 1e-4
_REPLAYS: Final = 20
_GEOMETRY: Final = ModelGeometry(
    family="llama",
    layer_count=30,
    hidden_size=576,
    query_heads=9,
    kv_heads=3,
    head_size=64,
    ffn_size=1536,
    vocabulary_size=49152,
    context_length_tokens=2048,
    rms_epsilon=1e-5,
    rope_theta=1e5,
    tied_embeddings=True,
    qk_norm=True,
    attention_bias=True,
)
_SAMPLING: Final = (
    SamplingParams(temperature=0.0, top_logprobs=5),
    SamplingParams(temperature=0.8, top_p=0.9, seed=7),
    SamplingParams(temperature=1.1, top_k=40, min_p=0.02, seed=2**63 + 11, frequency_penalty=0.3),
    SamplingParams(temperature=1.0, seed=3, repetition_penalty=1.1, logit_bias=((9, 4.0),)),
)


@dataclasses.dataclass(slots=True)
class Report:
    """What was found."""

    failures: tuple[str, ...] = ()
    worst_error: float = 0.0
    """Largest difference of logits relative to the largest logit."""

    def expect(self, holds: bool, what: str) -> None:
        """Note a failure."""
        if not holds:
            self.failures = (*self.failures, what)


class Runner:
    """Runs frames on the programs of one model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.programs: dict[str, Any] = {p.descriptor.name: p for p in model.programs}
        self._fences = itertools.count(1)

    def run(self, name: str, lanes: Iterable[FrameLane]) -> tuple[LaneOutput, ...]:
        program: PreparedProgram = self.programs[name]
        frame = Frame(fence=Fence(next(self._fences)), graph_index=0, lanes=tuple(lanes))
        program.load(frame)
        program.replay()
        return program.read(frame)

    def logits(self, name: str) -> npt.NDArray[np.float32]:
        return np.array(self.programs[name].buffers["last_logits"])


def lane(row: int, **fields: Any) -> FrameLane:
    plain: dict[str, Any] = {"position": 0, "pages": ()}
    return FrameLane(handle=RequestHandle(row, 1), row=row, **(plain | fields))


def random_weights(geometry: ModelGeometry) -> dict[str, npt.NDArray[np.float32]]:
    """Return seeded weights of a size that keeps activations in range."""
    generator = np.random.default_rng(12)
    weights = {}
    for name, shape in dense_shapes(geometry).items():
        values = generator.standard_normal(shape, dtype=np.float32)
        if "norm" in name:
            weights[name] = 1 + 0.1 * values
        elif len(shape) == 1:
            weights[name] = 0.1 * values
        else:
            weights[name] = values / np.float32(np.sqrt(shape[-1]))
    return weights


def catalog(prefill: Sequence[int], scored: int, buckets: Sequence[int]) -> Catalog:
    graphs = [
        GraphDescriptor(kind=kind, batch_capacity=bucket)
        for kind in (GraphKind.INITIALIZE, GraphKind.DECODE, GraphKind.TERMINAL)
        for bucket in buckets
    ]
    graphs += [
        GraphDescriptor(kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=capacity)
        for capacity in prefill
    ]
    graphs.append(
        GraphDescriptor(kind=GraphKind.SCORED_PREFILL, batch_capacity=1, token_capacity=scored)
    )
    return Catalog.of(graphs)


def prompts() -> list[npt.NDArray[np.int32]]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 1000, n).astype(np.int32) for n in (150, 40, 64, 90)]


def pages_of(row: int) -> tuple[int, ...]:
    return tuple(range(row * 16, row * 16 + 16))


def initialize(runner: Runner, rows: Sequence[int]) -> None:
    sampling = zip(rows, _SAMPLING, strict=True)
    lanes = [lane(row, pages=pages_of(row), sampling=params) for row, params in sampling]
    runner.run("initialize-b4", lanes)


def prefill(runner: Runner, row: int, prompt: npt.NDArray[np.int32], chunk: str) -> LaneOutput:
    """Consume a prompt in chunks of one program's capacity."""
    capacity = int(chunk.rsplit("-c", 1)[1])
    output = LaneOutput()
    for start in range(0, len(prompt), capacity):
        part = prompt[start : start + capacity]
        end = start + len(part)
        following = int(prompt[end]) if end < len(prompt) else -1
        (output,) = runner.run(
            chunk,
            [
                lane(
                    row,
                    position=start,
                    prompt_token_ids=part,
                    next_prompt_token_id=following,
                    is_final_chunk=following < 0,
                )
            ],
        )
    return output


def serve(runner: Runner, steps: int) -> tuple[list[LaneOutput], list[npt.NDArray[np.float32]]]:
    """Run four requests through every kind; return all outputs and the logits of each step."""
    rows, texts = (2, 0, 3, 1), prompts()
    initialize(runner, rows)
    outputs, logits = [], []
    for row, prompt, chunk in zip(
        rows,
        texts,
        ("prefill-c64", "prefill-c64", "prefill-c64", "scored-prefill-c64"),
        strict=True,
    ):
        outputs.append(prefill(runner, row, prompt, chunk))
        logits.append(runner.logits(chunk))
    for _ in range(steps):
        outputs += runner.run("decode-b4", [lane(row) for row in rows])
        logits.append(runner.logits("decode-b4"))
    outputs += runner.run("terminal-b4", [lane(row) for row in rows])
    return outputs, logits


def compare(report: Report, cuda: Runner, eager: Runner, steps: int) -> None:
    """Hold captured programs against eager ones on the same frames."""
    our_outputs, our_logits = serve(cuda, steps)
    outputs, logits = serve(eager, steps)
    for index, (ours, theirs) in enumerate(zip(our_logits, logits, strict=True)):
        error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        report.worst_error = max(report.worst_error, error)
        report.expect(error < TOLERANCE, f"logits of step {index} differ by {error:.1e}")
    for index, (left, right) in enumerate(zip(our_outputs, outputs, strict=True)):
        report.expect(
            left.tokens == right.tokens, f"tokens of output {index}: {left.tokens} {right.tokens}"
        )
        counts = (left.cached_tokens, left.output_tokens)
        report.expect(
            counts == (right.cached_tokens, right.output_tokens), f"counters of output {index}"
        )
        scores = zip(left.prompt_logprobs, right.prompt_logprobs, strict=True)
        report.expect(
            all(abs(a.logprob - b.logprob) < 1e-2 for a, b in scores), f"scores of output {index}"
        )


def check_independence(report: Report, cuda: Runner) -> None:
    """On one device a request's bits do not depend on neighbours, padding or chunks."""
    text = prompts()[0]
    results = []
    for chunk, is_alone in (("prefill-c64", True), ("prefill-c16", True), ("prefill-c256", False)):
        initialize(cuda, (0, 1, 2, 3))
        prefill(cuda, 0, text, chunk)
        if not is_alone:
            for row in (1, 2, 3):
                prefill(cuda, row, prompts()[row], "prefill-c64")
        name = "decode-b1" if is_alone else "decode-b4"
        rows = (0,) if is_alone else (3, 0, 1, 2)
        steps = []
        for _ in range(4):
            cuda.run(name, [lane(row) for row in rows])
            steps.append(cuda.logits(name)[rows.index(0)])
        results.append(np.stack(steps))
        cuda.run("terminal-b4", [lane(row) for row in range(4)])
    report.expect(np.array_equal(results[0], results[1]), "bits depend on how a prompt is cut")
    report.expect(np.array_equal(results[0], results[2]), "bits depend on neighbours or padding")


def print_times(cuda: Runner) -> None:
    """Print the median device interval of every program."""
    initialize(cuda, (0, 1, 2, 3))
    for row in range(4):
        prefill(cuda, row, prompts()[row], "prefill-c64")
    print(f"{'program':24} {'device ms':>10} {'wall ms':>10}")
    for name, program in cuda.programs.items():
        device, wall = [], []
        for _ in range(_REPLAYS):
            started = time.perf_counter_ns()
            program.replay()
            wall.append(time.perf_counter_ns() - started)
            device.append(program.device_interval_ns())
        medians = [statistics.median(times) / 1e6 for times in (device, wall)]
        print(f"{name:24} {medians[0]:10.3f} {medians[1]:10.3f}")


def check(*, quick: bool) -> Report:
    """Prepare, capture and compare. Raises CudaUnavailableError without a GPU."""
    device = require_device()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(device)}")
    geometry = _GEOMETRY
    if quick:
        geometry = dataclasses.replace(geometry, layer_count=3, vocabulary_size=2048)
    pool = PoolGeometry(row_count=4, page_count=64, page_size_tokens=16, context_length_tokens=1024)
    graphs = catalog((16, 64, 256), 64, (1, 2, 4))
    weights = random_weights(geometry)

    started = time.monotonic()
    cuda_model = CudaModel(geometry=geometry, pool=pool, catalog=graphs, weights=weights)
    print(f"captured {len(graphs.graphs)} programs in {time.monotonic() - started:.1f} s")
    eager_model = EagerModel(
        geometry=geometry,
        pool=pool,
        catalog=graphs,
        weights={name: torch.from_numpy(array) for name, array in weights.items()},
    )
    report = Report()
    compare(report, Runner(cuda_model), Runner(eager_model), steps=4 if quick else 16)
    check_independence(report, Runner(cuda_model))
    print_times(Runner(cuda_model))
    return report


def main() -> int:
    """Run the check from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smaller model, seconds")
    options = parser.parse_args()
    try:
        report = check(quick=options.quick)
    except CudaUnavailableError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    print(f"largest difference of logits: {report.worst_error:.1e} of the largest logit")
    for failure in report.failures:
        print(f"FAILED: {failure}")
    print("FAILED" if report.failures else "all checks hold")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
