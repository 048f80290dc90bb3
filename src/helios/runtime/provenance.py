"""Text that remembers, character by character, whether a user typed it.

A chat template mixes its own control tokens with what users wrote, and only the former may
become control tokens. So every character of a user's string is moved to Unicode plane 16 (the
private plane that no tokenizer's control tokens use) before the template sees it. Whatever the
template does then, cutting, joining or moving pieces around, the characters stay recognisable,
and a control token's name typed by a user cannot match: the protection does not depend on which
string operations the template uses.

`MarkedText` makes those operations give the same answers as on the plain text, so that
templates that trim, split or search the content still work. Characters above the basic plane
become one placeholder, since the plain rendering supplies the text and this one the marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, SupportsIndex

import numpy as np
import numpy.typing as npt

CodePoints = npt.NDArray[np.uint32]

_BASE: Final = 0x100000
_PLACEHOLDER: Final = 0xD800
"""A surrogate, which text that can be tokenised never contains."""


def code_points(text: str) -> CodePoints:
    """Return the code points of a text, uint32 [n]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _text_of(points: CodePoints) -> str:
    return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def fold(points: CodePoints) -> CodePoints:
    """Return code points with everything above the basic plane replaced by the placeholder."""
    return np.where(points >= 0x10000, np.uint32(_PLACEHOLDER), points)


def is_marked(points: CodePoints) -> npt.NDArray[np.bool_]:
    """Return which characters a user typed, bool [n]."""
    return points >= _BASE


def unmark(points: CodePoints) -> CodePoints:
    """Return marked code points as `fold` would give them for the plain text."""
    return np.where(points >= _BASE, points & 0xFFFF, fold(points)).astype(np.uint32)


def mark(text: str) -> MarkedText:
    """Return a user's text, marked."""
    return MarkedText(_text_of(fold(code_points(text)) + np.uint32(_BASE)))


def mark_tree(value: object) -> object:
    """Return JSON-like data with every string in it, keys included, marked."""
    if isinstance(value, MarkedText):
        return value
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {mark_tree(key): mark_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mark_tree(item) for item in value]
    return value


def wrap(value: object) -> object:
    """Return a plain string that contains marked characters as MarkedText; others unchanged."""
    if type(value) is str and not value.isascii() and max(value) >= chr(_BASE):
        return MarkedText(value)
    return value


def _plain(value: object) -> object:
    """Return an argument of a string method with its marks removed."""
    if isinstance(value, MarkedText):
        return value.plain
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


