"""Hands packed weights to a compiled library, in the order in which a step reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ignition.geometry import ModelGeometry
from ignition.native.pack import MATRICES, VECTORS
from ignition.programs.native_library import NativeLibraryError, is_float32

Array = npt.NDArray[Any]

_KIND_NUMBERS: Final = {"q4": 0, "q8": 1, "f32": 2}
_BLOCK_BYTES: Final = {"q4": 160, "q8": 272, "f32": 1024}
"""Bytes of one block of 32 inputs in a panel of eight rows (panel.h)."""
_EMBEDDING: Final = len(MATRICES)
_HEAD: Final = len(MATRICES) + 1
_FINAL_NORM: Final = len(VECTORS)


def weight_bytes(arrays: Mapping[str, Array]) -> int:
    """Return the memory that the library must reserve for copies of packed arrays."""
    return sum(-(-array.nbytes // 64) * 64 for array in arrays.values())


class WeightSetter:
    """Copies arrays of `ignition.native.pack` into one model of a library."""

    def __init__(self, library: ctypes.CDLL, handle: int, geometry: ModelGeometry) -> None:
        self._library, self._handle, self._geometry = library, handle, geometry

    def set_all(self, arrays: Mapping[str, Array]) -> None:
        """Copy every layer, norm, embedding and head. Raises NativeLibraryError, naming an array
        that is missing or of another type or shape.
        """
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        geometry = self._geometry
        hidden, vocabulary = geometry.hidden_size, geometry.vocabulary_size
        for layer in range(geometry.layer_count):
            for which, name in enumerate(VECTORS):
                size = vector_size(geometry, name)
                if size:
                    self.set_vector(arrays, layer, which, f"layers.{layer}.{name}", size)
            for which, name in enumerate(MATRICES):
                shape = matrix_shape(geometry, name)
                self.set_matrix(arrays, layer, which, f"layers.{layer}.{name}", shape)
        self.set_vector(arrays, 0, _FINAL_NORM, "norm", hidden)
        self.set_matrix(arrays, 0, _EMBEDDING, "embed", (vocabulary, hidden))
        if geometry.tied_embeddings:
            self._library.ign_tie_head(self._handle)
        else:
            self.set_matrix(arrays, 0, _HEAD, "head", (vocabulary, hidden))

    def set_matrix(
        self, arrays: Mapping[str, Array], layer: int, which: int, name: str, of: tuple[int, int]
    ) -> None:
        """Copy a matrix of [rows, inputs], whatever its blocks. Raises NativeLibraryError."""
        rows, inputs = of[0], -(-of[1] // 32) * 32
        for kind, number in _KIND_NUMBERS.items():
            array = arrays.get(f"{name}.{kind}")
            if array is None:
                continue
            if (kind == "f32") != is_float32(self._library):
                raise NativeLibraryError(f"{name}.{kind} is of another precision than the library")
            shape = (-(-rows // 8), inputs // 32 * _BLOCK_BYTES[kind])
            if array.shape != shape or array.dtype != np.uint8:
                raise NativeLibraryError(
                    f"{name}.{kind} is {array.dtype} {array.shape}, expected uint8 {shape}"
                )
            address = array.ctypes.data
            self._library.ign_set_matrix(self._handle, layer, which, number, rows, inputs, address)
            return
        raise NativeLibraryError(f"the package has no weights {name}")

    def set_vector(
        self, arrays: Mapping[str, Array], layer: int, which: int, name: str, size: int
    ) -> None:
        """Copy a vector. Raises NativeLibraryError."""
        array = arrays.get(name)
        if array is None:
            raise NativeLibraryError(f"the package has no weights {name}")
        if array.shape != (size,) or array.dtype != np.float32:
            raise NativeLibraryError(
                f"{name} is {array.dtype} {array.shape}, expected float32 ({size},)"
            )
        self._library.ign_set_vector(self._handle, layer, which, size, array.ctypes.data)


def matrix_shape(geometry: ModelGeometry, name: str) -> tuple[int, int]:
    """Return [rows, inputs] of a layer's matrix."""
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


def vector_size(geometry: ModelGeometry, name: str) -> int:
    """Return the elements of a layer vector; zero when this family has no such vector."""
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
