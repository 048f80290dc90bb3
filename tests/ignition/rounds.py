"""What the tests of rounds share: drivers of each backend, and generation with and without them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch

from helios.engine.ports import LaneOutput, SamplingParams
from helios.scheduler import Catalog
from ignition.programs.eager import EagerModel
from tests.ignition.driver import Driver, catalog_of
from tests.ignition.native.models import POOL, checkpoint_for, native_driver
from tests.ignition.tiny import VOCABULARY

BACKENDS = ("eager", "native-fp32", "native-int8")
ROUNDS = ((1, 1), (4, 1), (1, 2), (1, 4), (1, 8), (4, 2), (4, 4), (8, 4), (8, 8), (2, 3))
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(temperature=1.0, seed=11),
    "nucleus": SamplingParams(temperature=0.7, top_p=0.8, seed=12),
    "top-k": SamplingParams(temperature=1.4, top_k=9, min_p=0.02, seed=13),
    "penalised": SamplingParams(
        temperature=0.9,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        repetition_penalty=1.3,
        logit_bias=((5, 1.5), (7, -2.0)),
        seed=2**64 - 1,
    ),
    "greedy-penalised": SamplingParams(
        temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.5
    ),
}

Proposer = Callable[[list[int]], Sequence[int]]
"""Proposes what may follow the tokens of a request, prompt included."""


def driver_of(backend: str, catalog: Catalog | None = None, family: str = "llama") -> Driver:
    catalog = catalog or catalog_of(rounds=ROUNDS)
    if backend != "eager":
        precision = "fp32" if backend == "native-fp32" else "int8"
        return native_driver(family, precision, catalog=catalog, threads=2)
    checkpoint = checkpoint_for(family)
    weights = {name: torch.from_numpy(checkpoint.float32(name)) for name in checkpoint.tensors}
    model = EagerModel(geometry=checkpoint.geometry, pool=POOL, catalog=catalog, weights=weights)
    return Driver(model)


def pages_for(index: int, count: int = 8) -> list[int]:
    """Pages of one request, scattered over the pool."""
    return [(7 * (index * count + i) + 3) % POOL.page_count for i in range(count)]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def start(
    driver: Driver, row: int, page_set: int, prompt: list[int], sampling: SamplingParams
) -> list[int]:
    """Bind a row and consume its prompt; return the first output token."""
    driver.initialize([row], [pages_for(page_set)], sampling)
    return list(driver.prefill(row, prompt, [("prefill-c64", len(prompt))]).tokens)


def plain_run(
    driver: Driver, prompt: list[int], sampling: SamplingParams, count: int
) -> tuple[list[int], list[np.ndarray]]:
    """Return tokens and the logits that each but the first was drawn from, one step at a time."""
    tokens, logits = start(driver, 0, 0, prompt, sampling), []
    while len(tokens) < count and not driver.model.state.finished[0]:
        (output,) = driver.decode([0])
        tokens += output.tokens
        logits.append(driver.program("decode-b1").buffers["last_logits"][0].copy())
    driver.terminal([0])
    return tokens, logits


def logits_of(driver: Driver, program: str, proposals: dict[int, Sequence[int]]) -> list:
    """Return the target logits of each lane [length, V] of the round that was just run."""
    table, width = driver.program(program).buffers["last_logits"], 0
    if table.ndim == 3:
        return [table[i, : len(p) + 1] for i, p in enumerate(proposals.values())]
    found = []
    for tokens in proposals.values():
        found.append(table[width : width + len(tokens) + 1])
        width += len(tokens) + 1
    return found


def knowing(expected: list[int], prompt_tokens: int, seed: int, share: float = 0.8) -> Proposer:
    """Propose the true continuation, each token spoilt with probability 1 - share."""
    chance = random.Random(seed)

    def propose(tokens: list[int]) -> list[int]:
        true = expected[len(tokens) - prompt_tokens :]
        return [token if chance.random() < share else (token + 1) % VOCABULARY for token in true]

    return propose


def state_of(driver: Driver, row: int, page_set: int) -> list[np.ndarray]:
    """Return all that a row's future depends on: its arrays, and the cache up to its length."""
    state, size = driver.model.state, POOL.page_size_tokens
    names = [n for n in state.__slots__ if n not in ("model", "pool", "keys", "values")]
    names = [n for n in names if n != "page_table"]
    cached = int(state.cached_tokens[row])
    slots = np.concatenate([np.arange(p * size, (p + 1) * size) for p in pages_for(page_set)])
    slots = slots[:cached]
    parts = [getattr(state, name)[row].copy() for name in names]
    return [*parts, state.keys[:, slots].copy(), state.values[:, slots].copy()]


def shown(outputs: dict[int, LaneOutput]) -> dict[int, tuple[int, ...]]:
    return {row: output.tokens for row, output in outputs.items()}
