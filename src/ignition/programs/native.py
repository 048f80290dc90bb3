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
    prompt_capacity,
)
from ignition.programs.frames import (
    ReplayError,
    check_frame,
    check_pages,
    load_frame,
    read_confidence,
    read_frame,
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
from ignition.state import ServingState

Array = npt.NDArray[Any]
_Record = TypeVar("_Record", LaneRecord, PromptRecord, RoundRecord, ScoreRecord)

_GENERATING: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)
_KIND_NUMBERS: Final = {"q4": 0, "q8": 1, "f32": 2}
_EMBEDDING: Final = len(MATRICES)
_HEAD: Final = len(MATRICES) + 1
_FINAL_NORM: Final = len(VECTORS)


class NativeModel:
    """Every program of a catalog in native code, over one serving state.

    `arrays` is what `ignition.native.pack.pack` returned (possibly mapped from disk). With those of
    `pack_draft` among them every program keeps the draft context, in a layer more of the state's
    pools; programs with learned proposals need it. The weights are copied to memory with large
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
        weight_bytes = sum(-(-array.nbytes // 64) * 64 for array in arrays.values())
        self.handle = self._create(threads, weight_bytes)
        self._finalizer = weakref.finalize(self, self.library.ign_destroy, self.handle)
        self._set_weights({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        self.draft = self._open_draft(arrays)
        self.programs = tuple(NativeProgram(self, graph) for graph in catalog.graphs)

    def close(self) -> None:
        """Stop the threads and free the scratch memory; no program may run afterwards."""
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

    def _set_weights(self, arrays: Mapping[str, Array]) -> None:
        """Copy the weights in the order in which a step reads them."""
        hidden = self.geometry.hidden_size
        vocabulary = self.geometry.vocabulary_size
        for layer in range(self.geometry.layer_count):
            for which, name in enumerate(VECTORS):
                size = _vector_size(self.geometry, name)
                if size:
                    self._set_vector(arrays, layer, which, f"layers.{layer}.{name}", size)
            for which, name in enumerate(MATRICES):
                shape = _matrix_shape(self.geometry, name)
                self._set_matrix(arrays, layer, which, f"layers.{layer}.{name}", shape)
        self._set_vector(arrays, 0, _FINAL_NORM, "norm", hidden)
        self._set_matrix(arrays, 0, _EMBEDDING, "embed", (vocabulary, hidden))
        if self.geometry.tied_embeddings:
            self.library.ign_tie_head(self.handle)
        else:
            self._set_matrix(arrays, 0, _HEAD, "head", (vocabulary, hidden))

    def _open_draft(self, arrays: Mapping[str, Array]) -> NativeDraft | None:
        """Hand the library the head that the arrays hold, if there is one."""
        if TOKEN_IDS not in arrays:
            for graph in self.catalog.graphs:
                if graph.source is ProposalSource.LEARNED:
                    raise NativeLibraryError(f"{graph.name} needs a draft head, and none is given")
            return None
        layers = self.geometry.layer_count
        if len(self.state.keys) <= layers:
            raise NativeLibraryError(
                f"the pools have {len(self.state.keys)} layers, with a draft they need {layers + 1}"
            )
        kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        for name in LAYER_VECTORS:
            which, size = VECTORS.index(name), self.geometry.hidden_size
            self._set_vector(kept, layers, which, PREFIX + name, size)
        for which, name in enumerate(MATRICES):
            shape = _matrix_shape(self.geometry, name)
            self._set_matrix(kept, layers, which, PREFIX + name, shape)
        return NativeDraft(
            self.library,
            self.handle,
            kept,
            self.geometry,
            pool_tokens=self.state.keys.shape[1],
            lanes=max(graph.batch_capacity for graph in self.catalog.graphs),
        )

    def _set_matrix(
        self, arrays: Mapping[str, Array], layer: int, which: int, name: str, of: tuple[int, int]
    ) -> None:
        rows, inputs = of[0], -(-of[1] // 32) * 32
        for kind, number in _KIND_NUMBERS.items():
            array = arrays.get(f"{name}.{kind}")
            if array is None:
                continue
            if (kind == "f32") != is_float32(self.library):
                raise NativeLibraryError(f"{name}.{kind} is of another precision than the library")
            shape = (-(-rows // 8), inputs // 32 * _BLOCK_BYTES[kind])
            if array.shape != shape or array.dtype != np.uint8:
                raise NativeLibraryError(
                    f"{name}.{kind} is {array.dtype} {array.shape}, expected uint8 {shape}"
                )
            address = array.ctypes.data
            self.library.ign_set_matrix(self.handle, layer, which, number, rows, inputs, address)
            return
        raise NativeLibraryError(f"the package has no weights {name}")

    def _set_vector(
        self, arrays: Mapping[str, Array], layer: int, which: int, name: str, size: int
    ) -> None:
        array = arrays.get(name)
        if array is None:
            raise NativeLibraryError(f"the package has no weights {name}")
        if array.shape != (size,) or array.dtype != np.float32:
            raise NativeLibraryError(
                f"{name} is {array.dtype} {array.shape}, expected float32 ({size},)"
            )
        self.library.ign_set_vector(self.handle, layer, which, size, array.ctypes.data)


_BLOCK_BYTES: Final = {"q4": 160, "q8": 272, "f32": 1024}
"""Bytes of one block of 32 inputs in a panel of eight rows (panel.h)."""


def _matrix_shape(geometry: ModelGeometry, name: str) -> tuple[int, int]:
    hidden, ffn = geometry.hidden_size, geometry.ffn_size
    query_width = geometry.query_heads * geometry.head_size
    shapes = {
        "q": (query_width, hidden),
        "k": (geometry.kv_width, hidden),
        "v": (geometry.kv_width, hidden),
        "o": (hidden, query_width),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    return shapes[name]


def _vector_size(geometry: ModelGeometry, name: str) -> int:
    """Elements of a layer vector; zero when this family has no such vector."""
    bias = geometry.attention_bias
    sizes = {
        "attn_norm": geometry.hidden_size,
        "ffn_norm": geometry.hidden_size,
        "q_bias": geometry.query_heads * geometry.head_size * bias,
        "k_bias": geometry.kv_width * bias,
        "v_bias": geometry.kv_width * bias,
        "q_norm": geometry.head_size * geometry.qk_norm,
        "k_norm": geometry.head_size * geometry.qk_norm,
    }
    return sizes[name]


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
        self._prompt = _addresses(PromptRecord(), self._buffers)
        self._scores = _addresses(ScoreRecord(), self._buffers)
        self._following = np.full(prompt_capacity(descriptor), -1, np.int32)

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
        return read_confidence(self._buffers, self._model.pool.row_count, self._draft_capacity)

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
        if is_mixed(self._descriptor):
            lane = self._mix()
        elif is_round(self._descriptor):
            lane = model.library.ign_round(handle, ctypes.byref(self._round), lanes)
        else:
            lane = model.library.ign_decode(handle, len(rows), rows.ctypes.data, lanes)
        if lane >= 0:
            raise _no_page(self._descriptor, rows[lane])

    def _propose(self) -> None:
        """Fill in the proposals of every lane, and deal the rows of a program that does so."""
        model, buffers = self._model, self._buffers
        assert model.draft is not None
        confidence = buffers.get("confidence")
        lane = model.draft.propose(self._asked, buffers["proposals"], confidence)
        if lane >= 0:
            raise _no_page(self._descriptor, buffers["rows"][lane])
        if is_dealt(self._descriptor):
            asked, rows = ctypes.byref(self._asked), self._descriptor.rows
            offered = buffers["offered"].ctypes.data
            model.library.ign_deal(
                model.handle, asked, rows, buffers["confidence"].ctypes.data, offered
            )

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
        self._model.library.ign_prefill(
            self._model.handle,
            *self._prompt_arguments(),
            self._buffers["token_ids"].ctypes.data,
            int(self._buffers["is_final_chunk"][0]),
            ctypes.byref(self._lanes),
        )

    def _scored_prefill(self) -> None:
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
