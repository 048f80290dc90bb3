"""How long prompts and answers are: distributions of token counts, and the client's output limit.

A rule draws whole numbers of at least 1. Limits of the context are the business of whoever puts a
prompt and an answer together (`fit_context`).
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from scheduling_sim.workload.errors import WorkloadError, require

MAX_TOKENS: Final = 10_000_000
"""Longest prompt or answer that is believed; anything above is an error of the source."""

Tokens = npt.NDArray[np.int64]


class LengthRule(Protocol):
    """A distribution of token counts."""

    def draw(self, random: np.random.Generator, count: int) -> Tokens:
        """Return `count` lengths, each at least 1, shape [count]."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _check_tokens("fixed length", self.tokens)

    def draw(self, random: np.random.Generator, count: int) -> Tokens:
        """Return the length `count` times; nothing is drawn."""
        del random
        return np.full(count, self.tokens, dtype=np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high`, both included, is equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_tokens("low", self.low)
        _check_tokens("high", self.high)
        require(self.low <= self.high, f"low {self.low} is above high {self.high}")

    def draw(self, random: np.random.Generator, count: int) -> Tokens:
        """Return uniform lengths."""
        return random.integers(self.low, self.high, count, endpoint=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Lognormal:
    """exp(Normal(ln median, sigma)); the mean is median * exp(sigma^2 / 2)."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        _check_tokens("median", self.median)
        require(0.0 <= self.sigma <= 5.0, f"sigma is {self.sigma}; 0 to 5 is right")

    def draw(self, random: np.random.Generator, count: int) -> Tokens:
        """Return rounded lognormal lengths."""
        return _whole(random.lognormal(math.log(self.median), self.sigma, count))


@dataclasses.dataclass(frozen=True, slots=True)
class Pareto:
    """P(length > x) = (minimum / x)^shape from `minimum` on: a heavy tail.

    The mean is minimum * shape / (shape - 1) and exists for a shape above 1 only; the variance for
    one above 2.
    """

    minimum: float
    shape: float

    def __post_init__(self) -> None:
        _check_tokens("minimum", self.minimum)
        require(0.1 <= self.shape <= 100.0, f"shape is {self.shape}; 0.1 to 100 is right")

    def draw(self, random: np.random.Generator, count: int) -> Tokens:
        """Return rounded Pareto lengths; the tail ends at MAX_TOKENS."""
        return _whole(self.minimum * (1.0 + random.pareto(self.shape, count)))


@dataclasses.dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths that were observed, drawn with replacement."""

    observed: tuple[int, ...]

    def __post_init__(self) -> None:
        require(bool(self.observed), "an empirical rule needs at least one observed length")
        for tokens in (min(self.observed), max(self.observed)):
            _check_tokens("observed length", tokens)

    def draw(self, random: np.random.Generator, count: int) -> Tokens:
        """Return a sample of the observed lengths."""
        return random.choice(np.asarray(self.observed, dtype=np.int64), count)


def _check_tokens(name: str, tokens: float) -> None:
    require(1 <= tokens <= MAX_TOKENS, f"{name} is {tokens}; 1 to {MAX_TOKENS} tokens is right")


def _whole(values: npt.NDArray[np.float64]) -> Tokens:
    return np.rint(np.clip(values, 1.0, MAX_TOKENS)).astype(np.int64)


_RULES: Final[dict[str, tuple[int, Callable[..., LengthRule]]]] = {
    "fixed": (1, lambda tokens: Fixed(int(tokens))),
    "uniform": (2, lambda low, high: Uniform(int(low), int(high))),
    "lognormal": (2, Lognormal),
    "pareto": (2, Pareto),
}


def length_rule(text: str) -> LengthRule:
    """Return the rule of a text such as `fixed:100`, `lognormal:512:1.0` or just `100`.

    Also `uniform:LOW:HIGH`, `lognormal:MEDIAN:SIGMA` and `pareto:MINIMUM:SHAPE`.
    """
    name, *fields = text.split(":") if ":" in text else ("fixed", text)
    arity, make = _RULES.get(name, (0, None))
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        numbers = []
    if make is None or len(numbers) != arity or not all(map(math.isfinite, numbers)):
        raise WorkloadError(
            f"length rule {text!r} is none of fixed:N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA, "
            "pareto:MINIMUM:SHAPE"
        )
    return make(*numbers)


# Limits -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class OutputLimit:
    """The limit that clients send: they do not know how long their answer will be.

    A limit never lies below the answer's length, since a recorded length is what came through the
    limit of the time.
    """

    rule: str = "exact"
    """exact, factor (`value` times the answer) or fixed (`value` tokens for everybody)."""
    value: float = 1.0

    def __post_init__(self) -> None:
        require(
            self.rule in ("exact", "factor", "fixed"),
            f"output limit {self.rule!r} is none of exact, factor:F, fixed:N",
        )
        require(
            1.0 <= self.value <= MAX_TOKENS,
            f"output limit {self.rule}:{self.value}: at least 1 and at most {MAX_TOKENS} is right",
        )

    def of(self, output_tokens: int, *, room_tokens: int | None = None) -> int:
        """Return the limit for an answer; `room_tokens` is what the context leaves for it."""
        limit = output_tokens
        if self.rule == "factor":
            limit = math.ceil(self.value * output_tokens)
        elif self.rule == "fixed":
            limit = max(output_tokens, int(self.value))
        return limit if room_tokens is None else max(output_tokens, min(limit, room_tokens))


EXACT: Final = OutputLimit()
"""Clients that know how long their answer will be."""


def output_limit(text: str) -> OutputLimit:
    """Return the limit of a text: `exact`, `factor:2` or `fixed:1024`."""
    rule, _, value = text.partition(":")
    try:
        number = float(value) if value else 1.0
    except ValueError:
        number = math.nan
    require(
        not math.isnan(number) and bool(value) == (rule != "exact"),
        f"output limit {text!r} is none of exact, factor:F, fixed:N",
    )
    return OutputLimit(rule, number)


class OutOfContext(enum.Enum):
    """What happens to a request whose prompt and answer exceed the context together."""

    KEEP = "keep"
    """It is sent, and the server has to reject it."""
    SKIP = "skip"
    CUT = "cut"
    """The prompt's end is cut off first, as by clients that truncate; the answer only beyond."""


def out_of_context(text: str) -> OutOfContext:
    """Return the rule of that name."""
    names = [rule.value for rule in OutOfContext]
    require(text in names, f"out_of_context is {text!r}; it must be one of {', '.join(names)}")
    return OutOfContext(text)


def fit_context(prompt_tokens: int, output_tokens: int, *, context_tokens: int) -> tuple[int, int]:
    """Return prompt and answer cut to a context of at least 2 tokens, each at least 1."""
    require(context_tokens >= 2, f"context_tokens is {context_tokens}; at least 2 is right")
    output = min(output_tokens, context_tokens - 1)
    return min(prompt_tokens, context_tokens - output), output
