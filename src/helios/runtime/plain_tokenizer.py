"""The tokenizer of text that users typed: the model's own, without any control token.

A control token is taken out of the vocabulary altogether, so no text whatever can become one.
"""

from __future__ import annotations

import json
from typing import cast

import tokenizers

from helios.runtime.vocabulary import Json, TextError, Vocabulary


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
