"""A separate draft model in a native model: a library of its own geometry over the same rows.

Its keys and values are pools of its own under the target's page tables; everything else of its
serving state are the target's arrays, and it runs on the target's threads
(docs/design/drafts.md section 7).
"""

from __future__ import annotations

import ctypes
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from helios.scheduler import GraphDescriptor
from ignition.draft.pair import DraftModel
from ignition.geometry import PoolGeometry
from ignition.programs.buffers import fed_tokens
from ignition.programs.native_library import (
    NativeLibraryError,
    RoundRecord,
    is_float32,
    open_library,
    rotary_tables,
    state_record,
)
from ignition.programs.native_weights import WeightSetter, weight_bytes
from ignition.state import ServingState

Array = npt.NDArray[Any]


class NativePair:
    """The draft model of a NativeModel whose library and handle are given, and which outlives it.

    Raises NativeLibraryError when library, arrays and state do not fit together, and when memory
    cannot be had.
    """

    def __init__(
        self,
        draft: DraftModel,
        *,
        pool: PoolGeometry,
        state: ServingState,
        graphs: Sequence[GraphDescriptor],
        target: tuple[ctypes.CDLL, int],
        threads: int,
    ) -> None:
        if draft.library is None:
            raise NativeLibraryError("the draft model has no library of its geometry")
        geometry = draft.geometry
        self.library = open_library(draft.library, geometry, pool)
        _declare(self.library)
        if is_float32(self.library) != is_float32(target[0]):
            raise NativeLibraryError(f"{draft.library.name} is of another precision")
        shape = (geometry.layer_count, state.keys.shape[1], geometry.kv_width)
        self.state = dataclasses.replace(
            state,
            model=geometry,
            keys=np.zeros(shape, state.keys.dtype),
            values=np.zeros(shape, state.keys.dtype),
        )
        self._tables = rotary_tables(geometry, pool.pages_per_row * pool.page_size_tokens)
        cosines, sines = self._tables
        handle = self.library.ign_create(
            ctypes.byref(state_record(self.state)),
            threads,
            max(fed_tokens(graph) for graph in graphs),
            # A row of scores for each lane; nothing is sampled.
            max(graph.batch_capacity for graph in graphs),
            1,
            weight_bytes(draft.arrays),
            geometry.rms_epsilon,
            cosines.ctypes.data,
            sines.ctypes.data,
        )
        if not handle:
            raise NativeLibraryError(f"no memory or threads for the draft of {threads} threads")
        self.handle = int(handle)
        self._finalizer = weakref.finalize(self, self.library.ign_destroy, self.handle)
        self.library.ign_use_pool(self.handle, _threads_of(*target))
        WeightSetter(self.library, self.handle, geometry).set_all(draft.arrays)

    def close(self) -> None:
        """Free the scratch memory; nothing may run afterwards."""
        self._finalizer()

    def propose(
        self, inputs: RoundRecord, proposals: Array, confidence: Array | None, skipped: int
    ) -> int:
        """Write the proposals of every lane but `skipped`, with the draft's own probability of
        every prefix where asked for, and append all that the target may verify.

        Returns -1, or the first lane without a page.
        """
        address = None if confidence is None else confidence.ctypes.data
        return int(
            self.library.ign_pair_propose(
                self.handle, ctypes.byref(inputs), proposals.ctypes.data, address, skipped
            )
        )

    def absorb(self, inputs: RoundRecord, skipped: int) -> int:
        """Append what every lane but `skipped` is fed; return -1, or the first without a page."""
        return int(self.library.ign_pair_absorb(self.handle, ctypes.byref(inputs), skipped))

    def consume(self, row: int, position: int, tokens: Array) -> None:
        """Append a chunk of a prompt, int32 tokens."""
        count, address = len(tokens), tokens.ctypes.data
        self.library.ign_pair_consume(self.handle, row, position, count, address)


def _threads_of(library: Any, handle: int) -> int:
    library.ign_pool.restype = ctypes.c_void_p
    library.ign_pool.argtypes = [ctypes.c_void_p]
    return int(library.ign_pool(handle))


def _declare(library: Any) -> None:
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    library.ign_use_pool.restype = None
    library.ign_use_pool.argtypes = [pointer, pointer]
    library.ign_pair_propose.restype = int32
    library.ign_pair_propose.argtypes = [*[pointer] * 4, int32]
    library.ign_pair_absorb.restype = int32
    library.ign_pair_absorb.argtypes = [pointer, pointer, int32]
    library.ign_pair_consume.restype = None
    library.ign_pair_consume.argtypes = [pointer, int32, int32, int32, pointer]
