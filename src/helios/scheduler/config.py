"""PolicyConfig, the preferences of the scheduler, and ResourceConfig, what it hands out.

Defaults are those of the design's table of policy preferences. They are preferences, not timing
measurements and not latency guarantees.
"""

from __future__ import annotations

import dataclasses
import math

from helios.scheduler.errors import InvalidPolicyError

_POSITIVE = ("adaptation_ms", "estimate_ttl_ns", "arrival_shares")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Coefficients of the value function; see docs/design/scheduling-utility.md.

    Raises InvalidPolicyError, naming the field, for a value that is not finite or out of range.
    """

    output_token_value: float = 64.0
    """Prompt-value units per output token (beta)."""
    token_fairness: float = 16.0
    """Token-rate log-utility coefficient, value/ms (f)."""
    delivery_fairness: float = 4.0
    """Delivery-rate log-utility coefficient, value/ms (g)."""
    decode_age_price: float = 0.1
    """Linear output-age cost coefficient, value/ms^2 (c)."""
    terminal_value: float = 256.0
    """Value of one terminal retirement, in prompt-token units."""
    terminal_age_price: float = 1.0
    """Linear terminal-wait cost coefficient, value/ms^2."""
    adaptation_ms: float = 100.0
    """Service-price adaptation time (tau)."""
    estimate_ttl_ns: int = 30_000_000_000
    """How long a duration estimate stays fresh without a valid observation."""
    arrival_shares: float = 2.0
    """A newcomer's token price, in multiples of that of 1/N of the machine (decision 0004)."""

    prefill_balance: float = 0.0
    """Token weight of all prompts together, in multiples of that of all decoders; 0 leaves every
    prompt the weight of one request (decision 0005)."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidPolicyError(f"policy.{field.name} must be a number, not {value!r}")
            if not math.isfinite(value) or value < 0:
                raise InvalidPolicyError(
                    f"policy.{field.name} must be finite and nonnegative, not {value!r}"
                )
            if field.name in _POSITIVE and value <= 0:
                raise InvalidPolicyError(f"policy.{field.name} must be positive, not {value!r}")

    @classmethod
    def balanced(cls) -> PolicyConfig:
        """Return the server's preset: throughput, cadence and fairness, prompts weighed as a class.

        The bare constructor keeps the design's table to the letter (decision 0005).
        """
        return cls(prefill_balance=2.0, arrival_shares=0.5)

    @classmethod
    def throughput(cls) -> PolicyConfig:
        """Return the preset without delivery fairness and decode-age price."""
        return cls(delivery_fairness=0.0, decode_age_price=0.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceConfig:
    """What the scheduler hands out: rows (resident request slots) and pages of the KV cache.

    Raises InvalidPolicyError, naming the field, when a size is impossible.
    """

    row_count: int
    """Resident request rows, 1 to 64."""
    page_count: int
    """Pages in the pool."""
    page_size_tokens: int
    """Tokens per page."""
    context_length_tokens: int
    """Longest prompt plus output of one request."""
    waiting_limit: int = 1024
    """Requests that may wait for a row; one more is refused with QueueFullError."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidPolicyError(
                    f"resources.{field.name} must be a positive integer, not {value!r}"
                )
        if self.row_count > 64:
            raise InvalidPolicyError(
                f"resources.row_count must be at most 64, not {self.row_count}"
            )

    def pages_for(self, tokens: int) -> int:
        """Return how many pages `tokens` cached tokens occupy."""
        return -(-tokens // self.page_size_tokens)
