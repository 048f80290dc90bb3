"""Small Hugging Face directories with random weights, written by `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.tiny_gguf import CHAT_TEMPLATE, CONTROL_NAMES, MERGES, byte_tokens

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "vocab_size": 320,
}
CONFIGS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}


def write_directory(
    path: Path,
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    shard: str = "50GB",
    **config: Any,
) -> transformers.PreTrainedModel:
    """Write a random model and return it."""
    configure, build = CONFIGS[family]
    torch.manual_seed(3)
    settings = configure(**{**SIZES, "bos_token_id": 257, "eos_token_id": 256, **config})
    model = build(settings).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(path, max_shard_size=shard)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), "utf-8")
    write_json(path / "tokenizer_config.json", {"eos_token": "<|im_end|>", "bos_token": None})
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return model


def tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer whose control tokens are not in the model's vocabulary."""
    tokens = [*byte_tokens(), *(rule.replace(" ", "") for rule in MERGES)]
    extra = [*CONTROL_NAMES, "<tool_call>"]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(tokens) + index,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": name != "<tool_call>",
            }
            for index, name in enumerate(extra)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": list(MERGES),
        },
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), "utf-8")


def change_json(path: Path, **fields: object) -> None:
    """Change fields of a JSON file; None removes one."""
    value = {**json.loads(path.read_text("utf-8")), **fields}
    write_json(path, {name: item for name, item in value.items() if item is not None})
