"""The default model: int8 against fp32 of the same weights, and fp32 against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from helios.engine.ports import SamplingParams, TokenLogprobs
from ignition.checkpoint import Checkpoint
from ignition.geometry import PoolGeometry
from ignition.native.build import Precision
from ignition.native.pack import pack
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from tests.ignition.driver import Driver, catalog_of, lane
from tests.ignition.native.models import library_for
from tests.ignition.smollm2 import reference

pytestmark = [pytest.mark.slow, pytest.mark.model]

TEXT = Path(__file__).parents[2] / "data" / "perplexity.txt"
POOL = PoolGeometry(row_count=8, page_count=80, page_size_tokens=64, context_length_tokens=4096)
CHUNK = 512


def open_default(checkpoint: Checkpoint, precision: Precision) -> Driver:
    geometry = checkpoint.geometry
    dtype = np.float32 if precision == "fp32" else np.float16
    model = NativeModel(
        geometry=geometry,
        pool=POOL,
        catalog=catalog_of(prefill=(64, CHUNK), scored=(CHUNK,)),
        arrays=pack(checkpoint, precision),
        library=library_for(geometry, precision, pool=POOL),
        state=ServingState.allocate(geometry, POOL, dtype),
        threads=2,
    )
    return Driver(model)


@pytest.fixture(scope="module")
def int8(default_checkpoint: Checkpoint) -> Iterator[Driver]:
    driver = open_default(default_checkpoint, "int8")
    yield driver
    driver.model.close()


@pytest.fixture(scope="module")
def fp32(default_checkpoint: Checkpoint) -> Iterator[Driver]:
    driver = open_default(default_checkpoint, "fp32")
    yield driver
    driver.model.close()


@pytest.fixture(scope="module")
def tokens(default_checkpoint: Checkpoint) -> list[int]:
    tokenizer = tokenizers.Tokenizer.from_str(default_checkpoint.text.tokenizer_json)
    return tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=False).ids


def score(driver: Driver, tokens: list[int]) -> list[TokenLogprobs]:
    """Scores of tokens[1:], each with the most likely token at its place."""
    driver.initialize([0], [range(64)], SamplingParams(temperature=0.0, top_logprobs=1))
    scores: list[TokenLogprobs] = []
    for start in range(0, len(tokens), CHUNK):
        chunk, rest = tokens[start : start + CHUNK], tokens[start + CHUNK :]
        (output,) = driver.run(
            f"scored-prefill-c{CHUNK}",
            lane(
                0,
                position=start,
                prompt_token_ids=np.array(chunk, np.int32),
                next_prompt_token_id=rest[0] if rest else -1,
                is_final_chunk=not rest,
            ),
        )
        scores += output.prompt_logprobs
    driver.terminal([0])
    return scores


def test_int8_perplexity_and_agreement_stay_near_fp32(int8, fp32, tokens) -> None:
    """At most 1.03 x the perplexity and at least 0.9 agreement on at least 2,000 tokens."""
    assert len(tokens) >= 2000
    exact, fast = score(fp32, tokens), score(int8, tokens)
    assert len(exact) == len(fast) == len(tokens) - 1
    losses = [-float(np.mean([s.logprob for s in scores])) for scores in (exact, fast)]
    agreement = np.mean([a.top_ids == b.top_ids for a, b in zip(exact, fast, strict=True)])
    ratio = float(np.exp(losses[1] - losses[0]))
    print(f"perplexity {np.exp(losses[0]):.3f} fp32, x {ratio:.4f} int8, agreement {agreement:.4f}")
    assert ratio <= 1.03
    assert agreement >= 0.9


def test_fp32_logits_equal_transformers(default_checkpoint, fp32, tokens) -> None:
    prompt = tokens[:200]
    with torch.no_grad():
        expected = reference(default_checkpoint)(torch.tensor([prompt])).logits[0, -1].numpy()
    fp32.initialize([1], [range(10, 20)])
    fp32.prefill(1, prompt, [(f"prefill-c{CHUNK}", 150), ("prefill-c64", 50)])
    actual = fp32.program("prefill-c64").buffers["last_logits"][0]
    fp32.terminal([1])
    assert np.abs(actual - expected).max() / np.abs(expected).max() < 1e-5


def test_int8_text_is_the_same_alone_in_a_batch_and_in_chunks(int8, tokens) -> None:
    prompts = [
        tokens[at : at + length] for at, length in ((0, 40), (300, 64), (900, 7), (1500, 130))
    ]
    pages = [range(10 * i, 10 * i + 10) for i in range(4)]
    alone = []
    for prompt, own in zip(prompts, pages, strict=True):
        int8.initialize([2], [own])
        text = list(int8.prefill(2, prompt, [(f"prefill-c{CHUNK}", len(prompt))]).tokens)
        for _ in range(24):
            text += int8.decode([2])[0].tokens
        int8.terminal([2])
        alone.append(text)

    rows = [5, 0, 7, 3]
    int8.initialize(rows, pages)
    together = []
    for row, prompt in zip(rows, prompts, strict=True):
        cut = len(prompt) // 3
        chunks = [("prefill-c64", cut), (f"prefill-c{CHUNK}", len(prompt) - cut)]
        together.append(list(int8.prefill(row, prompt, chunks).tokens))
    for _ in range(24):
        for index, output in enumerate(int8.decode(rows, "decode-b8")):
            together[index] += output.tokens
    int8.terminal(rows)
    assert together == alone
