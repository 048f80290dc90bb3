"""Reads a local Hugging Face directory of a Llama-family model into a Checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ignition.checkpoint import Checkpoint, TextAssets
from ignition.checkpoint_errors import CheckpointError
from ignition.geometry import ModelGeometry
from ignition.hf_geometry import read_geometry
from ignition.hf_text import read_text_assets
from ignition.json_file import JsonFile
from ignition.safetensors_file import SafetensorsFile, StoredTensor, open_safetensors
from ignition.tensor_plan import tensor_shapes

_ROLES: Final = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
_TOP: Final = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_RECOMPUTED: Final = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def read_directory(path: Path, *, name: str) -> Checkpoint:
    """Read a model to be served under a name. Raises CheckpointError; changes nothing."""
    config, geometry, files = _open_checked(path)
    stored = _stored_tensors(files)
    text = read_text_assets(path, config, geometry.vocabulary_size)

    return Checkpoint(
        name=name,
        source=path.resolve().name,
        sha256=_fingerprint(path / "config.json", files),
        geometry=geometry,
        tensors={
            canonical: _finite(stored[stored_name(canonical)])
            for canonical in tensor_shapes(geometry)
        },
        text=text,
    )


def summarize_directory(path: Path) -> tuple[ModelGeometry, str]:
    """Return geometry and sha256 of a directory without decoding its tensors.

    Raises CheckpointError.
    """
    _, geometry, files = _open_checked(path)
    return geometry, _fingerprint(path / "config.json", files)


def read_directory_text(path: Path) -> TextAssets:
    """Return tokenizer and template of a directory without its tensors. Raises CheckpointError."""
    config, geometry, _ = _open_checked(path)
    return read_text_assets(path, config, geometry.vocabulary_size)


def _open_checked(path: Path) -> tuple[JsonFile, ModelGeometry, dict[str, SafetensorsFile]]:
    config = JsonFile(path / "config.json")
    geometry = read_geometry(config)
    files = _open_weights(path)
    _check_tensors(_stored_tensors(files), geometry)
    return config, geometry, files


def stored_name(canonical: str) -> str:
    """Return the name that a Hugging Face checkpoint gives a canonical tensor."""
    if canonical in _TOP:
        return _TOP[canonical]
    _, layer, role = canonical.split(".")
    return f"model.layers.{layer}.{_ROLES[role]}"


def _open_weights(path: Path) -> dict[str, SafetensorsFile]:
    """Open every weight file, in name order."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return {"model.safetensors": open_safetensors(path / "model.safetensors")}
    mapping = JsonFile(index)
    weights = mapping.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise mapping.error("weight_map", type(weights).__name__, "names of files by tensor")
    names = sorted({str(value) for value in weights.values()})
    for name in names:
        # A file name with directories in it could point anywhere on this machine.
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise mapping.error("weight_map", repr(name), "plain names of .safetensors files")
    return {name: open_safetensors(path / name) for name in names}


def _stored_tensors(files: Mapping[str, SafetensorsFile]) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for file, content in files.items():
        for name, tensor in content.tensors.items():
            if name in stored:
                raise CheckpointError(
                    file=file,
                    field=f"tensor {name}",
                    found=f"it in {stored[name].file} too",
                    expected="each tensor once",
                )
            stored[name] = tensor
    return stored


def _check_tensors(stored: Mapping[str, StoredTensor], geometry: ModelGeometry) -> None:
    """Every tensor of the geometry is there in its shape, and no other tensor is."""
    planned = {stored_name(name): shape for name, shape in tensor_shapes(geometry).items()}
    for name, shape in planned.items():
        tensor = stored.get(name)
        found = "nothing" if tensor is None else f"shape {tensor.shape}"
        if tensor is None or tensor.shape != shape:
            raise CheckpointError(
                file="safetensors", field=f"tensor {name}", found=found, expected=f"shape {shape}"
            )
    for name, tensor in stored.items():
        # A tied model may store its head all the same; it is the embedding by definition.
        is_tied_head = geometry.tied_embeddings and name == _TOP["head"]
        if name not in planned and not is_tied_head and not _RECOMPUTED.fullmatch(name):
            raise CheckpointError(
                file=tensor.file,
                field=f"tensor {name}",
                found="a tensor that this architecture does not use",
                expected="none (it would be ignored, which changes the model)",
            )


def _finite(tensor: StoredTensor) -> npt.NDArray[np.float32]:
    values = tensor.float32()
    if not np.isfinite(values).all():
        raise CheckpointError(
            file=tensor.file,
            field=f"tensor {tensor.name}",
            found="an infinite or undefined value",
            expected="finite weights",
        )
    return values


def _fingerprint(config: Path, files: Mapping[str, SafetensorsFile]) -> str:
    """Hash the configuration and all weight files, in name order."""
    digest = hashlib.sha256(config.read_bytes())
    for content in files.values():
        digest.update(content.data)
    return digest.hexdigest()
