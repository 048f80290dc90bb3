"""A JSON schema's text foretold: a matcher of its usual spelling behind the text's own one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import llguidance

from helios.runtime.json_spelling import JsonSpelling


class JsonGuide:
    """Follows one output of a JSON schema and knows more of what comes next than its grammar.

    White space between tokens is free in the grammar, so it forces little. The guide's matcher
    allows one spelling only; texts are translated to it and back.
    """

    __slots__ = ("_ends", "_matcher", "_spelling", "_tokens")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        tokens: llguidance.LLTokenizer,
        end_tokens: Collection[int],
    ) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._ends = end_tokens
        self._spelling = JsonSpelling()

    def copy(self) -> JsonGuide:
        """Return a guide that goes on by itself."""
        other = JsonGuide(self._matcher.deep_copy(), self._tokens, self._ends)
        other._spelling = self._spelling.copy()
        return other

    def take(self, tokens: Sequence[int]) -> bool:
        """Take committed tokens; say whether the guide can still follow."""
        usual: list[int] = []
        for token in tokens:
            text = b"" if token in self._ends else self._tokens.decode_bytes([token])
            written = self._spelling.usual(text)
            if written == text:
                usual.append(token)
            elif written:
                parts = self._tokens.tokenize_bytes(written)
                # A part of a character beside white space has no tokens of its own.
                if self._tokens.decode_bytes(parts) != written:
                    return False
                usual += parts
        return self._matcher.try_consume_tokens(usual) == len(usual)

    def forced(self) -> bytes:
        """Return the text that must come next, as the output would write it."""
        return self._spelling.own(self._matcher.compute_ff_bytes())
