"""Grammars of constrained output, by llguidance over the model's own vocabulary.

What the model may say is decided byte by byte: a token is allowed when its bytes continue some text
of the grammar, control tokens never, the end tokens where the text may end. Compiling is bounded by
the limits below; a finished grammar is kept and copied for every request that asks for the same.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import llguidance
import numpy as np
import tokenizers

from helios.engine.grammar import GrammarError, TokenMasks
from helios.engine.manifest import TokenizerEntry
from helios.engine.messages import GrammarMessage
from helios.runtime.plain_tokenizer import plain_tokenizer
from helios.runtime.text import read_text_side
from helios.runtime.vocabulary import Vocabulary

CompiledGrammar = llguidance.LLMatcher
"""A grammar at its start, to be copied for each request."""

KEPT_GRAMMARS: Final = 64
"""Compiled grammars that are kept for later requests, the latest used ones."""
WHITESPACE: Final = r"[ ]?|\n[ ]{0,16}"
"""Between the tokens of a JSON text: a space, or a line break with an indentation. Without a bound
a model can write white space up to its token limit."""
_LIMITS: Final = llguidance.LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
"""Bounds of the work and memory of one grammar; what passes them is refused or ends in an error."""
_MESSAGE_LENGTH: Final = 400


class GrammarCompiler:
    """Compiles grammars for one vocabulary, and opens them; implements GrammarFactory.

    `compile` may run on a thread of its own; everything else belongs to the engine's thread.
    """

    def __init__(self, tokens: llguidance.LLTokenizer, end_tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._ends = tuple(end_tokens)
        self._kept: OrderedDict[tuple[str, str], CompiledGrammar | GrammarError] = OrderedDict()

    @classmethod
    def open(cls, package: Path, entry: TokenizerEntry) -> GrammarCompiler:
        """Open from a package directory. Raises TextError."""
        vocabulary, parsed = read_text_side(package, entry)
        plain = plain_tokenizer(parsed, vocabulary, file=entry.file)
        return cls.of(vocabulary, plain, entry.eos_token_ids)

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, plain: tokenizers.Tokenizer, end_tokens: Sequence[int]
    ) -> GrammarCompiler:
        """Build from a vocabulary and the tokenizer of plain text."""
        if not end_tokens:
            raise GrammarError("the model has no end token, so no constrained text could end")
        wrapper = llguidance.TokenizerWrapper(_ByteTokens(vocabulary, plain, end_tokens))
        size = len(vocabulary.bytes_of)
        tokens = llguidance.LLTokenizer(
            wrapper,
            n_vocab=size,
            eos_token=list(end_tokens),
            slices=llguidance.LLTokenizer.json_slices(),
        )
        return cls(tokens, end_tokens)

    def compile(self, grammar: GrammarMessage) -> CompiledGrammar:
        """Return a grammar at its start, its first mask made once. Raises GrammarError."""
        matcher = llguidance.LLMatcher(self._tokens, _source(grammar), log_level=0, limits=_LIMITS)
        _check(matcher, "cannot be compiled")
        # The first mask builds most of the lexer, and shows a grammar that admits nothing.
        matcher.compute_bitmask()
        _check(matcher, "admits nothing")
        return matcher

    def has(self, grammar: GrammarMessage) -> bool:
        """Say whether a grammar is kept, so that opening it takes no time."""
        return (grammar.kind, grammar.text) in self._kept

    def keep(self, grammar: GrammarMessage, compiled: CompiledGrammar | GrammarError) -> None:
        """Keep a compiled grammar, or why there is none; what was unused for longest goes."""
        self._kept[grammar.kind, grammar.text] = compiled
        if len(self._kept) > KEPT_GRAMMARS:
            self._kept.popitem(last=False)

    def __call__(self, grammar: GrammarMessage, *, ignores_end: bool) -> MatchedOutput:
        """Return a grammar at its start. Raises GrammarError."""
        if not self.has(grammar):
            self.keep(grammar, self.compile(grammar))
        key = (grammar.kind, grammar.text)
        self._kept.move_to_end(key)
        compiled = self._kept[key]
        if isinstance(compiled, GrammarError):
            raise compiled
        return MatchedOutput(
            compiled.deep_copy(),
            vocabulary_size=self._tokens.vocab_size,
            end_tokens=self._ends,
            ignores_end=ignores_end,
        )


class MatchedOutput:
    """Implements helios.engine.grammar.OutputGrammar over one matcher."""

    __slots__ = ("_end_bits", "_ends", "_ignores_end", "_matcher", "_words")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        *,
        vocabulary_size: int,
        end_tokens: Sequence[int],
        ignores_end: bool,
    ) -> None:
        self._matcher = matcher
        self._words = -(-vocabulary_size // 32)
        self._ends = frozenset(end_tokens)
        self._ignores_end = ignores_end
        self._end_bits = np.zeros(self._words, np.uint32)
        for token in end_tokens:
            self._end_bits[token // 32] |= np.uint32(1 << token % 32)

    @property
    def is_complete(self) -> bool:
        """Nothing may follow what was taken."""
        return bool(self._matcher.is_stopped())

    def take(self, tokens: Sequence[int]) -> int:
        """Take committed tokens; return how many there were until the text was complete."""
        for used, token in enumerate(tokens):
            if self._matcher.is_stopped():
                return used
            if not self._matcher.consume_token(token):
                raise GrammarError(f"token {token} is not what the grammar allows here")
        return len(tokens)

    def admitted(self, proposals: Sequence[int]) -> int:
        """Return how many of the proposals may follow one another, none of them an end token."""
        text = list(proposals)
        for place, token in enumerate(text):
            if token in self._ends:
                text = text[:place]
                break
        return int(self._matcher.validate_tokens(text)) if text else 0

    def masks(self, proposals: Sequence[int]) -> TokenMasks:
        """Return the mask of the next token, and of the one behind each admitted proposal."""
        masks = np.zeros((len(proposals) + 1, self._words), np.uint32)
        self._fill(masks[0])
        taken = 0
        for row, token in enumerate(proposals, 1):
            if not self._matcher.consume_token(token):
                raise GrammarError(f"proposal {token} is not what the grammar allows here")
            taken = row
            self._fill(masks[row])
        if taken and not self._matcher.rollback(taken):
            raise GrammarError(f"the grammar cannot go back: {self._matcher.get_error()}")
        return masks

    def _fill(self, mask: TokenMasks) -> None:
        """Write one mask."""
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error() or not mask.any():
            _check(self._matcher, "admits nothing more")
            raise GrammarError("the grammar admits no token here")
        if self._ignores_end:
            open_ended = mask & ~self._end_bits
            if open_ended.any():
                mask[:] = open_ended


class _ByteTokens:
    """The vocabulary as llguidance reads it."""

    bos_token_id = None

    def __init__(
        self, vocabulary: Vocabulary, plain: tokenizers.Tokenizer, end_tokens: Sequence[int]
    ) -> None:
        self.tokens = list(vocabulary.bytes_of)
        self.special_token_ids = sorted(vocabulary.control_ids.values())
        self.eos_token_id = end_tokens[0]
        self._plain = plain

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the tokens in which the model usually writes a text."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return list(self._plain.encode(text, add_special_tokens=False).ids)


def _source(grammar: GrammarMessage) -> str:
    """Return the grammar as llguidance takes it. Raises GrammarError."""
    if grammar.kind == "json_schema":
        try:
            return llguidance.LLMatcher.grammar_from_json_schema(
                grammar.text, overrides={"whitespace_pattern": WHITESPACE}
            )
        except ValueError as error:
            raise GrammarError(f"is no usable JSON schema: {_first_lines(str(error))}") from error
    if grammar.kind == "regex":
        # As JSON schemas have it: digits and word characters are ASCII.
        pattern = llguidance.regex_to_lark(grammar.text, "dw")
        return llguidance.LLMatcher.grammar_from_lark(f"start: /{pattern}/")
    if grammar.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(grammar.text)
    raise GrammarError(f"has the unknown kind {json.dumps(grammar.kind)}")


def _check(matcher: llguidance.LLMatcher, failed: str) -> None:
    """Raise GrammarError with the library's reason when a matcher has given up."""
    if matcher.is_error():
        raise GrammarError(f"{failed}: {_first_lines(matcher.get_error())}")


def _first_lines(message: str) -> str:
    """Return a message of the library without its dump of the grammar."""
    text = message.partition("<non-verbose/>")[0].partition("<state>")[0].strip()
    text = text or "nothing can follow"
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 3] + "..."
