"""Detokenizer: byte-exact, and never half a character."""

from __future__ import annotations

import functools
import json

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from helios.runtime.text import TextModel
from tests.runtime.text_models import IM_END, VOCABULARY_SIZE, entry, text_model
from tests.support.tiny_hf import tokenizer

MODEL = text_model()
LIBRARY = tokenizers.Tokenizer.from_str(json.dumps(tokenizer()))

any_tokens = st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=40)


def byte_ids(text: str) -> list[int]:
    """One token per byte: byte b of the tiny vocabulary stands at the id of its character."""
    table = {MODEL.token_bytes(index): index for index in range(256)}
    return [table[bytes([byte])] for byte in text.encode()]


def stream(token_ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = MODEL.detokenizer(prompt or [])
    return [*(detokenizer.push(token) for token in token_ids), detokenizer.finish()]


@given(any_tokens)
def test_stream_equals_full_decode(token_ids: list[int]) -> None:
    known = [token for token in token_ids if token not in MODEL.control_token_ids]
    data = b"".join(map(MODEL.token_bytes, known))

    parts = stream(token_ids)

    assert "".join(parts) == data.decode("utf-8", "replace")
    assert "".join(parts) == LIBRARY.decode(token_ids, skip_special_tokens=True)
    assert MODEL.decode(token_ids) == "".join(parts)


@given(st.text(max_size=20))
def test_characters_appear_whole(text: str) -> None:
    parts = stream(byte_ids(text))

    assert "".join(parts) == text
    assert parts[-1] == ""
    position = 0
    for character in text:
        length = len(character.encode())
        assert parts[position : position + length] == [""] * (length - 1) + [character]
        position += length


def test_incomplete_end_becomes_a_replacement_character() -> None:
    assert stream(byte_ids("é")[:1]) == ["", "\ufffd"]
    assert stream(byte_ids("日")[:2]) == ["", "", "\ufffd"]


def test_prompt_that_ends_inside_a_character() -> None:
    whole = byte_ids("a😀b")

    assert "".join(stream(whole[3:], prompt=whole[:3])) == "😀b"
    assert "".join(stream(whole[5:], prompt=whole[:5])) == "b"


def test_control_tokens_and_foreign_ids_show_nothing() -> None:
    before, after = byte_ids("é")
    # A control token between the two bytes of a character does not tear it apart.
    assert stream([before, IM_END, after, -1, 10**9]) == ["", "", "é", "", "", ""]


def test_requests_do_not_share_state() -> None:
    first, second = MODEL.detokenizer([]), MODEL.detokenizer([])

    assert first.push(byte_ids("é")[0]) == ""
    assert second.push(byte_ids("a")[0]) == "a"
    assert first.push(byte_ids("é")[1]) == "é"


@functools.cache
def sentencepiece_model() -> TextModel:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "▁a": 5}
    vocabulary |= {f"<0x{byte:02X}>": 6 + byte for byte in range(256)}
    parsed = {
        "version": "1.0",
        "added_tokens": [
            {**tokenizer()["added_tokens"][0], "id": index, "content": name}
            for index, name in enumerate(("<unk>", "<s>", "</s>"))
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": ["▁ a"],
        },
    }
    return TextModel(json.dumps(parsed), None, entry(bos_token_id=1, eos_token_ids=(2,)))


@given(st.text(max_size=12))
def test_byte_fallback_and_first_space(text: str) -> None:
    model = sentencepiece_model()

    ids = model.encode(text)

    assert not set(ids) & model.control_token_ids
    assert model.decode(ids) == (text.replace("▁", " ") if text else "")
    detokenizer = model.detokenizer([1])
    # After a prompt the first space belongs to the text.
    continued = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
    assert continued == (" " + text.replace("▁", " ") if text else "")
