"""The CUDA path: refused clearly without a GPU, and its steps checked on the CPU meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ignition.programs.eager
from helios.engine.ports import SamplingParams
from ignition.capacity import CapacityOptions, plan_capacity
from ignition.geometry import PoolGeometry
from ignition.models.llama import CUDA_TILING
from ignition.package import open_package
from ignition.package_errors import CudaUnavailableError, PackageError
from ignition.package_writer import package_directory, write_package
from ignition.prepare import choose_backend
from ignition.programs.cuda import CudaModel, require_device
from ignition.programs.eager import EagerModel
from ignition.programs.steps import StepContext
from ignition.sampling_torch import sample_rows
from ignition.weight_shapes import dense_shapes
from tests.ignition.driver import Driver, catalog_of
from tests.ignition.tiny import build

HAS_GPU = torch.cuda.is_available()
POOL = PoolGeometry(row_count=4, page_count=64, page_size_tokens=16, context_length_tokens=320)
NO_GPU_HERE = pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
_SYNCHRONISING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique",
    "equal",
    "is_nonzero",
    "repeat_interleave",
    "where.Scalar",
)


@NO_GPU_HERE
def test_without_a_gpu_the_backend_is_refused_with_what_to_choose() -> None:
    for attempt in (require_device, lambda: choose_backend("cuda")):
        with pytest.raises(CudaUnavailableError, match="choose the native or eager backend"):
            attempt()
    with pytest.raises(CudaUnavailableError):
        CudaModel(
            geometry=build("llama").checkpoint.geometry, pool=POOL, catalog=catalog_of(), weights={}
        )


@NO_GPU_HERE
def test_a_cuda_package_names_its_backend_where_there_is_no_gpu(tmp_path: Path) -> None:
    checkpoint = build("llama").checkpoint
    options = CapacityOptions(backend="cuda", precision="fp32", concurrency=2)
    plan = plan_capacity(checkpoint.geometry, options, machine_memory_bytes=16 << 30)
    weights = {name: checkpoint.float32(name) for name in dense_shapes(checkpoint.geometry)}
    with package_directory(tmp_path / "tiny") as directory:
        write_package(
            directory, plan=plan, checkpoint=checkpoint, weights=weights, library=None, threads=1
        )
    with pytest.raises(PackageError, match=r"^backend: a cuda package needs a GPU"):
        open_package(tmp_path / "tiny")


class _NoHostSync(TorchDispatchMode):
    """Fails on operators that read a tensor on the host or have data-dependent shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(word in name for word in _SYNCHRONISING), name
        if "aten.index" in name and isinstance(args[1], (list, tuple)):
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            assert not masks, f"{name} with a mask has a data-dependent shape"
        return func(*args, **(kwargs or {}))


def _as_captured(model: EagerModel) -> None:
    """Let an eager model run its steps the way they are captured for CUDA."""
    state = model.context.state
    decoder = model.context.decoder
    decoder.tiling = CUDA_TILING
    model.context = StepContext(
        decoder=decoder,
        state=state,
        sampler=lambda logits, rows: sample_rows(logits, state.sampling(rows)),
        block_pages=4,
    )


@pytest.fixture(params=["llama", "qwen2", "qwen3"])
def drivers(request: pytest.FixtureRequest) -> tuple[Driver, Driver]:
    checkpoint = build(request.param).checkpoint
    models = [
        EagerModel(
            geometry=checkpoint.geometry,
            pool=POOL,
            catalog=catalog_of((16, 128), (32,), (1, 4)),
            weights={n: torch.from_numpy(checkpoint.float32(n)) for n in checkpoint.tensors},
        )
        for _ in range(2)
    ]
    _as_captured(models[1])
    return Driver(models[0]), Driver(models[1])


def test_captured_steps_agree_with_eager_and_never_ask_the_host(
    drivers: tuple[Driver, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, 97, n).tolist() for n in (100, 7, 33)]
    sampling = [
        SamplingParams(temperature=0.0, top_logprobs=4),
        SamplingParams(temperature=0.9, top_p=0.9, seed=5, repetition_penalty=1.2),
        SamplingParams(temperature=1.2, top_k=7, seed=2**63 + 9, logit_bias=((5, 3.0),)),
    ]
    outputs = []
    for driver, is_captured in zip(drivers, (False, True), strict=True):
        if is_captured:
            for name in ("decode_step", "prefill_step", "initialize_step", "terminal_step"):
                _watch(monkeypatch, name)
        driver.initialize([0, 2, 3], [range(20), range(20, 40), range(40, 60)], sampling)
        lanes = [
            driver.prefill(0, prompts[0], [("prefill-c128", 100)]),
            driver.prefill(2, prompts[1], [("prefill-c16", 7)]),
            driver.prefill(3, prompts[2], [("scored-prefill-c32", 20), ("scored-prefill-c32", 13)]),
        ]
        logits = [driver.program("prefill-c128").buffers["last_logits"].copy()]
        for _ in range(5):
            lanes += driver.decode([0, 2, 3], "decode-b4")
            logits.append(driver.program("decode-b4").buffers["last_logits"][:3].copy())
        lanes += driver.terminal([0, 2, 3])
        outputs.append((lanes, logits))
    (eager, eager_logits), (captured, captured_logits) = outputs
    assert [lane.tokens for lane in captured] == [lane.tokens for lane in eager]
    assert [lane.output_tokens for lane in captured] == [lane.output_tokens for lane in eager]
    for left, right in zip(eager, captured, strict=True):
        ours, theirs = left.logprobs + left.prompt_logprobs, right.logprobs + right.prompt_logprobs
        assert [s.top_ids for s in ours] == [s.top_ids for s in theirs]
        assert [s.logprob for s in ours] == pytest.approx([s.logprob for s in theirs], abs=1e-4)
    for left, right in zip(eager_logits, captured_logits, strict=True):
        assert np.abs(left - right).max() < 1e-5 * np.abs(left).max()


def _watch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    step = getattr(ignition.programs.eager, name)

    def watched(*args: Any, **kwargs: Any) -> None:
        with _NoHostSync():
            step(*args, **kwargs)

    monkeypatch.setattr(ignition.programs.eager, name, watched)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_captured_graphs_agree_with_eager() -> None:
    from tools.gpu_check import check

    assert check(quick=True).failures == ()
