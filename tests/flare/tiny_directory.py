"""A tiny random Llama as a Hugging Face directory, written without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 512
END = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)


def write_tiny_directory(path: Path, *, context: int = CONTEXT) -> Path:
    """Write config, weights, byte-level tokenizer and chat template; return the directory."""
    path.mkdir(parents=True)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    size = tokenizer.get_vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.token_to_id(END),
    }
    (path / "config.json").write_text(json.dumps(config))
    save_file(_weights(size), path / "model.safetensors")
    return path


def _weights(vocabulary_size: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return generator.normal(0, 0.2, (rows, columns)).astype(np.float32)

    head = HIDDEN // HEADS
    weights = {
        "model.embed_tokens.weight": matrix(vocabulary_size, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            f"{prefix}mlp.gate_proj.weight": matrix(FFN, HIDDEN),
            f"{prefix}mlp.up_proj.weight": matrix(FFN, HIDDEN),
            f"{prefix}mlp.down_proj.weight": matrix(HIDDEN, FFN),
        }
    return weights
