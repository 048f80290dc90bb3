"""GGUF files: exact tensors, exact geometry, and refusal of everything else by name."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
import transformers

from ignition.checkpoint import BlockQuantized
from ignition.checkpoint_errors import CheckpointError
from ignition.gguf_reader import read_gguf, stored_name, summarize_gguf
from ignition.rope import llama3_frequency_factors
from tests.support.tiny_gguf import TinyGguf, vocabulary

Kind = gguf.GGMLQuantizationType


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path, name="tiny")
    assert path.name in str(caught.value)
    return caught.value


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_geometry_and_names(tmp_path: Path, family: str) -> None:
    path = TinyGguf(family=family).write(tmp_path / "tiny.gguf")

    checkpoint = read_gguf(path, name="served")

    geometry = checkpoint.geometry
    assert (geometry.family, geometry.layer_count, geometry.hidden_size) == (family, 2, 64)
    assert (geometry.query_heads, geometry.kv_heads, geometry.head_size) == (4, 2, 16)
    assert geometry.vocabulary_size == len(vocabulary())
    assert geometry.tied_embeddings
    assert geometry.attention_bias == (family == "qwen2")
    assert geometry.qk_norm == (family == "qwen3")
    assert checkpoint.name == "served"
    assert checkpoint.source == "tiny.gguf"
    assert ("layers.1.q_bias" in checkpoint.tensors) == (family == "qwen2")
    assert ("layers.1.q_norm" in checkpoint.tensors) == (family == "qwen3")
    assert "head" not in checkpoint.tensors
    assert summarize_gguf(path)[0] == geometry
    assert summarize_gguf(path) == (geometry, checkpoint.sha256)


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q5_1]
)
def test_values_are_those_of_the_file(tmp_path: Path, kind: Kind) -> None:
    tiny = TinyGguf(family="qwen2", kind=kind)
    path = tiny.write(tmp_path / "tiny.gguf")

    checkpoint = read_gguf(path, name="tiny")

    for name, tensor in checkpoint.tensors.items():
        written = tiny.random_tensors()[stored_name(name)]
        if written.ndim == 2:
            written = gguf.quants.dequantize(gguf.quants.quantize(written, kind), kind)
        np.testing.assert_array_equal(checkpoint.float32(name), written)
        stays_quantized = written.ndim == 2 and kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q8_0)
        assert isinstance(tensor, BlockQuantized) == stays_quantized


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_1])
def test_llama_rows_return_to_half_split_order(tmp_path: Path, kind: Kind) -> None:
    tiny = TinyGguf(kind=kind)
    half_split = tiny.random_tensors()["blk.0.attn_q.weight"]
    # What the converter of llama.cpp does to query rows: pairs of a rotation become neighbours.
    heads = half_split.reshape(4, 2, 8, 64)
    tiny.tensors["blk.0.attn_q.weight"] = heads.swapaxes(1, 2).reshape(64, 64)
    path = tiny.write(tmp_path / "tiny.gguf")

    read = read_gguf(path, name="tiny").float32("layers.0.q")

    expected = gguf.quants.dequantize(gguf.quants.quantize(half_split, kind), kind)
    np.testing.assert_array_equal(read, expected)


def test_llama3_scaling_is_recovered_from_its_factors(tmp_path: Path) -> None:
    parameters = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192.0,
    }
    factors = llama3_frequency_factors(parameters, theta=10_000.0, head_size=16)
    tiny = TinyGguf(tensors={"rope_freqs.weight": factors})

    geometry = read_gguf(tiny.write(tmp_path / "tiny.gguf"), name="tiny").geometry

    assert geometry.rope_scaling == tuple(sorted(parameters.items()))


def test_llama3_factors_are_those_of_transformers() -> None:
    parameters = {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192.0,
    }
    config = transformers.LlamaConfig(
        head_dim=64,
        max_position_embeddings=131_072,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500_000.0, **parameters},
    )
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 500_000.0 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)

    factors = llama3_frequency_factors(parameters, theta=500_000.0, head_size=64)

    np.testing.assert_allclose(plain.numpy() / factors, scaled.numpy(), rtol=1e-6)


def test_other_frequency_factors_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 4, 8, dtype=np.float32)
    tiny = TinyGguf(tensors={"rope_freqs.weight": factors})

    assert "rope_freqs" in refusal(tiny.write(tmp_path / "tiny.gguf")).field


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("llama.rope.scaling.type", "yarn", "llama.rope.scaling.type"),
        ("llama.attention.sliding_window", 4096, "sliding_window"),
        ("llama.expert_count", 8, "expert_count"),
        ("llama.invented_feature", 3, "invented_feature"),
        ("llama.rope.dimension_count", 8, "rope.dimension_count"),
        ("llama.attention.value_length", 32, "value_length"),
        ("llama.attention.head_count", 0, "head_count"),
        ("llama.attention.head_count_kv", 3, "head_count_kv"),
        ("llama.attention.head_count", "four", "head_count"),
        ("llama.embedding_length", 4_000_000_000, "embedding_length"),
        ("llama.block_count", 4_000_000_000, "block_count"),
        ("llama.block_count", None, "block_count"),
        ("llama.rope.freq_base", float("nan"), "freq_base"),
        ("llama.vocab_size", 5, "vocab_size"),
        ("general.alignment", 3, "alignment"),
        ("split.count", 4, "split.count"),
        ("tokenizer.ggml.tokens", None, "tokens"),
        ("tokenizer.ggml.tokens", ["a"] * 265, "tokens"),
        ("tokenizer.ggml.token_type", [1, 2, 3], "token_type"),
        ("tokenizer.ggml.merges", ["h z"], "merges"),
        ("tokenizer.ggml.merges", ["he"], "merges"),
        ("tokenizer.ggml.model", "replit", "tokenizer.ggml.model"),
        ("tokenizer.ggml.pre", "jais", "tokenizer.ggml.pre"),
        ("tokenizer.ggml.eos_token_id", 9999, "eos_token_id"),
        ("tokenizer.ggml.add_bos_token", "yes", "add_bos_token"),
        ("tokenizer.chat_template", 7, "chat_template"),
    ],
)
def test_metadata_is_refused_by_name(tmp_path: Path, key: str, value: object, named: str) -> None:
    tiny = TinyGguf(metadata={key: value})

    error = refusal(tiny.write(tmp_path / "tiny.gguf"))

    assert named in error.field
    assert error.expected in str(error)


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    error = refusal(TinyGguf(family="gemma2").write(tmp_path / "tiny.gguf"))

    assert "gemma2" in error.found
    assert "qwen3" in error.expected


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("blk.1.ffn_up.weight", None),
        ("blk.1.ffn_up.weight", np.zeros((96, 32), np.float32)),
        ("blk.0.attn_output.bias", np.zeros(64, np.float32)),
        ("blk.0.ffn_gate.weight", np.full((96, 64), np.nan, np.float32)),
    ],
)
def test_tensors_are_refused_by_name(
    tmp_path: Path, name: str, tensor: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None
) -> None:
    tiny = TinyGguf(tensors={name: tensor})

    assert name in refusal(tiny.write(tmp_path / "tiny.gguf")).field


def test_a_type_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    data = bytearray(path.read_bytes())
    # The type of the first matrix follows its name, rank and two sizes.
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    data[at : at + 4] = int(Kind.I32).to_bytes(4, "little")
    path.write_bytes(data)

    assert "I32" in refusal(path).found


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf").field == "file"


@pytest.mark.slow
@pytest.mark.model
def test_default_model(default_gguf: Path) -> None:
    checkpoint = read_gguf(default_gguf, name="smollm2-135m")

    geometry = checkpoint.geometry
    assert (geometry.layer_count, geometry.hidden_size, geometry.ffn_size) == (30, 576, 1536)
    assert (geometry.query_heads, geometry.kv_heads, geometry.head_size) == (9, 3, 64)
    assert (geometry.vocabulary_size, geometry.context_length_tokens) == (49_152, 8192)
    assert geometry.tied_embeddings
    assert geometry.rope_scaling is None
    assert checkpoint.text.eos_token_ids[0] == 2
    assert not checkpoint.text.add_bos
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(default_gguf).tensors}
    for name in ("embed", "layers.0.v", "layers.29.down", "norm"):
        stored = reference[stored_name(name)]
        expected = gguf.quants.dequantize(stored.data, stored.tensor_type)
        np.testing.assert_array_equal(checkpoint.float32(name), expected)
