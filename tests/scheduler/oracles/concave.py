"""The stationary optimum: the concave program over shares of time, solved without any price."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def golden_maximum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a concave function of one variable is largest."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    f_left, f_right = function(left), function(right)
    for _ in range(200):
        if f_left < f_right:
            low, left, f_left = left, right, f_right
            right = low + ratio * (high - low)
            f_right = function(right)
        else:
            high, right, f_right = right, left, f_left
            left = high - ratio * (high - low)
            f_left = function(left)
    return (low + high) / 2.0


def optimal_prefill_share(
    decoders: int,
    decode_shapes: Sequence[tuple[int, float]],
    prefill_shapes: Sequence[tuple[int, float]],
    *,
    output_token_value: float,
    token_fairness: float,
    delivery_fairness: float,
) -> float:
    """Return the share of time that one backlogged prompt gets among equal decoders.

    By symmetry and concavity every decoder has the same rate, and within each phase only the shape
    with the best rate is used; what is left is one variable.
    """
    outputs_per_ms = max(min(batch, decoders) / ms for batch, ms in decode_shapes)
    prompt_per_ms = max(tokens / ms for tokens, ms in prefill_shapes)

    def utility(share: float) -> float:
        prompt = share * prompt_per_ms
        each = (1.0 - share) * outputs_per_ms / decoders
        return (
            prompt
            + output_token_value * decoders * each
            + token_fairness * (math.log(prompt) + decoders * math.log(each))
            + delivery_fairness * decoders * math.log(each)
        )

    return golden_maximum(utility, 1e-9, 1.0 - 1e-9)


def optimal_time_shares(
    claims: Sequence[tuple[float, float]], output_gain: float, prompt_gain: float | None
) -> list[float]:
    """Return the optimal shares of time of competitors that are served one at a time.

    A claim is (weight of the token logarithm, weight of the delivery logarithm) of one stream, or
    of one tenant's equal streams together; its output earns `output_gain` per ms of its time.
    `prompt_gain` is what one endless prompt, of the first claim's token weight, earns per ms; its
    share comes last. With s the shares, every (a + b)/s + gain equals one multiplier, which is
    found by bisection.
    """
    weights = [(token + delivery, output_gain) for token, delivery in claims]
    if prompt_gain is not None:
        weights.append((claims[0][0], prompt_gain))
    low = max(gain for _, gain in weights)
    high = low + sum(weight for weight, _ in weights) + 1.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if sum(weight / (middle - gain) for weight, gain in weights) > 1.0:
            low = middle
        else:
            high = middle
    return [weight / (high - gain) for weight, gain in weights]
