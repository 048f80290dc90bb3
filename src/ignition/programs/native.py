"""Native programs: frames over the compiled library.

A replay of a prefill, decode, speculative or mixed program is one C call, without the interpreter
lock. INITIALIZE and TERMINAL move a few kilobytes between arrays and are NumPy.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from helios.engine.ports import Frame, LaneOutput, Sidecar
from helios.scheduler import Catalog, GraphDescriptor, GraphKind, ProposalSource
from ignition.draft.pair import DraftModel
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.native.pack import MATRICES, VECTORS
from ignition.native.pack_draft import LAYER_VECTORS, PREFIX, TOKEN_IDS
from ignition.programs.buffers import (
    LOGITS,
    PREFILL_KINDS,
    SAMPLING_FIELDS,
    allocate_buffers,
    buffer_specs,
    fed_tokens,
    is_dealt,
    is_mixed,
    is_round,
    is_single_step,
    prompt_capacity,
)
from ignition.programs.frames import (
    ReplayError,
    check_frame,
    check_pages,
    load_frame,
    read_frame,
    read_sidecar,
)
from ignition.programs.native_draft import NativeDraft
from ignition.programs.native_library import (
    LaneRecord,
    NativeLibraryError,
    PromptRecord,
    RoundRecord,
    ScoreRecord,
    is_float32,
    open_library,
    rotary_tables,
    state_record,
)
from ignition.programs.native_pair import NativePair
from ignition.programs.native_weights import WeightSetter, matrix_shape, weight_bytes
from ignition.state import ServingState

Array = npt.NDArray[Any]
_Record = TypeVar("_Record", LaneRecord, PromptRecord, RoundRecord, ScoreRecord)

_GENERATING: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


class NativeModel:
    """Every program of a catalog in native code, over one serving state.

    `arrays` is what `ignition.native.pack.pack` returned (possibly mapped from disk). With those of
    `pack_draft` among them every program keeps the draft context, in a layer more of the state's
    pools; with a `pair`, a separate draft model, they keep its context in pools of its own.
    Programs with learned proposals need one of the two. The weights are copied to memory with large
    pages; the state is kept alive. Raises NativeLibraryError when library, arrays, catalog and
    state do not fit together, and when memory or threads cannot be had.
    """

    def __init__(
        self,
        *,
        geometry: ModelGeometry,
        pool: PoolGeometry,
        catalog: Catalog,
        arrays: Mapping[str, Array],
        library: Path,
        state: ServingState,
        threads: int,
        pair: DraftModel | None = None,
    ) -> None:
        if threads < 1:
            raise NativeLibraryError(f"threads must be at least 1, not {threads}")
        self.geometry = geometry
        self.pool = pool
        self.catalog = catalog
        self.state = state
        self.library = open_library(library, geometry, pool)
        _check_state(state, pool, is_float32=is_float32(self.library))
        self._tables = rotary_tables(geometry, pool.pages_per_row * pool.page_size_tokens)
        self.handle = self._create(threads, weight_bytes(arrays))
        self._finalizer = weakref.finalize(self, self.library.ign_destroy, self.handle)
        WeightSetter(self.library, self.handle, geometry).set_all(arrays)
        self.pair = None if pair is None else self._open_pair(pair, threads)
        self.draft = self._open_draft(arrays)
        self.programs = tuple(NativeProgram(self, graph) for graph in catalog.graphs)

    def close(self) -> None:
        """Stop the threads and free the scratch memory; no program may run afterwards."""
        if self.pair is not None:
            self.pair.close()
        self._finalizer()

    def logits(self, rows: int) -> npt.NDArray[np.float32]:
        """Return a view of the first `rows` raw logits rows of the last head, [rows, V]."""
        width = ctypes.c_int32()
        pointer = self.library.ign_logits(self.handle, ctypes.byref(width))
        table = np.ctypeslib.as_array(pointer, shape=(rows, width.value))
        return table[:, : self.geometry.vocabulary_size]

    def _create(self, threads: int, weight_bytes: int) -> int:
        graphs = self.catalog.graphs
        tokens = max(fed_tokens(graph) for graph in graphs)
        lanes = max(graph.batch_capacity for graph in graphs)
        head_rows = max(graph.rows for graph in graphs if graph.kind not in PREFILL_KINDS)
        cosines, sines = self._tables
        handle = self.library.ign_create(
            ctypes.byref(state_record(self.state)),
            threads,
            tokens,
            head_rows,
            lanes,
            weight_bytes,
            self.geometry.rms_epsilon,
            cosines.ctypes.data,
            sines.ctypes.data,
        )
        if not handle:
            raise NativeLibraryError(
                f"no memory or threads for {threads} threads, {tokens} tokens, {lanes} lanes"
            )
        return int(handle)

    def _open_pair(self, pair: DraftModel, threads: int) -> NativePair:
        return NativePair(
            pair,
            pool=self.pool,
            state=self.state,
            graphs=self.catalog.graphs,
            target=(self.library, self.handle),
            threads=threads,
        )

    def _open_draft(self, arrays: Mapping[str, Array]) -> NativeDraft | None:
        """Hand the library the head that the arrays hold, if there is one."""
        if TOKEN_IDS not in arrays:
            for graph in self.catalog.graphs:
                if graph.source is ProposalSource.LEARNED and self.pair is None:
                    raise NativeLibraryError(f"{graph.name} needs a draft head, and none is given")
            return None
        layers = self.geometry.layer_count
        if len(self.state.keys) <= layers:
            raise NativeLibraryError(
                f"the pools have {len(self.state.keys)} layers, with a draft they need {layers + 1}"
            )
        kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        weights = WeightSetter(self.library, self.handle, self.geometry)
        for name in LAYER_VECTORS:
            which, size = VECTORS.index(name), self.geometry.hidden_size
            weights.set_vector(kept, layers, which, PREFIX + name, size)
        for which, name in enumerate(MATRICES):
            shape = matrix_shape(self.geometry, name)
            weights.set_matrix(kept, layers, which, PREFIX + name, shape)
        return NativeDraft(
            self.library,
            self.handle,
            kept,
            self.geometry,
            pool_tokens=self.state.keys.shape[1],
            lanes=max(graph.batch_capacity for graph in self.catalog.graphs),
        )


def _no_page(graph: GraphDescriptor, row: int) -> ReplayError:
    return ReplayError(f"{graph.name}: row {row} has no page for its next token")


def _check_state(state: ServingState, pool: PoolGeometry, *, is_float32: bool) -> None:
    expected = np.float32 if is_float32 else np.float16
    if state.keys.dtype != expected or state.values.dtype != expected:
        raise NativeLibraryError(
            f"keys and values are {state.keys.dtype}, the library needs {np.dtype(expected)}"
        )
    if state.keys.shape[1] < pool.page_count * pool.page_size_tokens:
        raise NativeLibraryError(f"the pool of keys holds {state.keys.shape[1]} tokens, too few")


class NativeProgram:
    """One program of a NativeModel; implements helios.engine.ports.PreparedProgram."""

    def __init__(self, model: NativeModel, descriptor: GraphDescriptor) -> None:
        specs = buffer_specs(
            descriptor,
            vocabulary_size=model.geometry.vocabulary_size,
            pages_per_row=model.pool.pages_per_row,
            # They stay in the library's scratch memory, which all programs share.
            keeps_logits=False,
        )
        self._model = model
        self._descriptor = descriptor
        self._draft_capacity = max(graph.proposal_depth for graph in model.catalog.graphs)
        self._buffers = allocate_buffers(specs)
        if descriptor.kind in (*_GENERATING, *PREFILL_KINDS):
            sampled = 1 if descriptor.kind in PREFILL_KINDS else descriptor.rows
            self._buffers[LOGITS] = model.logits(sampled)
        self._lanes = _addresses(LaneRecord(), self._buffers)
        self._asked = _round_record(descriptor, self._buffers)
        self._round = _round_record(descriptor, self._buffers)
        if is_dealt(descriptor):
            # The host asks for ceilings; what is fed is what the program gives.
            self._round.query_lengths = self._buffers["offered"].ctypes.data
        if is_single_step(descriptor):
            # A single step is what a round of one target row is; a draft model sees it as one.
            self._ones = np.ones(descriptor.batch_capacity, np.int32)
            self._round.query_lengths = self._ones.ctypes.data
        self._prompt = _addresses(PromptRecord(), self._buffers)
        self._scores = _addresses(ScoreRecord(), self._buffers)
        self._following = np.full(prompt_capacity(descriptor), -1, np.int32)
        self._readiness_ns = 0

    @property
    def descriptor(self) -> GraphDescriptor:
        """The catalog identity."""
        return self._descriptor

    @property
    def buffers(self) -> Mapping[str, Array]:
        """The static inputs and outputs by name."""
        return self._buffers

    def load(self, frame: Frame) -> None:
        """Write the frame's inputs. Raises FrameError when it does not fit; nothing is written."""
        check_frame(self._descriptor, frame, self._model.geometry, self._model.pool)
        if prompt_capacity(self._descriptor):
            # The C code follows the page table without looking, so it must be mapped that far.
            page_size = self._model.pool.page_size_tokens
            check_pages(self._descriptor, frame, self._model.state.page_table, page_size)
        load_frame(self._descriptor, frame, self._buffers)
        if self._descriptor.kind is GraphKind.SCORED_PREFILL:
            count = int(self._buffers["count"][0])
            self._following[: count - 1] = self._buffers["token_ids"][1:count]
            self._following[count - 1] = self._buffers["next_prompt_token_id"][0]

    def replay(self) -> None:
        """Execute the step on what was loaded. Raises ReplayError and changes nothing when a
        generating row has no page for what it is fed.
        """
        library, handle = self._model.library, self._model.handle
        library.ign_watch(handle)
        self._execute()
        self._readiness_ns = int(library.ign_lost_ns(handle))

    def readiness_ns(self) -> int:
        """Return how long the last replay stood ready while others had its processors, ns.

        What one of n threads loses counts as an n-th, because the others do its work meanwhile.
        Zero where the system does not tell.
        """
        return self._readiness_ns

    def _execute(self) -> None:
        match self._descriptor.kind:
            case GraphKind.INITIALIZE:
                self._initialize()
            case GraphKind.TERMINAL:
                self._terminate()
            case GraphKind.DECODE | GraphKind.SPECULATIVE | GraphKind.MIXED:
                self._generate()
            case GraphKind.PREFILL:
                self._prefill()
            case GraphKind.SCORED_PREFILL:
                self._scored_prefill()

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

    def _active(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        is_active = self._buffers["rows"] >= 0
        return is_active, self._buffers["rows"][is_active]

    def _initialize(self) -> None:
        state = self._model.state
        is_active, rows = self._active()
        installed = ("page_table", "stop_token_ids", "bias_ids", "bias_values")
        for name in (*installed, *(name for name, _ in SAMPLING_FIELDS)):
            getattr(state, name)[rows] = self._buffers[name][is_active]
        for name in ("pending_token", "cached_tokens", "output_count", "finished"):
            getattr(state, name)[rows] = 0
        state.output_counts[rows] = 0
        state.prompt_seen[rows] = 0

    def _terminate(self) -> None:
        state = self._model.state
        is_active, rows = self._active()
        self._buffers["cached_tokens"][is_active] = state.cached_tokens[rows]
        self._buffers["output_count"][is_active] = state.output_count[rows]
        state.page_table[rows] = -1
        for name in ("pending_token", "cached_tokens", "output_count", "finished"):
            getattr(state, name)[rows] = 0

    def _generate(self) -> None:
        rows, model = self._buffers["rows"], self._model
        handle, lanes = model.handle, ctypes.byref(self._lanes)
        if self._descriptor.source is ProposalSource.LEARNED:
            self._propose()
        elif model.pair is not None:
            self._check_lane(model.pair.absorb(self._round, self._prompt_lane()))
        if is_mixed(self._descriptor) and self._prompt_lane() >= 0:
            self._absorb_prompt(int(rows[self._prompt_lane()]))
        if is_mixed(self._descriptor):
            lane = self._mix()
        elif is_round(self._descriptor):
            lane = model.library.ign_round(handle, ctypes.byref(self._round), lanes)
        else:
            lane = model.library.ign_decode(handle, len(rows), rows.ctypes.data, lanes)
        if lane >= 0:
            raise _no_page(self._descriptor, rows[lane])

    def _propose(self) -> None:
        """Fill in the proposals of every lane, and deal the rows of a program that does so.

        A separate draft model also absorbs all that may be fed.
        """
        model, buffers = self._model, self._buffers
        proposals, confidence = buffers["proposals"], buffers.get("confidence")
        if model.pair is not None:
            lane = model.pair.propose(self._asked, proposals, confidence, self._prompt_lane())
        else:
            assert model.draft is not None
            lane = model.draft.propose(self._asked, proposals, confidence)
        self._check_lane(lane)
        if is_dealt(self._descriptor):
            asked, rows = ctypes.byref(self._asked), self._descriptor.rows
            offered = buffers["offered"].ctypes.data
            model.library.ign_deal(
                model.handle, asked, rows, buffers["confidence"].ctypes.data, offered
            )

    def _check_lane(self, lane: int) -> None:
        """Raise ReplayError for a lane that has no page for what it is fed; -1 is none."""
        if lane >= 0:
            raise _no_page(self._descriptor, self._buffers["rows"][lane])

    def _prompt_lane(self) -> int:
        """Return the lane that consumes a prompt's chunk beside others, -1 for none."""
        return int(self._buffers["prefill_row"][0]) if is_mixed(self._descriptor) else -1

    def _absorb_prompt(self, row: int) -> None:
        """Let a draft model consume the chunk of a prompt."""
        if self._model.pair is None:
            return
        buffers = self._buffers
        tokens = buffers["token_ids"][: int(buffers["count"][0])]
        self._model.pair.consume(row, int(buffers["position"][0]), tokens)

    def _mix(self) -> int:
        """Replay a mixed step; return the lane that it refuses, -1 for none."""
        buffers, prompt = self._buffers, self._prompt
        prompt.lane = int(buffers["prefill_row"][0])
        prompt.position = int(buffers["position"][0])
        prompt.count = int(buffers["count"][0])
        prompt.is_final = int(buffers["is_final_chunk"][0])
        lane = self._model.library.ign_mixed(
            self._model.handle,
            ctypes.byref(self._round),
            ctypes.byref(prompt),
            ctypes.byref(self._lanes),
        )
        return int(lane)

    def _prefill(self) -> None:
        self._absorb_prompt(int(self._buffers["rows"][0]))
        self._model.library.ign_prefill(
            self._model.handle,
            *self._prompt_arguments(),
            self._buffers["token_ids"].ctypes.data,
            int(self._buffers["is_final_chunk"][0]),
            ctypes.byref(self._lanes),
        )

    def _scored_prefill(self) -> None:
        self._absorb_prompt(int(self._buffers["rows"][0]))
        self._model.library.ign_scored_prefill(
            self._model.handle,
            *self._prompt_arguments(),
            self._buffers["token_ids"].ctypes.data,
            self._following.ctypes.data,
            int(self._buffers["is_final_chunk"][0]),
            ctypes.byref(self._lanes),
            ctypes.byref(self._scores),
        )

    def _prompt_arguments(self) -> tuple[int, int, int]:
        buffers = self._buffers
        return int(buffers["rows"][0]), int(buffers["position"][0]), int(buffers["count"][0])


def _round_record(graph: GraphDescriptor, buffers: Mapping[str, Array]) -> RoundRecord:
    record = _addresses(RoundRecord(), buffers)
    record.lanes, record.width = graph.batch_capacity, graph.token_capacity
    record.depth = graph.proposal_depth
    return record


def _addresses(record: _Record, buffers: Mapping[str, Array]) -> _Record:
    """Fill a record's pointers with the buffers of the same names."""
    for name in (field[0] for field in record._fields_):
        if name in buffers:
            setattr(record, name, buffers[name].ctypes.data)
    return record
