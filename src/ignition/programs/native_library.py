"""The compiled library as ctypes sees it: records, functions, and the check that it fits."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.state import ServingState

ABI_VERSION: Final = 6
_SHAPE_WORDS: Final = 10

_STATE_ARRAYS: Final = (
    "keys",
    "values",
    "page_table",
    "pending_token",
    "cached_tokens",
    "output_count",
    "finished",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "top_logprobs",
    "stop_token_ids",
    "bias_count",
    "bias_ids",
    "bias_values",
    "output_counts",
    "prompt_seen",
)
"""Fields of ServingState in the order of the C record."""


class NativeLibraryError(Exception):
    """The shared library cannot be loaded or was compiled for something else."""


class StateRecord(ctypes.Structure):
    """C `serving_state`."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _STATE_ARRAYS),
        ("pages_per_row", ctypes.c_int64),
        ("pool_tokens", ctypes.c_int64),
    ]


class LaneRecord(ctypes.Structure):
    """C `lane_outputs`."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            "tokens",
            "produced",
            "terminated",
            "report_count",
            "logprobs",
            "top_ids",
            "top_logprobs",
            "is_masked",
            "masks",
            "survival",
        )
    ]


class RoundRecord(ctypes.Structure):
    """C `round_inputs`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("lanes", "width", "depth")),
        *((name, ctypes.c_void_p) for name in ("rows", "query_lengths", "proposals")),
    ]


class PromptRecord(ctypes.Structure):
    """C `prompt_inputs`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("lane", "position", "count", "is_final")),
        ("token_ids", ctypes.c_void_p),
    ]


class ScoreRecord(ctypes.Structure):
    """C `score_outputs`."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs")
    ]


def state_record(state: ServingState) -> StateRecord:
    """Return the addresses of a state's arrays. The state must outlive every use."""
    record = StateRecord()
    for name in _STATE_ARRAYS:
        setattr(record, name, getattr(state, name).ctypes.data)
    record.pages_per_row = state.page_table.shape[1]
    record.pool_tokens = state.keys.shape[1]
    return record


def open_library(path: Path, geometry: ModelGeometry, pool: PoolGeometry) -> ctypes.CDLL:
    """Load a library and declare its functions.

    Calls through it release the interpreter lock. Raises NativeLibraryError, naming what does not
    fit, when it cannot be loaded or was compiled for another geometry.
    """
    try:
        library = ctypes.CDLL(str(path.resolve()))
        version = library.ign_abi_version
        shape_of = library.ign_shape
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(f"cannot load the native library {path.name}: {error}") from error
    if version() != ABI_VERSION:
        raise NativeLibraryError(
            f"{path.name} has interface version {version()}, this flare needs {ABI_VERSION}"
        )
    words = (ctypes.c_int32 * _SHAPE_WORDS)()
    shape_of(words)
    _check_shape(path, list(words), geometry, pool)
    _declare(library)
    return library


def is_float32(library: ctypes.CDLL) -> bool:
    """Say whether the library was compiled for the fp32 precision."""
    words = (ctypes.c_int32 * _SHAPE_WORDS)()
    library.ign_shape(words)
    return bool(words[9])


def _check_shape(path: Path, words: list[int], geometry: ModelGeometry, pool: PoolGeometry) -> None:
    expected = {
        "layer_count": geometry.layer_count,
        "hidden_size": geometry.hidden_size,
        "query_heads": geometry.query_heads,
        "kv_heads": geometry.kv_heads,
        "head_size": geometry.head_size,
        "ffn_size": geometry.ffn_size,
        "vocabulary_size": geometry.vocabulary_size,
        "page_size_tokens": pool.page_size_tokens,
        "state record": ctypes.sizeof(StateRecord),
    }
    for (name, value), word in zip(expected.items(), words, strict=False):
        if value != word:
            raise NativeLibraryError(
                f"{path.name} was compiled for {name} {word}, the package has {value}"
            )


def _declare(library: ctypes.CDLL) -> None:
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    library.ign_create.restype = pointer
    sizes = (int32, int32, int32, int32, ctypes.c_int64, ctypes.c_float)
    library.ign_create.argtypes = (pointer, *sizes, pointer, pointer)
    library.ign_destroy.restype = None
    library.ign_destroy.argtypes = [pointer]
    library.ign_set_matrix.restype = None
    library.ign_set_matrix.argtypes = [pointer, int32, int32, int32, int32, int32, pointer]
    library.ign_set_vector.restype = None
    library.ign_set_vector.argtypes = [pointer, int32, int32, int32, pointer]
    library.ign_tie_head.restype = None
    library.ign_tie_head.argtypes = [pointer]
    library.ign_decode.restype = int32
    library.ign_decode.argtypes = [pointer, int32, pointer, pointer]
    library.ign_round.restype = int32
    library.ign_round.argtypes = [pointer, pointer, pointer]
    library.ign_deal.restype = None
    library.ign_deal.argtypes = [pointer, pointer, int32, pointer, pointer]
    library.ign_mixed.restype = int32
    library.ign_mixed.argtypes = [pointer, pointer, pointer, pointer]
    library.ign_prefill.restype = None
    library.ign_prefill.argtypes = [pointer, int32, int32, int32, pointer, int32, pointer]
    library.ign_scored_prefill.restype = None
    prompt = (pointer, int32, int32, int32, pointer)
    library.ign_scored_prefill.argtypes = (*prompt, pointer, int32, pointer, pointer)
    library.ign_watch.restype = None
    library.ign_watch.argtypes = [pointer]
    library.ign_lost_ns.restype = ctypes.c_uint64
    library.ign_lost_ns.argtypes = [pointer]
    library.ign_logits.restype = ctypes.POINTER(ctypes.c_float)
    library.ign_logits.argtypes = [pointer, ctypes.POINTER(int32)]


def rotary_tables(
    geometry: ModelGeometry, length: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return cosines and sines, float32 [length, head_size / 2], as transformers computes them.

    Powers and cosines are taken in double precision and rounded: NumPy's float32 ones differ from
    processor to processor in the last bits, which hundreds of positions later is an angle.
    """
    exponents = np.arange(0, geometry.head_size, 2, dtype=np.float32) / np.float32(
        geometry.head_size
    )
    powers = np.power(np.float64(geometry.rope_theta), exponents.astype(np.float64))
    frequencies = np.float32(1.0) / powers.astype(np.float32)
    if geometry.rope_scaling is not None:
        frequencies = _llama3_scaled(frequencies, dict(geometry.rope_scaling))
    angles = np.outer(np.arange(length, dtype=np.float32), frequencies)
    exact = angles.astype(np.float64)
    return np.cos(exact).astype(np.float32), np.sin(exact).astype(np.float32)


def _llama3_scaled(
    frequencies: npt.NDArray[np.float32], scaling: dict[str, float]
) -> npt.NDArray[np.float32]:
    """Stretch long wavelengths by `factor`, keep short ones, interpolate between."""
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    stretched = frequencies / scaling["factor"]
    scaled = (1 - smooth) * stretched + smooth * frequencies
    return np.asarray(scaled, dtype=np.float32)
