"""The reference sampler: docs/design/programs.md section 3 in NumPy, one row at a time.

Other samplers (native code, CUDA graphs) are held against this one. Logits and the parameters that
act on them are float32; probabilities and their sums are float64. Nothing here changes its inputs.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np
import numpy.typing as npt

from ignition.state import ServingState

Logits = npt.NDArray[np.float32]

_GOLDEN: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """The sampling state of one row (V: vocabulary)."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int
    output_count: int
    bias_ids: npt.NDArray[np.int32]
    """[n] token ids whose logits are shifted."""
    bias_values: npt.NDArray[np.float32]
    """[n]."""
    output_counts: npt.NDArray[np.uint16]
    """[V]."""
    prompt_seen: npt.NDArray[np.uint8]
    """[V]."""

    @classmethod
    def of(cls, state: ServingState, row: int) -> RowSampling:
        """Return views of one row of the serving state."""
        entries = int(state.bias_count[row])
        return cls(
            temperature=float(state.temperature[row]),
            top_p=float(state.top_p[row]),
            top_k=int(state.top_k[row]),
            min_p=float(state.min_p[row]),
            presence_penalty=float(state.presence_penalty[row]),
            frequency_penalty=float(state.frequency_penalty[row]),
            repetition_penalty=float(state.repetition_penalty[row]),
            seed=int(state.seed[row]),
            output_count=int(state.output_count[row]),
            bias_ids=state.bias_ids[row, :entries],
            bias_values=state.bias_values[row, :entries],
            output_counts=state.output_counts[row],
            prompt_seen=state.prompt_seen[row],
        )


def sample(logits: Logits, row: RowSampling) -> int:
    """Return the next token of a row from its raw logits [V] (3.1 to 3.4)."""
    adjusted = adjust(logits, row)
    if row.temperature == 0:
        return int(np.argmax(adjusted))
    scaled = adjusted / np.float32(row.temperature)
    return draw(scaled, row, uniform(row.seed, row.output_count))


def adjust(logits: Logits, row: RowSampling) -> Logits:
    """Return the logits after bias and penalties (3.1), before the temperature."""
    adjusted = logits.astype(np.float32, copy=True)
    np.add.at(adjusted, row.bias_ids, row.bias_values)
    if row.repetition_penalty != 1:
        repetition = np.float32(row.repetition_penalty)
        present = (row.prompt_seen != 0) | (row.output_counts != 0)
        weakened = np.where(adjusted > 0, adjusted / repetition, adjusted * repetition)
        adjusted = np.where(present, weakened, adjusted)
    if row.frequency_penalty != 0 or row.presence_penalty != 0:
        frequency, presence = np.float32(row.frequency_penalty), np.float32(row.presence_penalty)
        penalty = frequency * row.output_counts.astype(np.float32) + presence
        adjusted = np.where(row.output_counts != 0, adjusted - penalty, adjusted)
    return adjusted


def chance(logits: Logits, row: RowSampling, token: int) -> float:
    """Return the probability with which `sample` returns `token`, over all draws."""
    adjusted = adjust(logits, row)
    if row.temperature == 0:
        return float(int(np.argmax(adjusted)) == token)
    order, weights = _kept(adjusted / np.float32(row.temperature), row)
    return float(weights[order == token].sum() / weights.sum())


def draw(scaled: Logits, row: RowSampling, u: float) -> int:
    """Return the token that `u` in [0, 1) selects among logits already divided by temperature."""
    if row.top_k == 0 and row.top_p >= 1 and row.min_p <= 0:
        return _pick(_weights(scaled), u)
    order, weights = _kept(scaled, row)
    return int(order[_pick(weights, u)])


def _kept(
    scaled: Logits, row: RowSampling
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the tokens that the filters keep, likeliest first, and their weights."""
    order = np.argsort(-scaled, kind="stable")
    if row.top_k > 0:
        order = order[: row.top_k]
    weights = _weights(scaled[order])
    if row.top_p < 1:
        running = np.cumsum(weights)
        reached = int(np.searchsorted(running, row.top_p * running[-1], side="left"))
        weights = weights[: reached + 1]
    if row.min_p > 0:
        weights = weights[weights >= row.min_p * weights[0]]
    return order[: len(weights)], weights


def uniform(seed: int, output_count: int) -> float:
    """Return the draw of one output position: float64 in [0, 1), splitmix64 by counter (3.4)."""
    z = (seed + _GOLDEN * (output_count + 1)) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    z ^= z >> 31
    return (z >> 11) / (1 << 53)


def log_probabilities(logits: Logits) -> npt.NDArray[np.float64]:
    """Return natural log-probabilities of raw logits [..., V] in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def _weights(logits: Logits) -> npt.NDArray[np.float64]:
    """Return probabilities up to a common factor, the largest being one.

    They are never divided by their sum: comparing sums with a multiple of the whole instead is
    exact for equal tokens, where a division would round the boundary of top_p either way.
    """
    return np.asarray(np.exp(logits.astype(np.float64) - float(logits.max())), np.float64)


def _pick(weights: npt.NDArray[np.float64], u: float) -> int:
    """Return the first index at which the running share exceeds `u`.

    Rounding can leave the whole sum at or below it; then it is the last index with any weight, so
    a token that was ruled out is never chosen.
    """
    running = np.cumsum(weights)
    last = int(np.searchsorted(running, running[-1], side="left"))
    return min(int(np.searchsorted(running, u * running[-1], side="right")), last)
