"""Eager programs: the steps in plain PyTorch on the CPU, over the host's own serving state.

They are the oracle that compiled programs are held against, and the fallback where there is no
compiler. Weights, activations, keys and values are float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from helios.engine.ports import Frame, LaneOutput, Sidecar
from helios.scheduler import Catalog, GraphDescriptor, GraphKind, ProposalSource
from ignition.draft.errors import DraftError
from ignition.draft.file import DraftHead
from ignition.draft.pair import DraftModel
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.models.llama import CPU_TILING, LlamaDecoder
from ignition.programs.buffers import (
    PREFILL_KINDS,
    allocate_buffers,
    buffer_specs,
    is_dealt,
    is_mixed,
    is_round,
    prompt_capacity,
)
from ignition.programs.draft_step import (
    Draft,
    DraftContext,
    DraftingDecoder,
    deal_step,
    propose_step,
)
from ignition.programs.frames import (
    ReplayError,
    check_frame,
    check_pages,
    load_frame,
    read_frame,
    read_sidecar,
)
from ignition.programs.mixed_step import mixed_step
from ignition.programs.pair_step import PairContext
from ignition.programs.steps import (
    StepContext,
    decode_step,
    initialize_step,
    prefill_step,
    round_step,
    terminal_step,
)
from ignition.programs.survival import write_survival
from ignition.programs.tensors import StateTensors, scratch_pool, tensor_of
from ignition.sampling import RowSampling, sample
from ignition.state import ServingState

ATTENTION_BLOCK_TOKENS = 256


def block_pages_of(pool: PoolGeometry, block_tokens: int) -> int:
    """Return pages of one attention block: about `block_tokens`, at least one page."""
    return max(1, block_tokens // pool.page_size_tokens)


class EagerProgram:
    """One program of an EagerModel; implements helios.engine.ports.PreparedProgram."""

    def __init__(self, model: EagerModel, descriptor: GraphDescriptor) -> None:
        specs = buffer_specs(
            descriptor,
            vocabulary_size=model.geometry.vocabulary_size,
            pages_per_row=model.pool.pages_per_row,
        )
        self._model = model
        self._descriptor = descriptor
        self._draft_capacity = max(graph.proposal_depth for graph in model.catalog.graphs)
        self._buffers = allocate_buffers(specs)
        self._tensors = {name: tensor_of(array) for name, array in self._buffers.items()}

    @property
    def descriptor(self) -> GraphDescriptor:
        """The catalog identity."""
        return self._descriptor

    @property
    def buffers(self) -> Mapping[str, npt.NDArray[Any]]:
        """The static inputs and outputs by name; `last_logits` holds what was sampled from."""
        return self._buffers

    def load(self, frame: Frame) -> None:
        """Write the frame's inputs. Raises FrameError when it does not fit; nothing is written."""
        check_frame(self._descriptor, frame, self._model.geometry, self._model.pool)
        if prompt_capacity(self._descriptor):
            page_size = self._model.pool.page_size_tokens
            check_pages(self._descriptor, frame, self._model.state.page_table, page_size)
        load_frame(self._descriptor, frame, self._buffers)

    def replay(self) -> None:
        """Execute the step on what was loaded. Raises ReplayError and changes nothing when a
        generating row has no page for what it is fed.
        """
        kind, state = self._descriptor.kind, self._model.context.state
        if kind is GraphKind.INITIALIZE:
            initialize_step(state, self._tensors)
        elif kind is GraphKind.TERMINAL:
            terminal_step(state, self._tensors)
        elif kind in (GraphKind.DECODE, GraphKind.SPECULATIVE):
            self._check_next_pages()
            self._propose()
            self._generate()
        elif is_mixed(self._descriptor):
            self._check_next_pages()
            self._propose()
            mixed_step(
                self._model.context,
                self._tensors,
                block_count=self._block_count(),
                has_prompt=self._prompt_row() >= 0,
                is_final_chunk=bool(self._buffers["is_final_chunk"][0]),
                with_logprobs=self._wants_logprobs(),
            )
        else:
            assert kind in PREFILL_KINDS
            prefill_step(
                self._model.context,
                self._tensors,
                block_count=self._block_count(),
                is_final_chunk=bool(self._buffers["is_final_chunk"][0]),
                with_scores=kind is GraphKind.SCORED_PREFILL,
                with_logprobs=self._wants_logprobs(),
            )

    def read(self, frame: Frame) -> tuple[LaneOutput, ...]:
        """Return the outputs, one per lane of the frame in its order."""
        return read_frame(self._descriptor, frame, self._buffers)

    @property
    def confidence(self) -> Sidecar | None:
        """Of the frame that was just executed; None for a program that reports none."""
        return self._sidecar("confidence")

    @property
    def survival(self) -> Sidecar | None:
        """Of the frame that was just executed; None for a program that writes none."""
        return self._sidecar("survival")

    def _sidecar(self, name: str) -> Sidecar | None:
        return read_sidecar(name, self._buffers, self._model.pool.row_count, self._draft_capacity)

    def _generate(self) -> None:
        """Run a single step or a round of what the lanes hold."""
        context, tensors, graph = self._model.context, self._tensors, self._descriptor
        blocks, reports = self._block_count(), self._wants_logprobs()
        if not is_round(graph):
            decode_step(context, tensors, block_count=blocks, with_logprobs=reports)
            return
        round_step(
            context, tensors, block_count=blocks, with_logprobs=reports, packed_rows=graph.rows
        )
        if graph.reports_survival:
            write_survival(self._model.state, self._buffers)

    def _propose(self) -> None:
        """Fill in the proposals of a program that makes them itself."""
        if self._descriptor.source is not ProposalSource.LEARNED:
            return
        model = self._model
        assert model.draft is not None
        propose_step(model.context, model.draft, self._tensors, block_count=self._block_count())
        if is_dealt(self._descriptor):
            deal_step(model.context, self._tensors, packed_rows=self._descriptor.rows)

    def _active_rows(self) -> npt.NDArray[np.int32]:
        rows: npt.NDArray[np.int32] = self._buffers["rows"]
        return rows[rows >= 0]

    def _prompt_row(self) -> int:
        """Return the row that consumes prompt tokens; -1 for none."""
        place = int(self._buffers["prefill_row"][0]) if is_mixed(self._descriptor) else -1
        return int(self._buffers["rows"][place]) if place >= 0 else -1

    def _reach(self) -> dict[int, int]:
        """Return the tokens in the cache of every row that generates once its lane was fed."""
        rows = self._buffers["rows"]
        lengths = self._buffers.get("query_lengths", np.ones_like(rows))
        cached, prompt = self._model.state.cached_tokens, self._prompt_row()
        return {
            row: int(cached[row]) + length
            for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)
            if row >= 0 and row != prompt
        }

    def _check_next_pages(self) -> None:
        """Without this the token's keys would silently go to the scratch page."""
        state, page_size = self._model.state, self._model.pool.page_size_tokens
        for row, reach in self._reach().items():
            pages = state.page_table[row, int(state.cached_tokens[row]) // page_size :]
            wanted = -(-reach // page_size) - int(state.cached_tokens[row]) // page_size
            is_mapped = len(pages) >= wanted and bool((pages[:wanted] >= 0).all())
            if not is_mapped and not state.finished[row]:
                raise ReplayError(
                    f"{self._descriptor.name}: row {row} has no page for its next token"
                )

    def _block_count(self) -> int:
        """Blocks up to the longest context of the lanes; more would not change a bit."""
        reach = 1
        if prompt_capacity(self._descriptor):
            reach = int(self._buffers["position"][0] + self._buffers["count"][0])
        if self._descriptor.kind not in PREFILL_KINDS:
            reach = max(reach, *self._reach().values(), 1)
        block_tokens = self._model.context.block_pages * self._model.pool.page_size_tokens
        return max(1, -(-reach // block_tokens))

    def _wants_logprobs(self) -> bool:
        wanted = self._model.state.top_logprobs[self._active_rows()]
        return bool((wanted >= 0).any())


class EagerModel:
    """Every program of a catalog in eager PyTorch, over one serving state.

    `weights` maps canonical names to float32 tensors. PyTorch's thread count is process-wide and
    set here when `threads` is given. With a `draft`, a head or a model of its own, every program
    keeps the draft context; programs with learned proposals need one (DraftError).
    """

    def __init__(
        self,
        *,
        geometry: ModelGeometry,
        pool: PoolGeometry,
        catalog: Catalog,
        weights: Mapping[str, Tensor],
        threads: int | None = None,
        draft: DraftHead | DraftModel | None = None,
    ) -> None:
        needs_draft = [g.name for g in catalog.graphs if g.source is ProposalSource.LEARNED]
        if needs_draft and draft is None:
            raise DraftError(f"{needs_draft[0]} proposes with a draft head, and none is given")
        if threads is not None:
            torch.set_num_threads(threads)
        self.geometry = geometry
        self.pool = pool
        self.catalog = catalog
        self.state = ServingState.allocate(geometry, scratch_pool(pool), np.float32)
        decoder = LlamaDecoder(
            geometry,
            weights,
            tiling=CPU_TILING,
            context_length_tokens=pool.pages_per_row * pool.page_size_tokens,
        )
        self.draft: Draft | None = None
        tokens = self.state.keys.shape[1]
        if isinstance(draft, DraftModel):
            self.draft = PairContext(
                draft,
                tiling=CPU_TILING,
                context_length_tokens=decoder.context_length_tokens,
                pool_tokens=tokens,
            )
        elif draft is not None:
            self.draft = DraftContext(
                draft, decoder, weights, tiling=CPU_TILING, pool_tokens=tokens
            )
        self.context = StepContext(
            decoder=decoder if self.draft is None else DraftingDecoder.of(decoder, self.draft),
            state=StateTensors.shared(self.state, pool),
            sampler=_ReferenceSampler(self.state, pool.row_count),
            block_pages=block_pages_of(pool, ATTENTION_BLOCK_TOKENS),
        )
        self.programs = tuple(EagerProgram(self, graph) for graph in catalog.graphs)

    def close(self) -> None:
        """Nothing to release: PyTorch owns threads and memory of the process."""


@dataclasses.dataclass(frozen=True, slots=True)
class _ReferenceSampler:
    """Samples each live row with the NumPy reference, straight from the shared state."""

    state: ServingState
    scratch_row: int

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return int64 [B]; idle rows get token zero."""
        table = logits.numpy()
        tokens = [
            0 if row == self.scratch_row else sample(table[lane], RowSampling.of(self.state, row))
            for lane, row in enumerate(rows.tolist())
        ]
        return torch.tensor(tokens, dtype=torch.int64)
