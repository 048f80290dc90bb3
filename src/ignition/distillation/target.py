"""The target while a head is trained: it writes text, and its hidden rows are kept.

The text and the hidden rows come from the prepared programs themselves (native ones where there is
a compiler), in the precision that is served: a head must follow what the target really computes.
"""

from __future__ import annotations

import ctypes
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from helios.engine.ports import Frame, FrameLane, PreparedProgram, SamplingParams
from helios.scheduler import Catalog, Fence, GraphDescriptor, GraphKind, RequestHandle
from ignition.checkpoint import Checkpoint
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.models.llama import LlamaDecoder, StepInputs
from ignition.native.build import NoCompilerError, build_library, find_compiler
from ignition.native.pack import pack
from ignition.programs.eager import EagerModel
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from ignition.weight_shapes import dense_shapes

F32 = npt.NDArray[np.float32]
PAGE_TOKENS: Final = 16


class Text(NamedTuple):
    """One text as the target fed it: every token has the hidden row that it led to."""

    token_ids: npt.NDArray[np.int32]
    """[n], the prompt first; the last token that was sampled is not among them."""
    hidden: npt.NDArray[np.float16]
    """[n, hidden size], before the final norm."""
    prompt_tokens: int
    temperature: float
    """That its output was sampled with."""


class HiddenRows(Protocol):
    """Reads the hidden rows of the program that ran last."""

    def __call__(self, entries: Sequence[int]) -> F32:
        """Return a copy [n, hidden size]: of prompt positions, or of lanes that were fed."""
        ...


class Target:
    """Programs that write `lanes` texts at a time, of at most `context_tokens` tokens each."""

    def __init__(
        self, model: EagerModel | NativeModel, hidden_rows: HiddenRows, *, lanes: int
    ) -> None:
        self._model = model
        self._hidden_rows = hidden_rows
        self.lanes = lanes
        self._fences = itertools.count(1)

    @classmethod
    def open(
        cls, checkpoint: Checkpoint, *, lanes: int, context_tokens: int, threads: int
    ) -> Target:
        """Make the programs: native int8 ones, or eager ones where there is no compiler.

        Raises PackError or NativeBuildError.
        """
        try:
            find_compiler()
        except NoCompilerError:
            return cls.eager(checkpoint, lanes=lanes, context_tokens=context_tokens)
        geometry = checkpoint.geometry
        pool = _pool(lanes, context_tokens)
        with tempfile.TemporaryDirectory() as directory:
            built = build_library(geometry, pool, "int8", Path(directory) / "programs.so")
            model = NativeModel(
                geometry=geometry,
                pool=pool,
                catalog=_catalog(lanes, context_tokens),
                arrays=pack(checkpoint, "int8"),
                library=built.path,
                state=ServingState.allocate(geometry, pool, np.float16),
                threads=threads,
            )
        return cls(model, _NativeRows(model), lanes=lanes)

    @classmethod
    def eager(cls, checkpoint: Checkpoint, *, lanes: int, context_tokens: int) -> Target:
        """Make eager programs in fp32."""
        geometry = checkpoint.geometry
        weights = {
            name: torch.from_numpy(np.ascontiguousarray(checkpoint.float32(name)))
            for name in dense_shapes(geometry)
        }
        model = EagerModel(
            geometry=geometry,
            pool=_pool(lanes, context_tokens),
            catalog=_catalog(lanes, context_tokens),
            weights=weights,
        )
        rows = _EagerRows(model.context.decoder)
        decoder = cast(LlamaDecoder, rows)
        model.context = type(model.context)(
            decoder=decoder,
            state=model.context.state,
            sampler=model.context.sampler,
            block_pages=model.context.block_pages,
        )
        return cls(model, rows, lanes=lanes)

    @property
    def geometry(self) -> ModelGeometry:
        """The target's sizes."""
        return self._model.geometry

    @property
    def context_tokens(self) -> int:
        """Tokens that a text may have, prompt included."""
        return self._model.pool.context_length_tokens

    def close(self) -> None:
        """Release threads and scratch memory."""
        self._model.close()

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        samplings: Sequence[SamplingParams],
        output_tokens: int,
    ) -> list[Text]:
        """Continue up to `lanes` prompts by that many tokens, or to a stop token.

        A prompt must leave room for its output in the context.
        """
        assert len(prompts) == len(samplings) <= self.lanes
        assert all(0 < len(p) <= self.context_tokens - output_tokens for p in prompts)
        fed = [list(prompt) for prompt in prompts]
        hidden = [[self._start(row, fed[row], samplings[row])] for row in range(len(prompts))]
        rows = range(len(prompts))
        for _ in range(output_tokens - 1):
            live = [row for row in rows if not self._model.state.finished[row]]
            if not live:
                break
            pending = self._model.state.pending_token[live].tolist()
            self._run(GraphKind.DECODE, [_lane(row, self._pages(row)) for row in rows])
            for row, token, vector in zip(live, pending, self._hidden_rows(live), strict=True):
                fed[row].append(token)
                hidden[row].append(vector[None])
        self._run(GraphKind.TERMINAL, [_lane(row, self._pages(row)) for row in rows])
        each = zip(fed, hidden, prompts, samplings, strict=True)
        return [_text(tokens, parts, len(p), s.temperature) for tokens, parts, p, s in each]

    def _start(self, row: int, prompt: Sequence[int], sampling: SamplingParams) -> F32:
        """Bind a row, consume its prompt and return the prompt's hidden rows."""
        lane = _lane(row, self._pages(row))
        self._run(GraphKind.INITIALIZE, [lane._replace(sampling=sampling)])
        tokens = np.asarray(prompt, np.int32)
        self._run(GraphKind.PREFILL, [lane._replace(prompt_token_ids=tokens, is_final_chunk=True)])
        return self._hidden_rows(range(len(prompt)))

    def _run(self, kind: GraphKind, lanes: list[FrameLane]) -> None:
        index = self._model.catalog.indices_of(kind)[0]
        program = cast(PreparedProgram, self._model.programs[index])
        size = program.descriptor.batch_capacity
        for start in range(0, len(lanes), size):
            part = tuple(lanes[start : start + size])
            program.load(Frame(fence=Fence(next(self._fences)), graph_index=index, lanes=part))
            program.replay()

    def _pages(self, row: int) -> tuple[int, ...]:
        pages = self._model.pool.pages_per_row
        return tuple(range(row * pages, (row + 1) * pages))


