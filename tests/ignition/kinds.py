"""Every kind of program with rounds, as a small model that the engine serves on a virtual clock."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch

from helios.scheduler import (
    Catalog,
    DecodeMode,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    SpeculationConfig,
)
from ignition.capacity import resources_of
from ignition.checkpoint import Checkpoint
from ignition.draft.file import DraftHead
from ignition.draft.pair import DraftModel
from ignition.native.pack import pack
from ignition.programs.eager import EagerModel
from ignition.programs.native import NativeModel
from ignition.round_shapes import telling_survival
from tests.ignition.drafts import random_parameters
from tests.ignition.driver import catalog_of, mixed_graph, round_graph
from tests.ignition.native.models import POOL, checkpoint_for, library_for, native_model
from tests.ignition.pairs import dense, draft_checkpoint, learned_graph, precision_of
from tests.ignition.test_dealt import dealt_graph
from tests.ignition.test_learned_rounds import RECORD, head
from tests.ignition.test_ragged import ragged_graph

CONTEXT = 26
"""Tokens of a request: few, so that a head that knows short texts alone meets the end."""


class Kind(NamedTuple):
    graphs: tuple[GraphDescriptor, ...]
    """The programs that must run."""
    draft: str = ""
    """Who proposes by itself: a head or a model of its own; where empty, copies alone."""
    fixed_width: int = 0

    @property
    def speculation(self) -> SpeculationConfig:
        mode = DecodeMode.FIXED if self.fixed_width else DecodeMode.ADAPTIVE
        return SpeculationConfig(mode=mode, fixed_width=self.fixed_width)

    @property
    def copies(self) -> bool:
        return any(graph.source is ProposalSource.COPY for graph in self.graphs)

    @property
    def catalog(self) -> Catalog:
        """The programs of prompts, those of this kind and, unless it is fixed, of single rows."""
        graphs = [graph for graph in catalog_of().graphs if graph.kind is not GraphKind.DECODE]
        if not self.fixed_width:
            graphs += [round_graph(1, 1), round_graph(8, 1)]
        return Catalog.of([*graphs, *self.graphs])


COPIED, OWN = round_graph(4, 4), learned_graph(4, 4)
MIXED_COPIED, MIXED_OWN = mixed_graph(4, 4, 64), learned_graph(4, 4, 64)
SHARED = ragged_graph(8, 8, 12)
SHARED_OWN = dataclasses.replace(ragged_graph(8, 4, 12, ProposalSource.LEARNED), confidence_width=3)
KINDS = {
    "copies": Kind((COPIED,)),
    "copies-fixed": Kind((COPIED,), fixed_width=4),
    "copies-shared": Kind((SHARED,)),
    "copies-survival": Kind(tuple(telling_survival([COPIED]))),
    "copies-mixed": Kind((MIXED_COPIED,)),
    "head": Kind((OWN,), "head"),
    "head-fixed": Kind((OWN,), "head", 4),
    "head-shared": Kind((SHARED_OWN,), "head"),
    "head-dealt": Kind((dealt_graph(4, 4, 8),), "head"),
    "head-survival": Kind(tuple(telling_survival([OWN])), "head"),
    "head-mixed": Kind((MIXED_OWN,), "head"),
    "both": Kind((COPIED, OWN), "head"),
    "both-mixed": Kind((MIXED_COPIED, MIXED_OWN), "head"),
    "pair": Kind((OWN,), "pair"),
    "pair-fixed": Kind((OWN,), "pair", 4),
    "pair-mixed": Kind((MIXED_OWN,), "pair"),
}


class Served:
    """A real model as the virtual world of the engine takes one, in a context of few tokens."""

    def __init__(self, model: EagerModel | NativeModel) -> None:
        self.catalog, self.programs = model.catalog, model.programs
        self.resources = dataclasses.replace(resources_of(POOL), context_length_tokens=CONTEXT)


def plain_model(backend: str) -> Served:
    """Return a model that decodes one token at a time."""
    return _served(catalog_of(), backend, None)


def model_of_kind(kind: Kind, backend: str, *, only: int | None = None) -> Served:
    """Return a model of a kind; with `only`, its draft proposes that token and nothing else."""
    draft: DraftHead | Checkpoint | None = None
    if kind.draft == "head":
        draft = head() if only is None else one_token_head(only)
    elif kind.draft == "pair":
        draft = draft_checkpoint("itself") if only is None else one_token_model(only)
    return _served(kind.catalog, backend, draft)


def one_token_head(token: int) -> DraftHead:
    """Return a head with a draft vocabulary of one token."""
    parameters = {name: value.numpy() for name, value in random_parameters().items()}
    return DraftHead(record=RECORD, token_ids=np.array([token], np.int32), parameters=parameters)


def one_token_model(token: int) -> Checkpoint:
    """Return a model whose layers add nothing and whose output head likes one token best: all
    embeddings point the same way, this one furthest."""
    target = checkpoint_for("llama")
    assert target.geometry.tied_embeddings
    tensors: dict[str, Any] = {name: target.float32(name) for name in target.tensors}
    for name, tensor in tensors.items():
        if name.endswith((".o", ".down")):
            tensors[name] = np.zeros_like(tensor)
    tensors["norm"] = np.ones_like(tensors["norm"])
    tensors["embed"] = np.full_like(tensors["embed"], 0.5)
    tensors["embed"][token] = 1.0
    return dataclasses.replace(target, tensors=tensors, sha256="3" * 64)


def _served(catalog: Catalog, backend: str, draft: DraftHead | Checkpoint | None) -> Served:
    build = _eager if backend == "eager" else _native
    return Served(build(catalog, draft, backend))


def _eager(catalog: Catalog, draft: DraftHead | Checkpoint | None, _backend: str) -> EagerModel:
    checkpoint = checkpoint_for("llama")
    weights = {name: torch.from_numpy(array) for name, array in dense(checkpoint).items()}
    own: DraftHead | DraftModel | None
    if isinstance(draft, Checkpoint):
        own = DraftModel(geometry=draft.geometry, arrays=dense(draft))
    else:
        own = draft
    return EagerModel(
        geometry=checkpoint.geometry, pool=POOL, catalog=catalog, weights=weights, draft=own
    )


def _native(catalog: Catalog, draft: DraftHead | Checkpoint | None, backend: str) -> NativeModel:
    precision, pair = precision_of(backend), None
    if isinstance(draft, Checkpoint):
        pair = DraftModel(
            geometry=draft.geometry,
            arrays=pack(draft, precision),
            library=library_for(draft.geometry, precision),
        )
    head = draft if isinstance(draft, DraftHead) else None
    return native_model(
        checkpoint_for("llama"), catalog, precision, head=head, pair=pair, threads=1
    )
