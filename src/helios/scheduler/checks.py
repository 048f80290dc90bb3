"""Checks of single fields: each raises the given error, naming the field and what would be right.

A bool is no number here, although Python counts it among the integers.
"""

from __future__ import annotations

import math

from helios.scheduler.errors import SchedulerError

LARGEST_INTEGER = 2**62
"""Times in ns and counts of tokens beyond it are mistakes; no device integer holds them."""


def shown(value: object) -> str:
    """Return a value as a message shows it: short, and also where it cannot be printed."""
    try:
        return f"{value!r:.200}"
    except ValueError:
        # Python prints no integer of thousands of digits, not even inside of something else.
        return f"a {type(value).__name__} too long to print"
    except TypeError:
        # A named tuple that was made without all of its fields.
        return f"a {type(value).__name__} that cannot be printed"


def check_integer(
    error: type[SchedulerError],
    name: str,
    value: object,
    *,
    least: int,
    most: int = LARGEST_INTEGER,
) -> None:
    """Raise `error` unless `value` is an integer from `least` to `most`."""
    # Subclasses of int are other things that happen to be numbers: a bool, a member of an enum.
    if type(value) is not int or not least <= value <= most:
        bounds = f"of at least {least}" if most == LARGEST_INTEGER else f"from {least} to {most}"
        if type(value) is int and value > LARGEST_INTEGER:
            raise error(f"{name} must be an integer {bounds} and below 2**62")
        raise error(f"{name} must be an integer {bounds}, not {shown(value)}")


def check_number(
    error: type[SchedulerError],
    name: str,
    value: object,
    *,
    positive: bool = False,
    most: float = math.inf,
) -> None:
    """Raise `error` unless `value` is a finite number that is nonnegative, or positive."""
    kind = "positive" if positive else "nonnegative"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise error(f"{name} must be a finite {kind} number, not {shown(value)}")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise error(f"{name} must be a finite {kind} number; this integer is out of range")
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise error(f"{name} must be finite and {kind}, not {value!r}")
    if value > most:
        raise error(f"{name} must be at most {most:g}, not {shown(value)}")


def check_type(
    error: type[SchedulerError],
    name: str,
    value: object,
    wanted: type | tuple[type, ...],
    what: str,
) -> None:
    """Raise `error` unless `value` is an instance of `wanted`, which people call `what`."""
    if not isinstance(value, wanted):
        raise error(f"{name} must be {what}, not {shown(value)}")
