"""Rebuilds the tokenizer of a GGUF file as JSON of the `tokenizers` library.

A tokenizer that cannot be rebuilt exactly is refused by name, because a few wrong ids per
hundred characters are invisible and ruin the model.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ignition.checkpoint import TextAssets
from ignition.gguf_geometry import Metadata
from ignition.pretokenizers import IGNORES_MERGES, PRETOKENIZERS, STARTS_WITH_BOS

Json = dict[str, object]

_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_END_NAMES: Final = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
)


def read_text_assets(metadata: Metadata, vocabulary_size: int) -> TextAssets:
    """Return tokenizer, template and special ids of a GGUF file. Raises CheckpointError."""
    model = metadata.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise metadata.error("tokenizer.ggml.model", model, "gpt2 (byte-level BPE)")
    pre = metadata.text("tokenizer.ggml.pre") or "default"
    if pre not in PRETOKENIZERS:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise metadata.error("tokenizer.ggml.pre", pre, f"one of {known}")
    tokens = _distinct_tokens(metadata)
    types = _token_types(metadata, vocabulary_size)
    add_bos = metadata.flag("tokenizer.ggml.add_bos_token")

    return TextAssets(
        tokenizer_json=_byte_level_bpe(metadata, pre, tokens, types),
        chat_template=metadata.text("tokenizer.chat_template"),
        bos_token_id=_token_id(metadata, "bos", vocabulary_size),
        eos_token_ids=_end_tokens(metadata, tokens, types),
        add_bos=pre in STARTS_WITH_BOS if add_bos is None else add_bos,
    )


def _distinct_tokens(metadata: Metadata) -> dict[str, int]:
    """Token text -> id, in id order."""
    key = "tokenizer.ggml.tokens"
    ids: dict[str, int] = {}
    for token in metadata.strings(key):
        if not token or token in ids:
            raise metadata.error(key, repr(token), "distinct tokens that are not empty")
        ids[token] = len(ids)
    return ids


def _token_types(metadata: Metadata, vocabulary_size: int) -> npt.NDArray[np.generic]:
    key = "tokenizer.ggml.token_type"
    if key not in metadata.fields:
        return np.ones(vocabulary_size, np.int32)
    return metadata.numbers(key, vocabulary_size)


def _token_id(metadata: Metadata, role: str, vocabulary_size: int) -> int | None:
    key = f"tokenizer.ggml.{role}_token_id"
    # Old converters write the largest unsigned value for "none".
    if metadata.fields.get(key) in (None, 0xFFFFFFFF):
        return None
    return metadata.integer(key, 0, vocabulary_size - 1)


def _end_tokens(
    metadata: Metadata, tokens: dict[str, int], types: npt.NDArray[np.generic]
) -> tuple[int, ...]:
    """The end-of-sequence token first, then every control token that ends a turn or a text."""
    declared = [_token_id(metadata, role, len(tokens)) for role in ("eos", "eot", "eom")]
    named = [tokens[name] for name in _END_NAMES if name in tokens]
    found = [token for token in declared if token is not None]
    found += [token for token in named if types[token] == _CONTROL]
    return tuple(dict.fromkeys(found))


def _byte_level_bpe(
    metadata: Metadata, pre: str, tokens: dict[str, int], types: npt.NDArray[np.generic]
) -> str:
    added = [
        _added_token(token, index, special=bool(types[index] != _USER_DEFINED))
        for token, index in tokens.items()
        if types[index] in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    tokenizer: Json = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRETOKENIZERS[pre],
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in IGNORES_MERGES,
            "vocab": tokens,
            "merges": _merges(metadata, tokens),
        },
    }
    return msgspec.json.encode(tokenizer).decode()


def _added_token(content: str, index: int, *, special: bool) -> Json:
    return {
        "id": index,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _merges(metadata: Metadata, tokens: dict[str, int]) -> list[tuple[str, str]]:
    key = "tokenizer.ggml.merges"
    merges = []
    for rule in metadata.strings(key):
        # The first character belongs to the left part even when it is a space itself.
        middle = rule.find(" ", 1)
        left, right = rule[:middle], rule[middle + 1 :]
        is_known = left in tokens and right in tokens and left + right in tokens
        if middle < 0 or not is_known:
            raise metadata.error(key, repr(rule), "two tokens whose union is a token")
        merges.append((left, right))
    return merges
