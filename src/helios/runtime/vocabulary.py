"""What every token id stands for, in bytes, read from the JSON of the `tokenizers` library."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Final, cast

Json = dict[str, object]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


class TextError(Exception):
    """A tokenizer that cannot be served exactly; the message names the part of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token bytes and control tokens. Ids that the tokenizer does not use stand for nothing."""

    bytes_of: tuple[bytes, ...]
    """[vocabulary_size]; of a control token its name."""
    control_ids: Mapping[str, int]
    """Name -> id of every token that only a template may write."""
    strips_first_space: bool
    """Whether a text that starts with a space token shows without that space."""


def read_vocabulary(
    tokenizer: Json, vocabulary_size: int, always_control: frozenset[int]
) -> Vocabulary:
    """Return the vocabulary of a parsed tokenizer.json.

    `always_control` names ids that count as control tokens whatever the file calls them.
    Raises TextError for a model or decoder that is not supported.
    """
    model = _object(tokenizer.get("model"), "model")
    if model.get("type") != "BPE":
        raise TextError(f"tokenizer model {model.get('type')!r}: only BPE is supported")
    decoder = decoder_steps(tokenizer)
    ids = cast("dict[str, int]", _object(model.get("vocab"), "model.vocab"))
    added = cast("list[Json]", tokenizer.get("added_tokens") or [])
    content = {cast(int, item["id"]): cast(str, item["content"]) for item in added}
    special = {cast(int, item["id"]) for item in added if item.get("special")}
    names = {**{index: token for token, index in ids.items()}, **content}
    if names and max(names) >= vocabulary_size:
        raise TextError(f"token id {max(names)}: the model has {vocabulary_size} tokens")
    control = {index for index in special | always_control if index in names}

    table = [b""] * vocabulary_size
    for index, name in names.items():
        table[index] = name.encode() if index in control else _bytes_of(name, decoder)
    return Vocabulary(
        bytes_of=tuple(table),
        control_ids={names[index]: index for index in sorted(control)},
        strips_first_space="Strip" in decoder,
    )


def decoder_steps(tokenizer: Json) -> tuple[str, ...]:
    """Return the types of the decoder's steps. Raises TextError for unsupported ones."""
    decoder = _object(tokenizer.get("decoder"), "decoder")
    steps = cast("list[Json]", decoder.get("decoders", [decoder]))
    types = tuple(str(step.get("type")) for step in steps)
    if types not in (
        ("ByteLevel",),
        ("Replace", "ByteFallback", "Fuse"),
        ("Replace", "ByteFallback", "Fuse", "Strip"),
    ):
        raise TextError(f"tokenizer decoder {' + '.join(types)}: not supported")
    return types


def _object(value: object, field: str) -> Json:
    if not isinstance(value, dict):
        raise TextError(f"tokenizer {field}: missing")
    return value


def _bytes_of(name: str, decoder: tuple[str, ...]) -> bytes:
    if decoder == ("ByteLevel",):
        if all(ord(character) in _BYTE_LEVEL for character in name):
            return name.translate(_BYTE_LEVEL).encode("latin-1")
        return name.encode()
    match = _BYTE_TOKEN.fullmatch(name)
    if match:
        return bytes([int(match[1], 16)])
    return name.replace(_SPACE, " ").encode()


def _byte_alphabet() -> dict[int, int]:
    """Code point -> byte: printable Latin-1 bytes stand for themselves, others follow at 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {256 + position: byte for position, byte in enumerate(others)}
    return {**{byte: byte for byte in printable}, **shifted}


_BYTE_LEVEL: Final = _byte_alphabet()
