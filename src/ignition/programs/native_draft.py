"""A draft head in a native model: its weights, its pool of hidden rows, and proposing."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ignition.draft.shapes import HIDDEN_NORM, TOKEN_NORM
from ignition.geometry import ModelGeometry
from ignition.native.pack_draft import PREFIX, TOKEN_IDS
from ignition.programs.native_library import NativeLibraryError, RoundRecord

Array = npt.NDArray[Any]
_KIND_NUMBERS: Final = {"q4": 0, "q8": 1, "f32": 2}
_MATRICES: Final = ("join_hidden", "join_token", "head")


class NativeDraft:
    """What the library reads while it lives, and the call that proposes.

    `layer` is the index that the head's layer has among the target's. Raises NativeLibraryError
    when memory cannot be had or an array is missing.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: int,
        arrays: Mapping[str, Array],
        geometry: ModelGeometry,
        *,
        pool_tokens: int,
        lanes: int,
    ) -> None:
        self._library, self._handle = library, handle
        _declare(library)
        self.token_ids = aligned(arrays[TOKEN_IDS])
        self.pool = np.zeros((pool_tokens, geometry.hidden_size), np.float32)
        vectors = [aligned(_found(arrays, PREFIX + name)) for name in (HIDDEN_NORM, TOKEN_NORM)]
        self._kept = [*vectors]
        done = library.ign_set_draft(
            handle,
            len(self.token_ids),
            self.token_ids.ctypes.data,
            *(vector.ctypes.data for vector in vectors),
            self.pool.ctypes.data,
            lanes,
        )
        if not done:
            raise NativeLibraryError(f"no memory for the draft of {lanes} lanes")
        for which, name in enumerate(_MATRICES):
            rows = len(self.token_ids) if name == "head" else geometry.hidden_size
            self._set_matrix(arrays, which, name, rows, geometry.hidden_size)

    def _set_matrix(
        self, arrays: Mapping[str, Array], which: int, name: str, rows: int, inputs: int
    ) -> None:
        for kind, number in _KIND_NUMBERS.items():
            array = arrays.get(f"{PREFIX}{name}.{kind}")
            if array is None:
                continue
            data = aligned(array)
            self._kept.append(data)
            padded = -(-inputs // 32) * 32
            address = data.ctypes.data
            self._library.ign_set_draft_matrix(self._handle, which, number, rows, padded, address)
            return
        raise NativeLibraryError(f"the package has no weights {PREFIX}{name}")

    def propose(self, inputs: RoundRecord, proposals: Array, confidence: Array | None) -> int:
        """Write the proposals of every lane, and where asked to the probability of every prefix.

        Returns -1, or the first lane without a page.
        """
        prefixes = None if confidence is None else confidence.ctypes.data
        lane = self._library.ign_propose(
            self._handle, ctypes.byref(inputs), proposals.ctypes.data, prefixes
        )
        return int(lane)


def aligned(array: Array) -> Array:
    """Return a copy that starts at a cache line, as the kernels read it."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64
    copy: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _found(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise NativeLibraryError(f"the package has no weights {name}")
    return arrays[name]


def _declare(library: Any) -> None:
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    library.ign_set_draft.restype = int32
    library.ign_set_draft.argtypes = [pointer, int32, *[pointer] * 4, int32]
    library.ign_set_draft_matrix.restype = None
    library.ign_set_draft_matrix.argtypes = [pointer, int32, int32, int32, int32, pointer]
    library.ign_propose.restype = int32
    library.ign_propose.argtypes = [pointer, pointer, pointer, pointer]
