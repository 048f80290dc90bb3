"""CUDA programs: the same steps captured as torch.cuda.CUDAGraph over static buffers on the device.

Serving state lives on the device; inputs and outputs pass through pinned host buffers, copied in
`load` and `read`. `replay` is one graph launch between two events and waits for the second, so its
wall time is the device interval too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from helios.engine.ports import Frame, LaneOutput
from helios.scheduler import Catalog, GraphDescriptor, GraphKind
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.models.llama import CUDA_TILING, LlamaDecoder
from ignition.package_errors import CudaUnavailableError
from ignition.programs.buffers import PREFILL_KINDS, allocate_buffers, buffer_specs
from ignition.programs.eager import block_pages_of
from ignition.programs.frames import check_frame, load_frame, read_frame
from ignition.programs.steps import (
    StepContext,
    decode_step,
    initialize_step,
    prefill_step,
    terminal_step,
)
from ignition.programs.tensors import StateTensors, scratch_pool, tensor_of
from ignition.sampling_torch import sample_rows
from ignition.state import ServingState

ATTENTION_BLOCK_TOKENS: Final = 1024
_WARM_UPS: Final = 3
_NS_PER_MS: Final = 1_000_000


def require_device() -> torch.device:
    """Return the GPU to use. Raises CudaUnavailableError, saying why there is none."""
    if torch.version.cuda is None:
        raise CudaUnavailableError(
            f"PyTorch {torch.__version__} is built without CUDA: choose the native or eager backend"
        )
    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            "no CUDA device is visible to this process: choose the native or eager backend"
        )
    return torch.device("cuda", torch.cuda.current_device())


@dataclasses.dataclass(frozen=True, slots=True)
class _DeviceSampler:
    """Samples on the device from the mirrored state; idle rows read the scratch row."""

    state: StateTensors

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return int64 [B] tokens."""
        return sample_rows(logits, self.state.sampling(rows))


class CudaProgram:
    """One program of a CudaModel; implements helios.engine.ports.PreparedProgram."""

    def __init__(self, model: CudaModel, descriptor: GraphDescriptor) -> None:
        specs = buffer_specs(
            descriptor,
            vocabulary_size=model.geometry.vocabulary_size,
            pages_per_row=model.pool.pages_per_row,
        )
        self._model = model
        self._descriptor = descriptor
        self._inputs = tuple(spec.name for spec in specs if spec.role == "input")
        self._outputs = tuple(spec.name for spec in specs if spec.role == "output")
        self._pinned = {
            name: tensor_of(array).pin_memory() for name, array in allocate_buffers(specs).items()
        }
        self._buffers = {
            spec.name: self._pinned[spec.name].numpy().view(np.dtype(spec.dtype)) for spec in specs
        }
        self._device = {name: host.to(model.device) for name, host in self._pinned.items()}
        self._started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._finished = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._graphs = {is_final: self._capture(is_final) for is_final in self._variants()}

    @property
    def descriptor(self) -> GraphDescriptor:
        """The catalog identity."""
        return self._descriptor

    @property
    def buffers(self) -> Mapping[str, npt.NDArray[Any]]:
        """The pinned inputs and outputs by name; outputs are current after `read`."""
        return self._buffers

    def device_interval_ns(self) -> int:
        """Return the device interval of the last replay, between the two events."""
        return int(self._started.elapsed_time(self._finished) * _NS_PER_MS)

    def load(self, frame: Frame) -> None:
        """Write the frame's inputs. Raises FrameError when it does not fit; nothing is written."""
        check_frame(self._descriptor, frame, self._model.geometry, self._model.pool)
        load_frame(self._descriptor, frame, self._buffers)
        for name in self._inputs:
            self._device[name].copy_(self._pinned[name], non_blocking=True)

    def replay(self) -> None:
        """Launch the captured graph and wait for it."""
        is_final = "is_final_chunk" in self._buffers and bool(self._buffers["is_final_chunk"][0])
        self._started.record()
        self._graphs[is_final].replay()
        self._finished.record()
        self._finished.synchronize()

    def read(self, frame: Frame) -> tuple[LaneOutput, ...]:
        """Return the outputs, one per lane of the frame in its order."""
        for name in self._outputs:
            self._pinned[name].copy_(self._device[name], non_blocking=True)
        torch.cuda.current_stream(self._model.device).synchronize()
        return read_frame(self._descriptor, frame, self._buffers)

    def _variants(self) -> tuple[bool, ...]:
        """A captured graph cannot branch, so a prefill is captured with and without its head."""
        return (False, True) if self._descriptor.kind in PREFILL_KINDS else (False,)

    def _capture(self, is_final: bool) -> torch.cuda.CUDAGraph:
        """Capture the step; every lane is idle meanwhile, so only scratch state is written."""
        step = self._step(is_final)
        stream = torch.cuda.Stream(self._model.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._model.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream(self._model.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._model.memory_pool):
            step()
        return graph

    def _step(self, is_final: bool) -> Callable[[], None]:
        context, kind = self._model.context, self._descriptor.kind
        blocks = self._model.block_count

        def run() -> None:
            if kind is GraphKind.INITIALIZE:
                initialize_step(context.state, self._device)
            elif kind is GraphKind.TERMINAL:
                terminal_step(context.state, self._device)
            elif kind is GraphKind.DECODE:
                decode_step(context, self._device, block_count=blocks, with_logprobs=True)
            else:
                prefill_step(
                    context,
                    self._device,
                    block_count=blocks,
                    is_final_chunk=is_final,
                    with_scores=kind is GraphKind.SCORED_PREFILL,
                    with_logprobs=True,
                )

        return run


class CudaModel:
    """Every program of a catalog captured on one GPU, over one serving state in its memory.

    `weights` maps canonical names to float32 arrays. Raises CudaUnavailableError where there is no
    GPU. A decode lane whose page is missing writes to the scratch page: the device cannot refuse.
    """

    def __init__(
        self,
        *,
        geometry: ModelGeometry,
        pool: PoolGeometry,
        catalog: Catalog,
        weights: Mapping[str, npt.NDArray[np.float32]],
    ) -> None:
        self.device = require_device()
        self.geometry = geometry
        self.pool = pool
        self.catalog = catalog
        self.memory_pool = torch.cuda.graph_pool_handle()
        decoder = LlamaDecoder(
            geometry,
            {name: torch.from_numpy(array).to(self.device) for name, array in weights.items()},
            tiling=CUDA_TILING,
            context_length_tokens=pool.pages_per_row * pool.page_size_tokens,
        )
        host = ServingState.allocate(geometry, scratch_pool(pool), np.float32)
        state = StateTensors.mirrored(host, pool, self.device)
        self.context = StepContext(
            decoder=decoder,
            state=state,
            sampler=_DeviceSampler(state),
            block_pages=block_pages_of(pool, ATTENTION_BLOCK_TOKENS),
        )
        self.block_count = -(-pool.pages_per_row // self.context.block_pages)
        self.programs = tuple(CudaProgram(self, graph) for graph in catalog.graphs)

    def close(self) -> None:
        """Wait for the device; graphs and memory go with the last reference to the model."""
        torch.cuda.synchronize(self.device)
