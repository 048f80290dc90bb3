"""Turns token ids into text as they come, never showing half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from helios.runtime.vocabulary import Vocabulary

_MAX_CHARACTER_BYTES = 4

_Utf8 = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Implements helios.engine.ports.Detokenizer for one request.

    Everything pushed plus `finish` equals decoding all bytes at once, with U+FFFD for bytes that
    are not UTF-8. Control tokens are skipped; ids outside the vocabulary stand for nothing.
    """

    __slots__ = ("_bytes_of", "_control", "_decoder", "_strip")

    def __init__(
        self, vocabulary: Vocabulary, control: frozenset[int], prompt_token_ids: Sequence[int]
    ) -> None:
        self._bytes_of = vocabulary.bytes_of
        self._control = control
        self._decoder = _Utf8("replace")
        # The space that starts a text is dropped; output after a prompt continues a text.
        self._strip = vocabulary.strips_first_space and not prompt_token_ids
        self._start_inside_character(prompt_token_ids)

    def _start_inside_character(self, prompt_token_ids: Sequence[int]) -> None:
        """A prompt given as ids may end inside a character, which the output then completes."""
        tail = b""
        for token in reversed(prompt_token_ids):
            tail = self._bytes(token) + tail
            if len(tail) >= _MAX_CHARACTER_BYTES:
                break
        self._decoder.decode(tail[-_MAX_CHARACTER_BYTES:])

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._control or not 0 <= token_id < len(self._bytes_of):
            return b""
        return self._bytes_of[token_id]

    def push(self, token_id: int) -> str:
        """Return the text that became final with this token (may be empty)."""
        piece = self._bytes(token_id)
        if self._strip and piece:
            piece = piece.removeprefix(b" ")
            self._strip = False
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """Return what is left, with incomplete bytes as replacement characters."""
        return self._decoder.decode(b"", final=True)
