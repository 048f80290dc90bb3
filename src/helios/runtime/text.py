"""TextModel: tokenizer, chat template and detokenizers of a prepared package.

Opened from the package directory alone, without torch and without ignition. What a user typed
never becomes a control token: their text goes through a tokenizer that does not know any, and in
a conversation only characters that the chat template itself wrote can spell one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import tokenizers

from helios.engine.manifest import TokenizerEntry
from helios.engine.ports import DetokenizerFactory
from helios.runtime.chat_template import ChatTemplate, Message, TemplateError
from helios.runtime.detokenizer import IncrementalDetokenizer
from helios.runtime.plain_tokenizer import (
    build_tokenizer,
    encodes_in_pieces,
    plain_tokenizer,
)
from helios.runtime.vocabulary import Json, TextError, Vocabulary, read_vocabulary

__all__ = ["TemplateError", "TextError", "TextModel", "open_detokenizers"]

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class TextModel:
    """The text side of one model. Safe to use from several threads."""

    def __init__(
        self, tokenizer_json: str, chat_template: str | None, entry: TokenizerEntry
    ) -> None:
        """Build from the texts themselves. Raises TextError when they cannot be served exactly."""
        self._vocabulary, parsed = _parse(entry, tokenizer_json)
        self._control = frozenset(self._vocabulary.control_ids.values())
        self._longest_token_bytes = max(map(len, self._vocabulary.bytes_of))
        self._entry = entry
        self._plain = plain_tokenizer(parsed, self._vocabulary, file=entry.file)
        self._names = _any_of(self._vocabulary.control_ids)
        self._whole = self._whole_tokenizer(tokenizer_json, parsed)
        self._template: ChatTemplate | None = None
        self._template_error = "this model has no chat template"
        if chat_template is not None:
            self._compile(chat_template)

    @classmethod
    def open(cls, package: Path, entry: TokenizerEntry) -> TextModel:
        """Open from a package directory. Raises TextError naming the file that is wrong."""
        template = None if entry.chat_template is None else _read(package / entry.chat_template)
        return cls(_read(package / entry.file), template, entry)

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this."""
        return self._entry.vocabulary_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The model's own end tokens."""
        return self._entry.eos_token_ids

    @property
    def control_token_ids(self) -> frozenset[int]:
        """Tokens that only the chat template writes, and that show as no text."""
        return self._control

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text than this."""
        return self._longest_token_bytes

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a user's text, with the model's begin token where it wants one.

        Nothing in the text becomes a control token. Lone surrogates, which have no UTF-8, count
        as U+FFFD.
        """
        begin = [self._entry.bos_token_id] if self._entry.add_bos else []
        return [token for token in begin if token is not None] + self._encode_piece(text)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Return the tokens of a conversation up to where the answer begins.

        Raises TemplateError (a ValueError) with the template's own message when it refuses the
        conversation, or when the model has no usable template.
        """
        if self._template is None:
            raise TemplateError(self._template_error)
        rendered = self._template.render(
            cast("list[Message]", _well_formed_tree(messages)),
            tools=cast("list[Message] | None", _well_formed_tree(tools)),
            variables=cast("dict[str, object]", _well_formed_tree(variables or {})),
            add_generation_prompt=add_generation_prompt,
        )
        if self._whole is not None:
            return self._encode_whole(self._whole, rendered.text, rendered.template_text)
        return self._encode_pieces(rendered.text, rendered.template_text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the tokens, control tokens left out."""
        detokenizer = self.detokenizer(())
        return "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> IncrementalDetokenizer:
        """Return a detokenizer that starts after the prompt; a DetokenizerFactory."""
        return IncrementalDetokenizer(self._vocabulary, self._control, prompt_token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; of a control token its name."""
        return self._vocabulary.bytes_of[token_id]

    def _compile(self, source: str) -> None:
        """Compile the template; a broken one leaves the rest of the model usable."""
        names = {index: name for name, index in self._vocabulary.control_ids.items()}
        bos, ends = self._entry.bos_token_id, self._entry.eos_token_ids
        try:
            self._template = ChatTemplate(
                source,
                bos_token="" if bos is None else names.get(bos, ""),
                eos_token=names.get(ends[0], "") if ends else "",
                control_names=tuple(self._vocabulary.control_ids),
            )
        except TemplateError as error:
            self._template_error = str(error)

    def _whole_tokenizer(self, tokenizer_json: str, parsed: Json) -> tokenizers.Tokenizer | None:
        """Return the tokenizer of whole conversations, if the model needs one."""
        if encodes_in_pieces(parsed):
            return None
        return build_tokenizer(tokenizer_json, file=self._entry.file)

    def _encode_piece(self, text: str) -> list[int]:
        return list(self._plain.encode(_well_formed(text), add_special_tokens=False).ids)

    def _encode_pieces(self, text: str, template_text: str) -> list[int]:
        """Recognise the template's control tokens, and encode everything between them as text."""
        ids: list[int] = []
        position = 0
        for match in self._names.finditer(template_text):
            if match.start() > position:
                ids += self._encode_piece(text[position : match.start()])
            ids.append(self._vocabulary.control_ids[match[0]])
            position = match.end()
        return ids + (self._encode_piece(text[position:]) if position < len(text) else [])

    def _encode_whole(
        self, whole: tokenizers.Tokenizer, text: str, template_text: str
    ) -> list[int]:
        written = [match.span() for match in self._names.finditer(template_text)]
        if written != [match.span() for match in self._names.finditer(text)]:
            raise TemplateError(
                "messages contain the name of a control token, which this model's tokenizer cannot"
                " keep apart from a real one"
            )
        return list(whole.encode(text, add_special_tokens=False).ids)


def open_detokenizers(package: Path, entry: TokenizerEntry) -> DetokenizerFactory:
    """Return the detokenizers of a package, without what only encoding needs. Raises TextError."""
    vocabulary, _ = read_text_side(package, entry)
    control = frozenset(vocabulary.control_ids.values())

    def detokenizer(prompt_token_ids: Sequence[int]) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(vocabulary, control, prompt_token_ids)

    return detokenizer


def read_text_side(package: Path, entry: TokenizerEntry) -> tuple[Vocabulary, Json]:
    """Return the vocabulary of a package and its parsed tokenizer. Raises TextError."""
    return _parse(entry, _read(package / entry.file))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(f"{path.name}: cannot be read: {error}") from error


def _parse(entry: TokenizerEntry, tokenizer_json: str) -> tuple[Vocabulary, Json]:
    try:
        parsed = json.loads(tokenizer_json)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{entry.file}: not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise TextError(f"{entry.file}: not a JSON object")
    declared = {*entry.eos_token_ids, *([] if entry.bos_token_id is None else [entry.bos_token_id])}
    return read_vocabulary(parsed, entry.vocabulary_size, frozenset(declared)), parsed


def _any_of(names: Mapping[str, int]) -> re.Pattern[str]:
    """Match the longest name at a place, as the tokenizer does; nothing when there are none."""
    ordered = sorted(names, key=lambda name: (-len(name), name))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _well_formed(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _well_formed_tree(value: object) -> object:
    """Return JSON-like data, as plain dicts and lists, with well-formed strings only."""
    if isinstance(value, str):
        return _well_formed(value)
    if isinstance(value, Mapping):
        return {_well_formed_tree(key): _well_formed_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed_tree(item) for item in value]
    return value
