"""Runs described in words: `name option=value ...` for policy, platform, workload, acceptance.

The command line, scenarios and studies all describe runs this way; here the words become a Setup.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from helios.scheduler import SchedulerError
from scheduling_sim import acceptance, platforms, policies
from scheduling_sim.faults import Faults
from scheduling_sim.platform import Platform
from scheduling_sim.simulation import Progress, Setup
from scheduling_sim.workload import named

Value = str | int | float | bool
_Made = TypeVar("_Made")
_PROGRESS_TURNS: Final = 200
"""A fraction of a second of wall time, so that a person's Ctrl-C is heard soon."""


class SpecError(ValueError):
    """A description names something that does not exist; the message says what does."""


class Named(NamedTuple):
    """A name from a registry and its options."""

    name: str
    options: Mapping[str, Value] = {}

    @property
    def text(self) -> str:
        """The words that describe it."""
        options = (f"{key}={shown_value(value)}" for key, value in self.options.items())
        return " ".join([self.name, *options])

    def with_option(self, name: str, value: Value) -> Named:
        """Return it with one option set."""
        return Named(self.name, {**self.options, name: value})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that determines a run, in words."""

    policy: Named
    platform: Named
    workload: Named
    acceptance: Named | None = None
    faults: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    seed: int = 0
    """Of everything that draws: workload, acceptance, faults."""
    until_s: float | None = None
    """Stop at this virtual time."""


def value_of(text: str) -> Value:
    """Return a word as an integer, a number, true or false, or else as it is."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def shown_value(value: Value) -> str:
    """Return a value as it is written in a description."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def options_of(words: Sequence[str]) -> dict[str, Value]:
    """Return `key=value` words as options. Raises SpecError for another word or a repeated key."""
    options: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals and text):
            raise SpecError(f"{word!r} is not an option; write key=value")
        if key in options:
            raise SpecError(f"option {key} is given twice")
        options[key] = value_of(text)
    return options


def named_of(text: str) -> Named:
    """Read `name option=value ...`; quotes keep spaces. Raises SpecError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"{text!r}: {error}") from error
    if not words or "=" in words[0].partition(":")[0]:
        raise SpecError(f"{text!r} does not begin with a name")
    return Named(words[0], options_of(words[1:]))


def setup_of(
    spec: RunSpec,
    *,
    stopwatch: Callable[[], int] | None = None,
    on_progress: Callable[[Progress], bool] | None = None,
) -> Setup:
    """Build what a run needs. Raises SpecError for unknown names, options and values."""
    seed = spec.seed
    platform = platform_of(spec.platform)
    workload = _made("workload", _seeded_workload(spec.workload, seed), named.workload)
    model = None
    if spec.acceptance is not None:
        described = spec.acceptance.with_option("seed", spec.acceptance.options.get("seed", seed))
        model = _made("acceptance", described, acceptance.acceptance)
    try:
        faults = Faults(**spec.faults)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        known = ", ".join(field.name for field in dataclasses.fields(Faults))
        raise SpecError(f"faults: {error}; there are {known}") from error
    # A policy is built here once for its errors alone, before anything runs for minutes.
    _made("policy", spec.policy, lambda name, **given: policies.build(name, platform, **given))
    setup = Setup(
        platform=platform,
        workload=workload,
        policy=spec.policy.name,
        options=spec.policy.options,
        acceptance=model,
        faults=faults,
        seed=seed,
        until_ns=None if spec.until_s is None else round(spec.until_s * 1e9),
        on_progress=on_progress,
        progress_every=_PROGRESS_TURNS,
    )
    return setup if stopwatch is None else dataclasses.replace(setup, stopwatch=stopwatch)


def platform_of(described: Named) -> Platform:
    """Build a platform; `buckets=1,4,16` (or `widths=4,`) is a list. Raises SpecError."""
    options = {name: _numbers(value) for name, value in described.options.items()}
    return _made("platform", described, platforms.platform, options)


def _numbers(value: Value) -> Value | tuple[Value, ...]:
    if not isinstance(value, str) or "," not in value:
        return value
    numbers = tuple(value_of(word) for word in value.split(",") if word)
    return value if any(isinstance(number, str) for number in numbers) else numbers


def _seeded_workload(described: Named, seed: int) -> Named:
    """Return the workload with the run's seed, unless it has its own or draws nothing."""
    try:
        known = named.workload_options(described.name)
    except ValueError as error:
        raise SpecError(f"workload: {error}") from error
    if "seed" not in known or "seed" in described.options:
        return described
    return described.with_option("seed", seed)


def _made(
    what: str,
    described: Named,
    build: Callable[..., _Made],
    options: Mapping[str, object] | None = None,
) -> _Made:
    try:
        return build(described.name, **(described.options if options is None else options))
    except (ValueError, TypeError, SchedulerError) as error:
        # Builders with plain keywords refuse an unknown one by TypeError.
        message = str(error)
        raise SpecError(message if what in message else f"{what}: {message}") from error
    except OSError as error:
        raise SpecError(f"{what} {described.name}: {error}") from error
