"""Reads tokenizer, special tokens and chat template of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from ignition.checkpoint import TextAssets
from ignition.checkpoint_errors import CheckpointError
from ignition.json_file import JsonFile, read_text


def read_text_assets(directory: Path, config: JsonFile, vocabulary_size: int) -> TextAssets:
    """Return the text assets; tokenizer.json is taken as it is. Raises CheckpointError."""
    tokenizer_json = read_text(directory / "tokenizer.json")
    tokenizer = _parse(tokenizer_json)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocabulary_size:
        raise CheckpointError(
            file="tokenizer.json",
            field="vocabulary",
            found=f"token id {largest}",
            expected=f"ids below the model's vocab_size {vocabulary_size}",
        )
    settings = JsonFile(directory / "tokenizer_config.json", optional=True)
    _check_added_tokens(settings, tokenizer)
    bos = _named_token(settings, tokenizer, "bos_token")
    ends = _end_tokens(directory, config, settings, tokenizer)
    for token in (*ends, *([] if bos is None else [bos])):
        if not 0 <= token < vocabulary_size:
            raise config.error("eos_token_id", token, f"an id below {vocabulary_size}")

    return TextAssets(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(directory, settings),
        bos_token_id=bos,
        eos_token_ids=ends,
        add_bos=_adds_bos(settings, tokenizer, bos),
    )


def _parse(tokenizer_json: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # The library raises nothing more precise.
        raise CheckpointError(
            file="tokenizer.json", field="tokenizer", found=error, expected="a valid tokenizer"
        ) from error


def _check_added_tokens(settings: JsonFile, tokenizer: tokenizers.Tokenizer) -> None:
    """tokenizer_config.json must not add tokens that tokenizer.json does not know."""
    decoder = settings.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        return
    for index, entry in decoder.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        known = tokenizer.token_to_id(content) if isinstance(content, str) else None
        if str(known) != index:
            raise settings.error(
                f"added_tokens_decoder.{index}",
                f"{content!r}, which is token {known} of tokenizer.json",
                "the same tokens in both files",
            )


def _named_token(settings: JsonFile, tokenizer: tokenizers.Tokenizer, field: str) -> int | None:
    value = settings.get(field)
    name = value.get("content") if isinstance(value, dict) else value
    if name is None:
        return None
    index = tokenizer.token_to_id(name) if isinstance(name, str) else None
    if index is None:
        raise settings.error(field, repr(name), "a token of tokenizer.json")
    return index


def _end_tokens(
    directory: Path, config: JsonFile, settings: JsonFile, tokenizer: tokenizers.Tokenizer
) -> tuple[int, ...]:
    """Those of generation_config.json first, then the model's, then the tokenizer's."""
    found: list[int] = []
    generation = JsonFile(directory / "generation_config.json", optional=True)
    for source in (generation, config):
        value = source.get("eos_token_id")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool) or not isinstance(item, int | None):
                raise source.error("eos_token_id", repr(item), "token ids")
            found += [] if item is None else [item]
    named = _named_token(settings, tokenizer, "eos_token")
    found += [] if named is None else [named]
    return tuple(dict.fromkeys(found))


def _adds_bos(settings: JsonFile, tokenizer: tokenizers.Tokenizer, bos: int | None) -> bool:
    """Whether encoding starts with the begin token; anything else it adds is refused."""
    plain = list(tokenizer.encode("a", add_special_tokens=False).ids)
    full = list(tokenizer.encode("a", add_special_tokens=True).ids)
    if full != plain and (bos is None or full != [bos, *plain]):
        raise CheckpointError(
            file="tokenizer.json",
            field="post_processor",
            found=f"special tokens around a text: {full}",
            expected="at most the begin token before it",
        )
    if settings.flag("add_eos_token"):
        raise settings.error("add_eos_token", True, "false (prompts do not end)")
    declared = settings.flag("add_bos_token")
    return full != plain if declared is None else declared and bos is not None


def _chat_template(directory: Path, settings: JsonFile) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    value = settings.get("chat_template")
    if isinstance(value, list):
        entries = [item for item in value if isinstance(item, dict)]
        defaults = [item.get("template") for item in entries if item.get("name") == "default"]
        value = defaults[0] if defaults else None
    if value is not None and not isinstance(value, str):
        raise settings.error("chat_template", type(value).__name__, "a template")
    return value
