"""How one text spells its JSON: the white space between tokens, learned from what it wrote."""

from __future__ import annotations

from typing import Final

_OPENING: Final = b"{["
_CLOSING: Final = b"}]"
_SPACE: Final = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'


class JsonSpelling:
    """Translates between a text's own spelling and the usual one, which has one line, and a space
    behind every comma and colon.

    A text that nothing is known of is spelled as usual. It shows its own way with the first white
    space behind a bracket, a comma and a colon: the indentation of one level, and line breaks for
    objects and for lists apart, because short lists often stay on a line.
    """

    __slots__ = (
        "_behind_colon",
        "_behind_comma",
        "_breaks",
        "_is_escaped",
        "_is_string",
        "_last",
        "_open",
        "_space",
        "_unit",
    )

    def __init__(self) -> None:
        self._open = bytearray()
        self._is_string = self._is_escaped = False
        self._last = 0
        """The last byte that is no white space between tokens; zero in front of the first."""
        self._space = b""
        """White space between tokens since then."""
        self._breaks: dict[int, bool] = {}
        self._unit = 2
        self._behind_comma = self._behind_colon = b" "

    def copy(self) -> JsonSpelling:
        """Return one that goes on by itself."""
        other = JsonSpelling()
        for name in JsonSpelling.__slots__:
            setattr(other, name, getattr(self, name))
        other._open = bytearray(self._open)
        other._breaks = dict(self._breaks)
        return other

    def usual(self, text: bytes) -> bytes:
        """Take what the text goes on with; return it in the usual spelling."""
        written = bytearray()
        for byte in text:
            if not self._is_string and byte in _SPACE:
                self._space += bytes((byte,))
                continue
            if not self._is_string:
                self._learn(byte)
            written.append(byte)
            self._step(byte)
            if not self._is_string and byte in (_COMMA, _COLON):
                written += b" "
        return bytes(written)

    def own(self, usual: bytes) -> bytes:
        """Return a text in the usual spelling, which comes next, as this text would write it.

        Ends with the white space that comes next whatever follows.
        """
        ahead = self.copy()
        written = bytearray()
        for byte in usual:
            if not ahead._is_string:
                if byte in _SPACE:
                    continue
                written += ahead._missing(ahead._gap(byte))
            written.append(byte)
            ahead._step(byte)
        if not ahead._is_string and ahead._last in (_COMMA, _COLON):
            written += ahead._missing(ahead._gap(_QUOTE))
        return bytes(written)

    def _step(self, byte: int) -> None:
        """Go over one byte that is no white space between tokens."""
        self._last, self._space = byte, b""
        if self._is_string:
            self._is_string = self._is_escaped or byte != _QUOTE
            self._is_escaped = not self._is_escaped and byte == _BACKSLASH
        elif byte == _QUOTE:
            self._is_string = True
        elif byte in _OPENING:
            self._open.append(byte)
        elif byte in _CLOSING and self._open:
            self._open.pop()

    def _learn(self, byte: int) -> None:
        """Learn from the white space in front of a byte outside of strings."""
        if self._last == _COLON:
            self._behind_colon = self._space
        is_first = self._last in _OPENING and byte not in _CLOSING
        if not self._open or not (is_first or self._last == _COMMA):
            return
        head, is_broken, indentation = self._space.partition(b"\n")
        self._breaks[self._open[-1]] = bool(is_broken)
        if is_broken:
            self._unit = len(indentation) // len(self._open)
        elif self._last == _COMMA:
            self._behind_comma = head

    def _gap(self, byte: int) -> bytes:
        """Return all the white space between the last byte and this one."""
        is_end = byte in _CLOSING
        if self._last in _OPENING:
            return b"" if is_end else self._line(len(self._open), b"")
        if self._last == _COMMA:
            return self._line(len(self._open), self._behind_comma)
        if self._last == _COLON:
            return self._behind_colon
        return self._line(len(self._open) - 1, b"") if is_end else b""

    def _line(self, depth: int, otherwise: bytes) -> bytes:
        """Return a line break with its indentation where the innermost bracket has them."""
        if not self._open:
            return otherwise
        # Lists follow objects, and objects lists, until one of their own was seen.
        known = self._breaks.get(self._open[-1], any(self._breaks.values()))
        return b"\n" + b" " * (self._unit * depth) if known else otherwise

    def _missing(self, gap: bytes) -> bytes:
        """Return what is left of a gap of which a part is written; nothing if that is another."""
        return gap[len(self._space) :] if gap.startswith(self._space) else b""