def _pool(lanes: int, context_tokens: int) -> PoolGeometry:
    pages = -(-context_tokens // PAGE_TOKENS)
    return PoolGeometry(
        row_count=lanes,
        page_count=lanes * pages,
        page_size_tokens=PAGE_TOKENS,
        context_length_tokens=context_tokens,
    )


def _catalog(lanes: int, context_tokens: int) -> Catalog:
    """One program of each kind; a whole prompt is one chunk."""
    kinds = ((GraphKind.INITIALIZE, 1), (GraphKind.DECODE, lanes), (GraphKind.TERMINAL, lanes))
    graphs = [GraphDescriptor(kind=kind, batch_capacity=batch) for kind, batch in kinds]
    prefill = GraphDescriptor(
        kind=GraphKind.PREFILL, batch_capacity=1, token_capacity=context_tokens
    )
    return Catalog.of([*graphs, prefill])


def _lane(row: int, pages: tuple[int, ...]) -> FrameLane:
    return FrameLane(handle=RequestHandle(row, 1), row=row, position=0, pages=pages)


def _text(fed: list[int], hidden: list[F32], prompt_tokens: int, temperature: float) -> Text:
    rows = np.concatenate(hidden)
    # A residual stream may carry a few values past half precision; the norm in front of the head
    # makes their exact size unimportant.
    stored = np.clip(rows, -65504, 65504).astype(np.float16)
    return Text(np.asarray(fed, np.int32), stored, prompt_tokens, temperature)


class _NativeRows:
    """Reads the workspace of a native library."""

    def __init__(self, model: NativeModel) -> None:
        read: Any = model.library.ign_hidden
        read.restype, read.argtypes = ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p]
        self._model, self._read = model, read

    def __call__(self, entries: Sequence[int]) -> F32:
        shape = (len(entries), self._model.geometry.hidden_size)
        return np.ctypeslib.as_array(self._read(self._model.handle), shape=shape).copy()


class _EagerRows:
    """Stands in for a decoder and keeps what it returned."""

    def __init__(self, decoder: LlamaDecoder) -> None:
        self._decoder = decoder
        self._last = torch.zeros(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def hidden(self, inputs: StepInputs, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Run the layers."""
        self._last = self._decoder.hidden(inputs, keys, values)
        return self._last

    def __call__(self, entries: Sequence[int]) -> F32:
        rows: F32 = self._last.numpy()[list(entries)].copy()
        return rows
