"""Filters and functions that chat templates expect, bounded and keeping marks."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import NoReturn

from helios.runtime.provenance import MarkedText
from helios.runtime.provenance import wrap as wrap_marked
from helios.runtime.template_limits import (
    Budget,
    TemplateError,
    active_budget,
    check_length,
    check_method,
    check_pattern,
    check_text_size,
    running_budget,
)


def wrap(value: object) -> object:
    """Charge a value that was made; return a marked plain string as MarkedText.

    In a plain rendering nothing is marked.
    """
    budget = running_budget()
    if budget is None:
        return value
    if isinstance(value, str | list | tuple):
        budget.spend_text(len(value))
    return wrap_marked(value) if budget.has_marks else value


def join(parts: Iterable[str]) -> str:
    """Join what a template emits, keeping marks and the length limit."""
    pieces = []
    length = 0
    for part in parts:
        length += len(part)
        check_length(length)
        pieces.append(part)
    joined = wrap("".join(pieces))
    assert isinstance(joined, str)
    return joined


def bounded(value: object) -> object:
    """Check a value that is about to become text."""
    if not isinstance(value, str):
        check_text_size(value)
    return value


def counted(items: Iterable[object]) -> Iterable[object]:
    """Charge the iterations of a loop."""
    budget = active_budget()
    if isinstance(items, Sized):
        budget.spend_iterations(len(items) + 1)
        return items
    return _count_each(items, budget)


def _count_each(items: Iterable[object], budget: Budget) -> Iterator[object]:
    for item in items:
        budget.spend_iterations(1)
        yield item


def keeping_marks(function: Callable[..., object]) -> Callable[..., object]:
    """Let a filter see marked strings as MarkedText, and return its marked results so."""

    @functools.wraps(function)
    def filtered(*args: object, **kwargs: object) -> object:
        if running_budget() is not None:
            check_text_size(*args, *kwargs.values())
        return wrap(function(*(seen(item) for item in args), **kwargs))

    return filtered


def seen(value: object) -> object:
    """Return a marked plain string as MarkedText, without charging it."""
    budget = running_budget()
    return wrap_marked(value) if budget is not None and budget.has_marks else value


def join_filter(value: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    """Join the items of a list, or one attribute of each."""
    pieces: list[str] = []
    for item in value:
        chosen = item if attribute is None else _attribute_of(item, attribute)
        check_text_size(chosen)
        pieces += [str(d), str(chosen)] if pieces else [str(chosen)]
    return join(pieces)


def _attribute_of(item: object, attribute: str) -> object:
    if isinstance(item, Mapping) and attribute in item:
        return item[attribute]
    raise TemplateError(f"join: an item has no attribute {attribute!r}")


def replace_filter(s: object, old: str, new: str, count: int | None = None) -> object:
    """Replace in the text of a value."""
    check_text_size(s, new)
    text = seen(str(s))
    assert isinstance(text, str)
    check_method(text, "replace", (old, new))
    return wrap(text.replace(old, new, -1 if count is None else count))


def format_filter(pattern: str, *args: object, **kwargs: object) -> object:
    """Format in the manner of `%`."""
    check_pattern(pattern, *args, *kwargs.values())
    return wrap(pattern % (kwargs or args))


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> object:
    """Serialise as chat templates expect it: nothing is escaped for HTML."""
    if indent is not None and not 0 <= int(indent) <= 16:
        raise TemplateError("tojson: indent must be between 0 and 16")
    check_text_size(value)
    if not ensure_ascii:
        value = _escape_marked(value)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    check_length(len(text))
    return wrap(text)


def _escape_marked(value: object) -> object:
    """Return JSON-like data whose marked strings are escaped already.

    Marked characters need no escaping themselves, so the serialiser copies them as they are.
    """
    if isinstance(value, str):
        marked = seen(value)
        return str.__str__(marked.json()) if isinstance(marked, MarkedText) else value
    if isinstance(value, Mapping):
        return {_escape_marked(key): _escape_marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_marked(item) for item in value]
    return value


def strftime_now(pattern: str) -> str:
    """Format the time of this rendering."""
    plain = _plain(pattern)
    check_pattern(plain)
    check_length(len(plain) * 100)
    return active_budget().now.strftime(plain)


def raise_exception(message: object) -> NoReturn:
    """Refuse the conversation with the template's own words."""
    raise TemplateError(_plain(message))


def _plain(value: object) -> str:
    return value.plain if isinstance(value, MarkedText) else str(bounded(value))
