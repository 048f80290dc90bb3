"""The tokenizer of text that users typed: the model's own, without any control token.

A control token is taken out of the vocabulary altogether, so no text whatever can become one.
"""

from __future__ import annotations

import json
from typing import Final, cast

import tokenizers

from helios.runtime.vocabulary import Json, TextError, Vocabulary

_SWALLOWING: Final = ("lstrip", "rstrip", "single_word", "normalized")
_LOCAL_STEPS: Final = ("ByteLevel", "Digits", "Punctuation", "Split")
"""Pre-tokenizers that look at nothing beyond the piece they are given."""


def plain_tokenizer(tokenizer: Json, vocabulary: Vocabulary, *, file: str) -> tokenizers.Tokenizer:
    """Build it from a parsed tokenizer.json. Raises TextError."""
    control = vocabulary.control_ids
    model = cast(Json, tokenizer["model"])
    added = [
        item
        for item in cast("list[Json]", tokenizer.get("added_tokens") or [])
        if item["content"] not in control
    ]
    # Added tokens keep their ids only if the model's vocabulary lists them, because the library
    # numbers the others from the end of the vocabulary.
    ids = {
        **cast("dict[str, int]", model["vocab"]),
        **{cast(str, item["content"]): cast(int, item["id"]) for item in added},
    }
    unknown = model.get("unk_token")
    kept = {
        token: index for token, index in ids.items() if token not in control or token == unknown
    }
    merges = [
        merge
        for merge in cast("list[str | list[str]]", model.get("merges") or [])
        if _is_possible(merge, control.keys())
    ]
    plain = {
        **tokenizer,
        "added_tokens": added,
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {**model, "vocab": kept, "merges": merges},
    }
    return build_tokenizer(json.dumps(plain), file=file)


def encodes_in_pieces(tokenizer: Json) -> bool:
    """Whether a text encodes as its control tokens and the texts between them do separately.

    Some tokenizers treat the first piece of a text differently, or let control tokens swallow
    the spaces around them; with those a conversation can only be encoded in one go.
    """
    added = cast("list[Json]", tokenizer.get("added_tokens") or [])
    if any(item.get(flag) for item in added for flag in _SWALLOWING):
        return False
    normalizer = cast("Json | None", tokenizer.get("normalizer"))
    if normalizer is not None and normalizer.get("type") != "NFC":
        return False
    first = cast("Json | None", tokenizer.get("pre_tokenizer")) or {}
    steps = cast("list[Json]", first.get("pretokenizers", [first]))
    return all(
        step.get("type") in _LOCAL_STEPS and not step.get("add_prefix_space") for step in steps
    )


def build_tokenizer(tokenizer_json: str, *, file: str) -> tokenizers.Tokenizer:
    """Build a tokenizer from JSON. Raises TextError with the library's message."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # The library raises nothing more precise.
        raise TextError(f"{file}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_possible(merge: str | list[str], control: object) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return not {left, right, left + right} & cast("set[str]", control)
