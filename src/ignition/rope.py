"""Llama 3 frequency scaling of rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


def llama3_frequency_factors(
    parameters: Mapping[str, float], *, theta: float, head_size: int
) -> npt.NDArray[np.float32]:
    """Return the divisors of the head_size / 2 rotary frequencies, float32.

    Wavelengths above original / low_freq_factor are stretched by `factor`, those below
    original / high_freq_factor stay, and those between are interpolated in frequency.
    """
    factor = parameters["factor"]
    low = parameters["low_freq_factor"]
    high = parameters["high_freq_factor"]
    original = parameters["original_max_position_embeddings"]
    exponents = np.arange(0, head_size, 2, dtype=np.float64) / head_size
    wavelengths = 2 * math.pi * theta**exponents
    weight = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    # Interpolating frequencies f: (1 - w) f / factor + w f, so the divisor is its reciprocal.
    return (1.0 / ((1.0 - weight) / factor + weight)).astype(np.float32)
