"""Reads tool calls out of an answer while it comes.

Text outside the tags is content. A call whose name has come is announced at once and its arguments
follow as they are written; a block that turns out to be no call stays content, tags included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from helios.server.tools import CLOSING, OPENING

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"([a-zA-Z0-9_-]{1,64})"\s*,\s*"arguments"\s*:\s*')


class Content(NamedTuple):
    """Text that is no call."""

    text: str


class CallStart(NamedTuple):
    """A call begins."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments."""

    call: int
    text: str


Part = Content | CallStart | CallArguments


class ToolCallParser:
    """One choice's answer. `push` and `finish` return what has become certain.

    With `from_start` an answer that does not begin with a call has none: it is a text of a format,
    and what looks like a call in one of its strings belongs to it.
    """

    def __init__(self, names: Sequence[str], *, from_start: bool = False) -> None:
        self._names = frozenset(names)
        self._from_start = from_start
        self._is_plain = False
        self._held = ""
        self._calls = 0
        self._scan: _ObjectScan | None = None
        self._in_block = False
        self._passed_arguments = False
        self.completed = 0
        """Calls whose arguments are whole."""

    def push(self, text: str) -> list[Part]:
        """Take more of the answer."""
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return what is left at the end of the answer."""
        text, self._held = self._held, ""
        if not self._in_block:
            return [Content(text)] if text and (text.strip() or not self._calls) else []
        if self._passed_arguments or self._scan is not None:
            return []
        return [*self._whole_block(text)]

    def _step(self, parts: list[Part]) -> bool:
        """Take one thing from what is held; return whether there may be more."""
        if self._is_plain:
            return self._plain(parts)
        if not self._in_block:
            return self._content(parts)
        if self._passed_arguments:
            return self._leave_block()
        if self._scan is not None:
            return self._arguments(self._scan, parts)
        return self._head(parts)

    def _content(self, parts: list[Part]) -> bool:
        if self._from_start and not OPENING.startswith(self._held[: len(OPENING)]):
            self._is_plain = True
            return True
        before, opening, rest = self._held.partition(OPENING)
        if opening:
            if before.strip():
                parts.append(Content(before.rstrip()))
            self._held, self._in_block, self._from_start = rest, True, False
            return True
        kept = _overlap(self._held, OPENING)
        # White space may be what stands before a call, and is nobody's content then.
        ready = self._held[: len(self._held) - kept].rstrip()
        if ready:
            parts.append(Content(ready))
            self._held = self._held[len(ready) :]
        return False

    def _plain(self, parts: list[Part]) -> bool:
        """Pass on an answer without calls as it comes."""
        if self._held:
            parts.append(Content(self._held))
            self._held = ""
        return False

    def _head(self, parts: list[Part]) -> bool:
        """Announce a call in the usual order of members, or take the block once it is whole."""
        match = _HEAD.match(self._held)
        if match and match[1] in self._names and self._held[match.end() :].startswith("{"):
            parts.append(CallStart(self._calls, match[1]))
            self._held = self._held[match.end() :]
            self._scan = _ObjectScan()
            return True
        block, closing, rest = self._held.partition(CLOSING)
        if not closing:
            return False
        parts += self._whole_block(block, closing)
        self._held, self._in_block = rest, False
        return True

    def _arguments(self, scan: _ObjectScan, parts: list[Part]) -> bool:
        taken = scan.take(self._held)
        if taken:
            parts.append(CallArguments(self._calls, self._held[:taken]))
            self._held = self._held[taken:]
        if not scan.is_whole:
            return False
        self._calls += 1
        self.completed += 1
        self._scan, self._passed_arguments = None, True
        return True

    def _leave_block(self) -> bool:
        """Drop the rest of a block whose call is known."""
        _, closing, rest = self._held.partition(CLOSING)
        if not closing:
            return False
        self._held, self._in_block, self._passed_arguments = rest, False, False
        return True

    def _whole_block(self, block: str, closing: str = "") -> list[Part]:
        """Return the call that a whole block holds, or its text when it holds none."""
        try:
            call = json.loads(block)
        except (ValueError, RecursionError):
            call = None
        name = call.get("name") if isinstance(call, dict) else None
        arguments = call.get("arguments", {}) if isinstance(call, dict) else None
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return [Content(OPENING + block + closing)]
        index = self._calls
        self._calls += 1
        self.completed += 1
        text = json.dumps(arguments, ensure_ascii=False)
        return [CallStart(index, name), CallArguments(index, text)]


class _ObjectScan:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_whole = False

    def take(self, text: str) -> int:
        """Return how many characters belong to the object."""
        for place, character in enumerate(text):
            if self._in_string:
                self._string(character)
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_whole = True
                    return place + 1
        return len(text)

    def _string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of a text may begin the tag."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0
