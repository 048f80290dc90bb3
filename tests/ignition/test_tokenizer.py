"""Token ids against llama.cpp, which shares no code with the `tokenizers` library."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tokenizers

from ignition.gguf_geometry import Metadata
from ignition.gguf_header import open_gguf
from ignition.pretokenizers import PRETOKENIZERS
from ignition.tokenizer import read_text_assets
from tests.support.text_corpus import FIXED, corpus
from tests.support.tiny_gguf import TinyGguf, vocabulary

DATA = Path(__file__).parent.parent / "data" / "tokenizer_smollm2.json"
REFERENCE = json.loads(DATA.read_text("utf-8"))["cases"]


def test_the_reference_covers_the_corpus() -> None:
    """The generator and this test see the same strings on every machine."""
    assert [case[0] for case in REFERENCE["smollm"]] == corpus(1, 600)
    assert [case[0] for case in REFERENCE["qwen2"]][: len(FIXED)] == list(FIXED)
    assert set(REFERENCE) <= set(PRETOKENIZERS)


@pytest.mark.model
@pytest.mark.parametrize("pre", sorted(REFERENCE))
def test_ids_are_those_of_llama_cpp(default_gguf: Path, pre: str) -> None:
    file = open_gguf(default_gguf)
    changed = dataclasses.replace(file, fields={**file.fields, "tokenizer.ggml.pre": pre})
    assets = read_text_assets(Metadata(changed), 49_152)
    tokenizer = tokenizers.Tokenizer.from_str(assets.tokenizer_json)

    for text, typed, *written in REFERENCE[pre]:
        # With its control tokens recognised, as for text that a template wrote.
        expected = written[0] if written else typed
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, repr(text)


def tiny_assets(tmp_path: Path, **metadata: object):  # type: ignore[no-untyped-def]
    path = TinyGguf(metadata=metadata).write(tmp_path / "tiny.gguf")
    return read_text_assets(Metadata(open_gguf(path)), len(vocabulary()))


def test_control_tokens_are_special_and_others_are_not(tmp_path: Path) -> None:
    parsed = json.loads(tiny_assets(tmp_path).tokenizer_json)

    special = {item["content"]: item["special"] for item in parsed["added_tokens"]}

    assert special == {
        "<|endoftext|>": True,
        "<|im_start|>": True,
        "<|im_end|>": True,
        "<tool_call>": False,
    }


def test_end_tokens_are_the_declared_ones_first(tmp_path: Path) -> None:
    assert tiny_assets(tmp_path).eos_token_ids == (2, 0)
    declared = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 2}
    assert tiny_assets(tmp_path, **declared).eos_token_ids == (0, 2)
    assert tiny_assets(tmp_path, **{"tokenizer.ggml.eos_token_id": None}).eos_token_ids == (2, 0)


def test_llama3_prompts_start_with_bos_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert tiny_assets(tmp_path, **{"tokenizer.ggml.pre": "llama-bpe"}).add_bos
    said = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}
    assert not tiny_assets(tmp_path, **said).add_bos
    assert not tiny_assets(tmp_path).add_bos


def test_a_file_without_token_types_has_no_control_tokens(tmp_path: Path) -> None:
    assets = tiny_assets(tmp_path, **{"tokenizer.ggml.token_type": None})

    assert json.loads(assets.tokenizer_json)["added_tokens"] == []