class MarkedText(str):
    """A string of marked and unmarked characters that compares and searches as plain text."""

    __slots__ = ()

    @property
    def plain(self) -> str:
        """The text without marks."""
        return _text_of(unmark(code_points(str.__str__(self))))

    def cut(self, start: int, stop: int) -> MarkedText:
        """Return characters start..stop."""
        return MarkedText(str.__getitem__(self, slice(start, stop)))

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        quote = '"' if "'" in self.plain and '"' not in self.plain else "'"
        return MarkedText(quote + _each(self, lambda c: repr(c)[1:-1]) + quote)

    def __hash__(self) -> int:
        return hash(self.plain)

    def __eq__(self, other: object) -> bool:
        return self.plain == _plain(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: object) -> bool:
        return isinstance(part, str) and str(_plain(part)) in self.plain

    def __add__(self, other: str) -> str:
        return MarkedText(str.__add__(self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return MarkedText(str.__add__(other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return MarkedText(str.__mul__(self, count))

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        return MarkedText(str.__getitem__(self, index))

    def __iter__(self) -> Iterator[str]:
        return (MarkedText(character) for character in str.__iter__(self))

    def join(self, parts: Iterable[str], /) -> str:
        """Join parts, keeping every mark."""
        return MarkedText(str.join(self, parts))

    def strip(self, characters: str | None = None, /) -> str:
        """Strip as on the plain text."""
        return _strip(self, characters, left=True, right=True)

    def lstrip(self, characters: str | None = None, /) -> str:
        """Strip the start as on the plain text."""
        return _strip(self, characters, left=True, right=False)

    def rstrip(self, characters: str | None = None, /) -> str:
        """Strip the end as on the plain text."""
        return _strip(self, characters, left=False, right=True)

    def removeprefix(self, prefix: str, /) -> str:
        """Remove a prefix as on the plain text."""
        length = len(prefix) if self.plain.startswith(str(_plain(prefix))) else 0
        return self.cut(length, len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """Remove a suffix as on the plain text."""
        length = len(suffix) if self.plain.endswith(str(_plain(suffix))) else 0
        return self.cut(0, len(self) - length)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split as on the plain text."""
        return _locate(self, self.plain.split(_separator(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split from the end as on the plain text."""
        return _locate(self, self.plain.rsplit(_separator(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Split into lines as on the plain text."""
        return _locate(self, self.plain.splitlines(keepends), None)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Partition as on the plain text."""
        before, middle, _ = self.plain.partition(str(_plain(sep)))
        return self._three(len(before), len(middle))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Partition from the end as on the plain text."""
        before, middle, _ = self.plain.rpartition(str(_plain(sep)))
        return self._three(len(before), len(middle))

    def _three(self, before: int, middle: int) -> tuple[str, str, str]:
        return (
            self.cut(0, before),
            self.cut(before, before + middle),
            self.cut(before + middle, len(self)),
        )

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """Replace as on the plain text; the new text keeps its own marks."""
        limit = int(count)
        return MarkedText(str.join(new, self.split(old, limit))) if old else self

    def lower(self) -> str:
        """Lower-case, keeping marks."""
        return MarkedText(_each(self, str.lower))

    def upper(self) -> str:
        """Upper-case, keeping marks."""
        return MarkedText(_each(self, str.upper))

    def capitalize(self) -> str:
        """Capitalise, keeping marks."""
        return MarkedText(str.__add__(self[:1].upper(), self[1:].lower()))

    def json(self) -> str:
        """Return what stands between the quotes of this text as JSON, keeping marks."""
        return MarkedText(_each(self, lambda c: json.dumps(c, ensure_ascii=False)[1:-1]))


def _delegate(name: str) -> Callable[..., object]:
    method = getattr(str, name)

    def answer(self: MarkedText, *arguments: object) -> object:
        return method(self.plain, *(_plain(item) for item in arguments))

    answer.__name__ = name
    return answer


# These only answer questions, so the plain text answers them.
for _name in (
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isspace", "isdigit", "isdecimal", "isnumeric", "isalpha", "isalnum", "isupper", "islower"),
    *("istitle", "isidentifier", "isprintable", "isascii"),
    *("__lt__", "__le__", "__gt__", "__ge__"),
):
    setattr(MarkedText, _name, _delegate(_name))


def _strip(text: MarkedText, characters: str | None, *, left: bool, right: bool) -> MarkedText:
    plain = text.plain
    chosen = None if characters is None else str(_plain(characters))
    start = len(plain) - len(plain.lstrip(chosen)) if left else 0
    stop = len(plain.rstrip(chosen)) if right else len(plain)
    return text.cut(start, max(start, stop))


def _separator(sep: str | None) -> str | None:
    return None if sep is None else str(_plain(sep))


def _locate(text: MarkedText, pieces: Sequence[str], sep: str | None) -> list[str]:
    """Cut a marked text into the pieces that splitting the plain text gave, in their order."""
    plain = text.plain
    found: list[str] = []
    position = 0
    for piece in pieces:
        start = plain.index(piece, position)
        found.append(text.cut(start, start + len(piece)))
        position = start + len(piece) + (0 if sep is None else len(sep))
    return found


def _each(text: MarkedText, transform: Callable[[str], str]) -> str:
    """Transform character by character; what a marked one becomes is marked."""
    pieces: list[str] = []
    for character in str.__iter__(text):
        point = ord(character)
        if point < _BASE:
            pieces.append(transform(character))
        else:
            pieces.append(mark(transform(chr(point & 0xFFFF))))
    return "".join(pieces)
