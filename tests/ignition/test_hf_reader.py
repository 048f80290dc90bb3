"""Hugging Face directories: the tensors of transformers exactly, the rest refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignition.checkpoint import Checkpoint
from ignition.checkpoint_errors import CheckpointError
from ignition.hf_reader import read_directory, stored_name, summarize_directory
from tests.support.tiny_hf import change_json, tokenizer, write_directory, write_json

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_directory(path, name="tiny")
    return caught.value


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    write_directory(tmp_path, "llama")
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_tensors_are_those_of_transformers(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    model = write_directory(tmp_path, family, dtype=dtype)
    expected = model.state_dict()

    checkpoint = read_directory(tmp_path, name="tiny")

    assert {stored_name(name) for name in checkpoint.tensors} == set(expected)
    for name in checkpoint.tensors:
        written = expected[stored_name(name)].to(torch.float32).numpy()
        np.testing.assert_array_equal(checkpoint.float32(name), written)
    geometry = checkpoint.geometry
    assert (geometry.family, geometry.head_size, geometry.kv_heads) == (family, 16, 2)
    assert geometry.attention_bias == (family == "qwen2")
    assert geometry.qk_norm == (family == "qwen3")
    assert not geometry.tied_embeddings
    assert summarize_directory(tmp_path) == (geometry, checkpoint.sha256)


def test_shards_and_tied_embeddings(tmp_path: Path) -> None:
    model = write_directory(tmp_path, "llama", shard="64KB", tie_word_embeddings=True)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    checkpoint = read_directory(tmp_path, name="tiny")

    assert checkpoint.geometry.tied_embeddings
    assert "head" not in checkpoint.tensors
    down = model.state_dict()["model.layers.1.mlp.down_proj.weight"].numpy()
    np.testing.assert_array_equal(checkpoint.float32("layers.1.down"), down)


def test_llama3_scaling_is_read_in_both_spellings(tmp_path: Path) -> None:
    write_directory(tmp_path, "llama", rope_parameters=LLAMA3)
    new = read_directory(tmp_path, name="tiny").geometry
    old = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    change_json(
        tmp_path / "config.json", rope_parameters=None, rope_scaling=old, rope_theta=500_000.0
    )

    assert read_directory(tmp_path, name="tiny").geometry == new
    assert new.rope_theta == 500_000.0
    assert dict(new.rope_scaling or ())["original_max_position_embeddings"] == 64.0


def test_tokenizer_is_used_as_it_is(llama: Path) -> None:
    text = read_directory(llama, name="tiny").text

    assert text.tokenizer_json == (llama / "tokenizer.json").read_text("utf-8")
    assert text.chat_template == (llama / "chat_template.jinja").read_text("utf-8")
    assert text.eos_token_ids == (256, 263)
    assert text.bos_token_id is None
    assert not text.add_bos


def test_generation_config_names_the_end_tokens_first(llama: Path) -> None:
    write_json(llama / "generation_config.json", {"eos_token_id": [261, 263]})

    assert read_directory(llama, name="tiny").text.eos_token_ids == (261, 263, 256)


def test_begin_token_of_the_post_processor(llama: Path) -> None:
    parsed = tokenizer()
    begin = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    parsed["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [261], "tokens": ["<|endoftext|>"]}
        },
    }
    write_json(llama / "tokenizer.json", parsed)
    assert "post_processor" in refusal(llama).field
    change_json(llama / "tokenizer_config.json", bos_token={"content": "<|endoftext|>"})

    text = read_directory(llama, name="tiny").text

    assert (text.bos_token_id, text.add_bos) == (261, True)
    change_json(llama / "tokenizer_config.json", add_bos_token=False)
    assert not read_directory(llama, name="tiny").text.add_bos


def test_template_inside_the_tokenizer_configuration(llama: Path) -> None:
    (llama / "chat_template.jinja").unlink()
    assert read_directory(llama, name="tiny").text.chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    change_json(llama / "tokenizer_config.json", chat_template=named)
    assert read_directory(llama, name="tiny").text.chat_template == "D"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gemma3"),
        ("hidden_act", "gelu"),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": -1.0}),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("quantization_config", {"quant_method": "awq"}),
        ("partial_rotary_factor", 0.5),
        ("num_key_value_heads", 3),
        ("num_attention_heads", True),
        ("head_dim", 15),
        ("hidden_size", "64"),
        ("vocab_size", 0),
        ("max_position_embeddings", None),
    ],
)
def test_configuration_is_refused_by_name(llama: Path, field: str, value: object) -> None:
    change_json(llama / "config.json", **{field: value})

    error = refusal(llama)

    assert error.file == "config.json"
    assert error.field.startswith(field)


def test_vocabulary_larger_than_the_model_is_refused(llama: Path) -> None:
    parsed = tokenizer()
    parsed["model"]["vocab"]["extra"] = 400
    write_json(llama / "tokenizer.json", parsed)

    assert "400" in refusal(llama).found


def test_added_tokens_that_the_tokenizer_does_not_know_are_refused(llama: Path) -> None:
    change_json(llama / "tokenizer_config.json", added_tokens_decoder={"300": {"content": "<x>"}})

    assert refusal(llama).field == "added_tokens_decoder.300"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_files_that_are_not_json(llama: Path, name: str, text: str) -> None:
    (llama / name).write_text(text)

    assert refusal(llama).file == name


def test_missing_files_are_named(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    assert refusal(llama).file == "model.safetensors"
    (llama / "config.json").unlink()
    assert refusal(llama).file == "config.json"


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path: Path, header: object, body: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F64"},
        {"dtype": ["F32"]},
        {"shape": [64, -1]},
        {"shape": [1 << 40, 1 << 40]},
        {"shape": "64"},
        {"shape": [32]},
        {"data_offsets": [0, 1 << 62]},
        {"data_offsets": [16, 0]},
        {"data_offsets": None},
    ],
)
def test_damaged_tensor_entries_are_named(llama: Path, change: dict[str, object]) -> None:
    path = llama / "model.safetensors"
    header, body = header_of(path)
    header["model.norm.weight"] |= change
    rewrite(path, header, body)

    assert "model.norm.weight" in refusal(llama).field


def test_truncated_weights_are_refused(llama: Path) -> None:
    path = llama / "model.safetensors"
    data = path.read_bytes()
    for part in range(32):
        path.write_bytes(data[: len(data) * part // 32])
        assert refusal(llama).file == "model.safetensors"


def test_huge_header_length_is_refused(llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])

    assert refusal(llama).field == "header length"


def test_unused_and_undefined_tensors_are_refused(llama: Path) -> None:
    path = llama / "model.safetensors"
    header, body = header_of(path)
    header["model.extra.weight"] = header["model.norm.weight"]
    rewrite(path, header, body)
    assert "model.extra.weight" in refusal(llama).field

    del header["model.extra.weight"]
    begin = header["model.norm.weight"]["data_offsets"][0]
    rewrite(path, header, body[:begin] + struct.pack("<f", float("inf")) + body[begin + 4 :])
    assert "finite" in refusal(llama).expected


def test_index_cannot_point_outside_its_directory(llama: Path) -> None:
    names = {"model.norm.weight": "../elsewhere/model.safetensors"}
    write_json(llama / "model.safetensors.index.json", {"weight_map": names})

    assert "elsewhere" in refusal(llama).found


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("directory")
    write_directory(path, "llama")
    write_json(path / "generation_config.json", {"eos_token_id": 261})
    return path


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=8),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=8), items),
    max_leaves=4,
)


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_of_any_field_loads_or_is_refused(untouched: Path, data: st.DataObject) -> None:
    names = ("config.json", "tokenizer_config.json", "generation_config.json")
    path = untouched / data.draw(st.sampled_from(names))
    original = path.read_text("utf-8")
    more = ("chat_template", "add_bos_token", "added_tokens_decoder", "rope_scaling", "rope_theta")
    field = data.draw(st.sampled_from([*sorted(json.loads(original)), *more]))
    try:
        change_json(path, **{field: data.draw(JSON)})
        try:
            assert isinstance(read_directory(untouched, name="tiny"), Checkpoint)
        except CheckpointError as error:
            assert error.file.endswith((".json", "safetensors"))  # noqa: PT017
    finally:
        path.write_text(original, "utf-8")
