"""What one rendering of a chat template may use: loop iterations, seconds, and text.

Everything a template can do either loops, which is counted, or makes one value out of others,
whose size is bounded before it is made. So a hostile template costs bounded time and memory.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime
import re
import time
from collections.abc import Iterator, Mapping, Sized
from typing import Final

MAX_ITERATIONS: Final = 1_000_000
MAX_RENDER_SECONDS: Final = 5.0
MAX_TEXT_LENGTH: Final = 8_000_000
"""Characters of any one string."""
MAX_TOTAL_LENGTH: Final = 64_000_000
"""Characters (and list items) of everything that one rendering makes."""

_WIDE_PERCENT: Final = re.compile(r"%[^%a-zA-Z]*(\*|\d{4,})")
_WIDE_BRACES: Final = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{4,})")


class TemplateError(ValueError):
    """A chat template refused its messages, or broke a rule of the sandbox."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Budget:
    """What one rendering may still use."""

    now: datetime.datetime
    has_marks: bool
    """Whether strings that users typed are marked in this rendering."""
    deadline_s: float
    iterations: int = MAX_ITERATIONS
    text_length: int = MAX_TOTAL_LENGTH

    def spend_iterations(self, count: int) -> None:
        """Charge loop iterations or calls. Raises TemplateError when they run out."""
        self.iterations -= count
        if self.iterations < 0:
            raise TemplateError(f"more than {MAX_ITERATIONS} loop iterations")
        if time.monotonic() > self.deadline_s:
            raise TemplateError(f"took longer than {MAX_RENDER_SECONDS:g} seconds")

    def spend_text(self, length: int) -> None:
        """Charge a value that was made. Raises TemplateError when too much was."""
        self.text_length -= length
        if self.text_length < 0:
            raise TemplateError(f"makes more than {MAX_TOTAL_LENGTH} characters in total")


_BUDGET: contextvars.ContextVar[Budget] = contextvars.ContextVar("template_budget")


@contextlib.contextmanager
def rendering(now: datetime.datetime, *, has_marks: bool) -> Iterator[None]:
    """Give the rendering inside a budget and a time of day."""
    deadline_s = time.monotonic() + MAX_RENDER_SECONDS
    token = _BUDGET.set(Budget(now=now, has_marks=has_marks, deadline_s=deadline_s))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def active_budget() -> Budget:
    """Return the budget of the running rendering. Raises LookupError outside of one."""
    return _BUDGET.get()


def running_budget() -> Budget | None:
    """Return the budget of the running rendering; none while a template is compiled."""
    return _BUDGET.get(None)


def check_length(length: int) -> None:
    """Raise TemplateError for a string or list that is too long."""
    if length > MAX_TEXT_LENGTH:
        raise TemplateError(f"makes more than {MAX_TEXT_LENGTH} characters at once")


def check_text_size(*values: object) -> int:
    """Return about how many characters values take as text. Raises TemplateError for too many."""
    total = 0
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            check_length(total + len(waiting) + len(value))
            waiting += value
        elif isinstance(value, int):
            total += value.bit_length() // 3
        total += 1
        check_length(total)
    return total


def check_pattern(pattern: str, *values: object) -> None:
    """Refuse `%` formatting whose result could be huge."""
    _refuse_wide(_WIDE_PERCENT, pattern)
    check_length(len(pattern) + pattern.count("%") * check_text_size(*values))


def check_format(pattern: str, *values: object) -> None:
    """Refuse `str.format` whose result could be huge."""
    _refuse_wide(_WIDE_BRACES, pattern)
    check_length(len(pattern) + pattern.count("{") * check_text_size(*values))


def _refuse_wide(widths: re.Pattern[str], pattern: str) -> None:
    if widths.search(pattern):
        raise TemplateError("formats with a computed width or one of more than three digits")


def check_method(owner: str, name: str, args: tuple[object, ...]) -> None:
    """Refuse a string method whose result could be huge."""
    match name, args:
        case "replace", (str() as old, new, *_):
            check_length(len(owner) + owner.count(old) * len(str(new)))
        case "join", (list() | tuple() as items,):
            check_length(check_text_size(items) + len(owner) * len(items))
        case "translate" | "maketrans", _:
            raise TemplateError(f"string method {name} is not available")


def check_operands(operator: str, left: object, right: object) -> None:
    """Refuse an operator whose result could be huge."""
    match operator, left, right:
        case "+", Sized(), Sized():
            check_length(len(left) + len(right))
        case "*", Sized(), int():
            check_length(len(left) * right)
        case "*", int(), Sized():
            check_length(left * len(right))
        case "*", int(), int():
            check_length(left.bit_length() + right.bit_length())
        case "**", int(), int():
            check_length(left.bit_length() * abs(right) * 1000)
        case "%", str(), _:
            check_pattern(left, right)
