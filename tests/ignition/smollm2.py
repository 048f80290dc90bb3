"""The default model for tests: programs of each backend, prompts, the transformers reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from helios.scheduler import Catalog
from ignition.checkpoint import Checkpoint
from ignition.geometry import PoolGeometry
from ignition.native.pack import pack
from ignition.programs.eager import EagerModel
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from ignition.weight_shapes import dense_shapes
from tests.ignition.driver import Driver, catalog_of
from tests.ignition.native.models import library_for
from tests.ignition.tiny import hugging_face_state

ROWS = 33
ROW_PAGES = 7
POOL = PoolGeometry(
    row_count=ROWS,
    page_count=ROWS * ROW_PAGES,
    page_size_tokens=16,
    context_length_tokens=ROW_PAGES * 16,
)
OUTPUT_TOKENS = 64
BUCKETS = (1, 2, 4, 8, 16, 32)
_SUBJECTS = (
    "a lighthouse keeper",
    "the first bicycle",
    "how bread rises",
    "a river in winter",
    "the moons of Jupiter",
    "an honest thief",
    "prime numbers",
    "learning to swim",
)
_OPENINGS = (
    "Write two sentences about {}.",
    "Here is a short story about {}. Once,",
    "def describe():\n    # {}\n    return",
    "1. {} 2.",
)


def prompts(checkpoint: Checkpoint) -> list[list[int]]:
    """Thirty-two prompts of 5 to 20 tokens."""
    tokenizer = tokenizers.Tokenizer.from_str(checkpoint.text.tokenizer_json)
    texts = [opening.format(subject) for opening in _OPENINGS for subject in _SUBJECTS]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def catalog(
    rounds: Sequence[tuple[int, int]] = (), mixed: Sequence[tuple[int, int, int]] = ()
) -> Catalog:
    return catalog_of(
        prefill=(16, 32, 64, 112), scored=(64, 112), buckets=BUCKETS, rounds=rounds, mixed=mixed
    )


def eager_driver(checkpoint: Checkpoint) -> Driver:
    weights = {
        name: torch.from_numpy(np.ascontiguousarray(checkpoint.float32(name)))
        for name in dense_shapes(checkpoint.geometry)
    }
    model = EagerModel(
        geometry=checkpoint.geometry, pool=POOL, catalog=catalog(), weights=weights, threads=2
    )
    return Driver(model)


def native_driver(
    checkpoint: Checkpoint,
    precision: Any,
    rounds: Sequence[tuple[int, int]] = (),
    mixed: Sequence[tuple[int, int, int]] = (),
) -> Driver:
    dtype = np.float32 if precision == "fp32" else np.float16
    model = NativeModel(
        geometry=checkpoint.geometry,
        pool=POOL,
        catalog=catalog(rounds, mixed),
        arrays=pack(checkpoint, precision),
        library=library_for(checkpoint.geometry, precision, pool=POOL),
        state=ServingState.allocate(checkpoint.geometry, POOL, dtype),
        threads=2,
    )
    return Driver(model)


_REFERENCES: dict[str, Any] = {}


def reference(checkpoint: Checkpoint) -> Any:
    """The transformers module with the checkpoint's dequantised weights, built once."""
    if checkpoint.sha256 not in _REFERENCES:
        _REFERENCES[checkpoint.sha256] = _build_reference(checkpoint)
    return _REFERENCES[checkpoint.sha256]


def _build_reference(checkpoint: Checkpoint) -> Any:
    geometry = checkpoint.geometry
    config = transformers.LlamaConfig(
        vocab_size=geometry.vocabulary_size,
        hidden_size=geometry.hidden_size,
        intermediate_size=geometry.ffn_size,
        num_hidden_layers=geometry.layer_count,
        num_attention_heads=geometry.query_heads,
        num_key_value_heads=geometry.kv_heads,
        max_position_embeddings=geometry.context_length_tokens,
        rms_norm_eps=geometry.rms_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": geometry.rope_theta},
        tie_word_embeddings=True,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    missing = module.load_state_dict(hugging_face_state(checkpoint), strict=False)
    assert not missing.unexpected_keys
    assert missing.missing_keys in ([], ["lm_head.weight"])
    return module


def pages(row: int) -> range:
    return range(row * ROW_PAGES, (row + 1) * ROW_PAGES)


def chunks(length: int, style: int) -> list[tuple[str, int]]:
    """Ways to cut a prompt: whole, in sixteens, in sevens, or one token first."""
    if style == 0:
        return [("prefill-c64", length)]
    size, name = {1: (16, "prefill-c16"), 2: (7, "prefill-c64"), 3: (1, "prefill-c16")}[style]
    if style == 3:
        return [(name, 1), ("prefill-c112", length - 1)]
    return [(name, min(size, length - start)) for start in range(0, length, size)]


def generate(
    driver: Driver,
    texts: list[list[int]],
    rows: list[int],
    program: str,
    style: int,
    count: int = OUTPUT_TOKENS,
) -> list[list[int]]:
    """Greedy continuations of `count` tokens, all texts decoding together."""
    for row in rows:
        driver.initialize([row], [pages(row)])
    outputs = [
        list(driver.prefill(row, text, chunks(len(text), (style + index) % 4)).tokens)
        for index, (row, text) in enumerate(zip(rows, texts, strict=True))
    ]
    for _ in range(count - 1):
        for output, lane in zip(outputs, driver.decode(rows, program), strict=True):
            output.extend(lane.tokens)
    for row in rows:
        driver.terminal([row])
    return outputs
