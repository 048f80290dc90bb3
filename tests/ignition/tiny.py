"""Tiny random models of each family: transformers modules and checkpoints of the same weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
import transformers

from ignition.checkpoint import Checkpoint, TextAssets
from ignition.geometry import ModelGeometry

VOCABULARY = 97
CONTEXT = 640

_SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.25,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


@dataclasses.dataclass(frozen=True, slots=True)
class TinyModel:
    """The reference module and the checkpoint with its weights."""

    reference: Any
    checkpoint: Checkpoint


def build(family: str) -> TinyModel:
    """Return a seeded model: llama, llama3 (scaled rotary), llama-untied, qwen2 or qwen3."""
    torch.manual_seed(20)
    if family == "qwen2":
        config = transformers.Qwen2Config(**_SHARED, tie_word_embeddings=True)
        module = transformers.Qwen2ForCausalLM(config)
    elif family == "qwen3":
        config = transformers.Qwen3Config(**_SHARED, head_dim=24, tie_word_embeddings=False)
        module = transformers.Qwen3ForCausalLM(config)
    else:
        rope = _LLAMA3 if family == "llama3" else {"rope_type": "default", "rope_theta": 10000.0}
        tied = family != "llama-untied"
        config = transformers.LlamaConfig(
            **_SHARED, tie_word_embeddings=tied, rope_parameters=dict(rope)
        )
        module = transformers.LlamaForCausalLM(config)
    module = module.eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return TinyModel(module, checkpoint_of(family, module))


def checkpoint_of(family: str, module: Any) -> Checkpoint:
    """Return a checkpoint that holds the module's weights under their canonical names."""
    config = module.config
    scaling = None
    if family == "llama3":
        scaling = tuple(sorted((k, v) for k, v in _LLAMA3.items() if isinstance(v, (int, float))))
        scaling = tuple((k, float(v)) for k, v in scaling if k != "rope_theta")
    geometry = ModelGeometry(
        family=config.model_type,
        layer_count=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        ffn_size=config.intermediate_size,
        vocabulary_size=config.vocab_size,
        context_length_tokens=config.max_position_embeddings,
        rms_epsilon=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        tied_embeddings=config.tie_word_embeddings,
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        rope_scaling=scaling,
    )
    text = TextAssets(
        tokenizer_json='{"version": "1.0"}',
        chat_template="{{ messages }}",
        bos_token_id=1,
        eos_token_ids=(2,),
        add_bos=False,
    )
    return Checkpoint(
        name=f"tiny-{family}",
        source=f"tiny-{family}.gguf",
        sha256="0" * 64,
        geometry=geometry,
        tensors=_tensors(module, geometry.tied_embeddings),
        text=text,
    )


def _tensors(module: Any, tied: bool) -> dict[str, np.ndarray]:
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    tensors = {"embed": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    if not tied:
        tensors["head"] = state["lm_head.weight"]
    for name, array in state.items():
        if not name.startswith("model.layers."):
            continue
        _, _, layer, rest = name.split(".", 3)
        stem, kind = rest.rsplit(".", 1)
        suffix = "_bias" if kind == "bias" else ""
        tensors[f"layers.{layer}.{_NAMES[stem]}{suffix}"] = array
    return tensors


def hugging_face_state(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return a checkpoint's weights under the names of a transformers module."""
    stems = {ours: theirs for theirs, ours in _NAMES.items()}
    state = {}
    for name in checkpoint.tensors:
        tensor = torch.from_numpy(np.ascontiguousarray(checkpoint.float32(name)))
        if name in ("embed", "norm"):
            state["model.embed_tokens.weight" if name == "embed" else "model.norm.weight"] = tensor
        elif name == "head":
            state["lm_head.weight"] = tensor
        else:
            _, layer, part = name.split(".")
            stem, is_bias = part.removesuffix("_bias"), part.endswith("_bias")
            suffix = "bias" if is_bias else "weight"
            state[f"model.layers.{layer}.{stems[stem]}.{suffix}"] = tensor
    return state
