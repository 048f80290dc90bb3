"""PolicyConfig, the preferences; ResourceConfig, what is handed out; SpeculationConfig, the mode.

Defaults are those of the design's table of policy preferences. They are preferences, not timing
measurements and not latency guarantees.
"""

from __future__ import annotations

import dataclasses
import enum
import math

from helios.scheduler.checks import LARGEST_INTEGER, check_integer, check_number, check_type
from helios.scheduler.errors import InvalidPolicyError

_MOST_POLICY = {"alone_service_share": 1.0, "checkpoint_extra_work_fraction": 1.0}
"""A share is at most all of it; the other preferences have no end but that of the floats."""
_POSITIVE = ("adaptation_ms", "arrival_shares", "adaptive_verification_alpha")

MAX_ROWS = 64
"""Selection is bounded to this many resident requests."""
MAX_PAGES = 2**24
"""Of pages and of snapshot rows: the pool has a list entry for each."""
_MOST = {"row_count": MAX_ROWS, "page_count": MAX_PAGES, "snapshot_rows": MAX_PAGES}

_SWITCHES = ("page_growth", "page_prefixes")
_OPTIONAL = ("snapshot_rows", "draft_extent_tokens", "feature_rows")


class DecodeMode(enum.Enum):
    """How decoders generate."""

    ORDINARY = "ordinary"
    """One token per step; no draft state is kept."""
    FIXED = "fixed"
    """Rounds of one verification width."""
    ADAPTIVE = "adaptive"
    """Every captured width competes, width one included."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """The loaded decode mode. Raises InvalidPolicyError, naming the field."""

    mode: DecodeMode = DecodeMode.ORDINARY
    fixed_width: int = 0
    """Verification width W of FIXED, the pending token included; zero in the other modes."""

    def __post_init__(self) -> None:
        error, width = InvalidPolicyError, self.fixed_width
        check_type(error, "speculation.mode", self.mode, DecodeMode, "a DecodeMode")
        check_integer(error, "speculation.fixed_width", width, least=0)
        if (width > 0) != (self.mode is DecodeMode.FIXED):
            raise InvalidPolicyError(
                f"speculation.fixed_width is {width}: it is positive exactly in mode fixed"
            )


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
    gap_objective_ms: float = 0.0
    """Gap that streams should stay below: waiting costs more from half of it on; 0 leaves the cost
    of waiting linear (decision 0026)."""
    terminal_value: float = 256.0
    """Value of one terminal retirement, in prompt-token units."""
    terminal_age_price: float = 1.0
    """Linear terminal-wait cost coefficient, value/ms^2."""
    adaptation_ms: float = 100.0
    """Service-price adaptation time (tau)."""
    estimate_ttl_ns: int = 30_000_000_000
    """How long a duration estimate stays fresh without a valid observation."""
    arrival_shares: float = 2.0
    """A newcomer's token price, in multiples of that of 1/N of the machine (decision 0004); where
    prompts are weighed as a class, N counts them alone (decision 0015)."""

    prefill_balance: float = 0.0
    """Token weight of all prompts together, in multiples of that of all decoders; 0 leaves every
    prompt to its own price alone (decisions 0005 and 0019)."""

    adaptive_verification_alpha: float = 1.0
    """Exponent on prefix-survival estimates in selection scores of speculative rounds."""
    alone_service_share: float = 0.0
    """Where streams alone are runnable and all are served: the shortest round with this share of
    the best expected service per time, at most 1; 0 leaves it to the score (decision 0018)."""
    population_weight: float = 0.0
    """Most observations as which a new request counts the acceptance of those before it; at 2 or
    less it starts at 0.5**d (decision 0018)."""
    checkpoint_extra_work_fraction: float = 0.05
    """Extra prefill splits and snapshot copies of a request, as a share of its prefill work, at
    most 1."""

    @staticmethod
    def range_of(name: str) -> str:
        """Return the range of a field's finite values as people read it: what is checked here."""
        if name == "estimate_ttl_ns":
            return "1 or more"
        if name in _MOST_POLICY:
            return f"0 to {_MOST_POLICY[name]:g}"
        return "above 0" if name in _POSITIVE else "0 or more"

    @property
    def weighs_prompts_as_class(self) -> bool:
        """Whether prompts have their token weight together (decision 0005)."""
        return self.prefill_balance > 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, value = f"policy.{field.name}", getattr(self, field.name)
            if field.name == "estimate_ttl_ns":
                check_integer(InvalidPolicyError, name, value, least=1)
            else:
                check_number(
                    InvalidPolicyError,
                    name,
                    value,
                    positive=field.name in _POSITIVE,
                    most=_MOST_POLICY.get(field.name, math.inf),
                )

    @classmethod
    def balanced(cls) -> PolicyConfig:
        """Return the server's preset: throughput, cadence and fairness, prompts weighed as a class.

        The bare constructor keeps the design's table to the letter (decisions 0005, 0015 and 0018).
        """
        return cls(
            prefill_balance=6.0,
            arrival_shares=1.0,
            decode_age_price=2.0,
            alone_service_share=0.99,
            population_weight=8.0,
        )

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

    snapshot_rows: int = 0
    """Rows that keep complete states: checkpoints, image windows, preempted requests."""
    draft_extent_tokens: int = 0
    """Cache positions that a round may write beyond the tokens it commits."""
    feature_rows: int = 0
    """Prepared image feature storage of one request; zero admits no image."""
    page_growth: bool = False
    """Reserve pages frame by frame and preempt when none is left, instead of whole requests."""
    page_prefixes: bool = False
    """The model keeps all its state in pages: a prefix may be shared at page granularity."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _SWITCHES:
                check_type(InvalidPolicyError, f"resources.{field.name}", value, bool, "a bool")
                continue
            check_integer(
                InvalidPolicyError,
                f"resources.{field.name}",
                value,
                least=0 if field.name in _OPTIONAL else 1,
                most=_MOST.get(field.name, LARGEST_INTEGER),
            )

    def pages_for(self, tokens: int) -> int:
        """Return how many pages `tokens` cached tokens occupy."""
        return -(-tokens // self.page_size_tokens)
