"""Grammars of constrained output, by llguidance over the model's own vocabulary.

What the model may say is decided byte by byte: a token is allowed when its bytes continue some text
of the grammar, control tokens never, the end tokens where the text may end. Compiling is bounded by
the limits below; a finished grammar is kept and copied for every request that asks for the same.
"""

from __future__ import annotations

import functools
import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import llguidance
import tokenizers

from helios.engine.grammar import GrammarError
from helios.engine.manifest import TokenizerEntry
from helios.engine.messages import GrammarMessage
from helios.runtime.json_guide import JsonGuide
from helios.runtime.matched_output import MatchedOutput, check_matcher, first_lines
from helios.runtime.plain_tokenizer import plain_tokenizer
from helios.runtime.text import read_text_side
from helios.runtime.vocabulary import Vocabulary


class CompiledGrammar(NamedTuple):
    """A grammar at its start, to be copied for each request."""

    matcher: llguidance.LLMatcher
    guide: JsonGuide | None
    """Knows more of what comes next in a JSON text."""


KEPT_GRAMMARS: Final = 64
"""Compiled grammars that are kept for later requests, the latest used ones."""
WHITESPACE: Final = r"[ ]?|\n[ ]{0,16}"
"""Between the tokens of a JSON text: a space, or a line break with an indentation. Without a bound
a model can write white space up to its token limit."""
KEPT_RUNS: Final = 4096
"""Texts whose tokens are remembered."""
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


class GrammarCompiler:
    """Compiles grammars for one vocabulary, and opens them; implements GrammarFactory.

    `compile` may run on a thread of its own; everything else belongs to the engine's thread.
    """

    def __init__(self, tokens: llguidance.LLTokenizer, end_tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._ends = tuple(end_tokens)
        self._kept: OrderedDict[tuple[str, str], CompiledGrammar | GrammarError] = OrderedDict()
        self._usual_tokens = functools.lru_cache(maxsize=KEPT_RUNS)(self._tokenized)

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
        check_matcher(matcher, "cannot be compiled")
        # The first mask builds most of the lexer, and shows a grammar that admits nothing.
        matcher.compute_bitmask()
        check_matcher(matcher, "admits nothing")
        return CompiledGrammar(matcher, self._guide(grammar))

    def _guide(self, grammar: GrammarMessage) -> JsonGuide | None:
        """Return the guide of a JSON schema; None for other grammars and where there is none."""
        if grammar.kind != "json_schema":
            return None
        # The usual spelling of helios.runtime.json_spelling.
        source = llguidance.LLMatcher.grammar_from_json_schema(
            grammar.text,
            overrides={
                "whitespace_flexible": False,
                "item_separator": ", ",
                "key_separator": ": ",
            },
        )
        guide = llguidance.LLMatcher(self._tokens, source, log_level=0, limits=_LIMITS)
        return None if guide.is_error() else JsonGuide(guide, self._tokens, self._ends)

    def _tokenized(self, text: bytes) -> tuple[int, ...]:
        """Return the tokens of a text that goes on, but the last, which may become a longer one."""
        tokens, _ = self._tokens.tokenize_partial(text)
        return tuple(tokens)

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
            compiled.matcher.deep_copy(),
            compiled.guide and compiled.guide.copy(),
            usual_tokens=self._usual_tokens,
            vocabulary_size=self._tokens.vocab_size,
            end_tokens=self._ends,
            ignores_end=ignores_end,
        )


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
            raise GrammarError(f"is no usable JSON schema: {first_lines(str(error))}") from error
    if grammar.kind == "regex":
        return llguidance.LLMatcher.grammar_from_lark(f"start: {_expression(grammar.text)}")
    if grammar.kind == "either":
        return llguidance.LLMatcher.grammar_from_lark(_either(grammar.text))
    if grammar.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(grammar.text)
    raise GrammarError(f"has the unknown kind {json.dumps(grammar.kind)}")


def _expression(pattern: str) -> str:
    """Return a regular expression as rules have it.

    As in JSON schemas, digits and word characters are ASCII.
    """
    return f"/{llguidance.regex_to_lark(pattern, 'dw')}/"


def _either(parts: str) -> str:
    """Return the rules of an answer that is a text of a format or calls of tools."""
    wanted = json.loads(parts)
    if wanted["kind"] == "json_schema":
        schema = {"x-guidance": {"whitespace_pattern": WHITESPACE}, **json.loads(wanted["text"])}
        text = f"%json {json.dumps(schema)}"
    else:
        text = _expression(wanted["text"])
    return f"start: text | calls\ntext: {text}\n{wanted['calls']}"
