"""What the tests of separate draft models share: small pairs, and models of them by backend."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import torch

from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource, RowAllocation
from ignition.checkpoint import Checkpoint
from ignition.draft.pair import DraftModel
from ignition.native.pack import pack
from ignition.programs.eager import EagerModel
from ignition.programs.native import NativeModel
from tests.ignition.driver import GREEDY, Driver, catalog_of
from tests.ignition.native.models import POOL, checkpoint_for, library_for, native_model
from tests.ignition.rounds import pages_for

DRAFTS = ("itself", "other", "one-layer")
SHAPES = ((1, 2), (1, 4), (4, 3), (4, 4), (8, 8))


@functools.cache
def draft_checkpoint(kind: str) -> Checkpoint:
    """The target itself, a model of another geometry and family, or the target's first layer."""
    target = checkpoint_for("llama")
    if kind == "itself":
        return target
    if kind == "other":
        return dataclasses.replace(checkpoint_for("qwen3"), sha256="2" * 64)
    geometry = dataclasses.replace(target.geometry, layer_count=1)
    kept = {n: t for n, t in target.tensors.items() if not n.startswith("layers.1.")}
    return dataclasses.replace(target, geometry=geometry, tensors=kept, sha256="1" * 64)


def dense(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    return {name: checkpoint.float32(name) for name in checkpoint.tensors}


def precision_of(backend: str) -> str:
    return "int8" if backend == "native-int8" else "fp32"


@functools.cache
def draft_model(kind: str, backend: str) -> DraftModel:
    checkpoint = draft_checkpoint(kind)
    if backend == "eager":
        return DraftModel(geometry=checkpoint.geometry, arrays=dense(checkpoint))
    precision = precision_of(backend)
    return DraftModel(
        geometry=checkpoint.geometry,
        arrays=pack(checkpoint, precision),
        library=library_for(checkpoint.geometry, precision),
    )


def learned_graph(batch: int, width: int, prompt: int = 0) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.MIXED if prompt else GraphKind.SPECULATIVE,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        prefill_capacity=prompt,
        allocation=RowAllocation.HOST,
        source=ProposalSource.LEARNED,
        speculation_enabled=True,
        confidence_width=width - 1,
    )


def name_of(batch: int, width: int) -> str:
    return f"speculative-b{batch}-d{width - 1}-w{width}"


def model_of(
    checkpoint: Checkpoint,
    draft: DraftModel | None,
    backend: str = "eager",
    graphs: Sequence[GraphDescriptor] = (),
    threads: int = 2,
) -> EagerModel | NativeModel:
    plain = catalog_of(rounds=((1, 1), (4, 1), (4, 4)), mixed=((4, 1, 64),)).graphs
    catalog = type(catalog_of()).of([*plain, *graphs])
    if backend == "eager":
        weights = {name: torch.from_numpy(array) for name, array in dense(checkpoint).items()}
        return EagerModel(
            geometry=checkpoint.geometry, pool=POOL, catalog=catalog, weights=weights, draft=draft
        )
    return native_model(checkpoint, catalog, precision_of(backend), pair=draft, threads=threads)


def pair_driver(
    kind: str, backend: str, graphs: Sequence[GraphDescriptor] = (), threads: int = 2
) -> Driver:
    own = graphs or [learned_graph(batch, width) for batch, width in SHAPES]
    draft = draft_model(kind, backend)
    return Driver(model_of(checkpoint_for("llama"), draft, backend, own, threads))


@functools.cache
def draft_alone(kind: str, backend: str) -> Driver:
    """The draft model served by itself."""
    return Driver(model_of(draft_checkpoint(kind), None, backend))


def pools_of(driver: Driver) -> tuple[np.ndarray, np.ndarray]:
    """The draft's keys and values of a pair."""
    model = driver.model
    if isinstance(model, NativeModel):
        assert model.pair is not None
        return model.pair.state.keys, model.pair.state.values
    assert model.draft is not None
    return model.draft.keys.numpy(), model.draft.values.numpy()


def slots_of(page_set: int, count: int) -> np.ndarray:
    size = POOL.page_size_tokens
    slots = [np.arange(page * size, page * size + size) for page in pages_for(page_set)]
    return np.concatenate(slots)[:count]


def alone_after(kind: str, backend: str, history: list[int], depth: int) -> tuple[list, list]:
    """Return what the draft alone says greedily behind a history, and its keys and values of all
    of the history but the last token, which is the pending one of a round.
    """
    driver = draft_alone(kind, backend)
    driver.initialize([0], [pages_for(0)], GREEDY)
    chunks = [
        ("prefill-c64", len(history[start : start + 64])) for start in range(0, len(history), 64)
    ]
    tokens = list(driver.prefill(0, history, chunks).tokens)
    while len(tokens) < depth:
        tokens += driver.decode([0])[0].tokens
    slots, state = slots_of(0, len(history) - 1), driver.model.state
    kept = [state.keys[:, slots].copy(), state.values[:, slots].copy()]
    driver.terminal([0])
    return tokens[:depth], kept
