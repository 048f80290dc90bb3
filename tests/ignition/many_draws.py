"""What the chi-square tests of whole rounds share: a million draws of equal rows, and their check.

Every row of a native model has consumed one prompt; a round is replayed with new seeds, its rows
set back in between. Rows of the same pending token, rows given and masks have one distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from helios.engine.ports import FrameLane, SamplingParams
from helios.scheduler import GraphDescriptor, ProposalSource
from ignition.draft.file import DraftHead
from ignition.geometry import PoolGeometry
from ignition.native.pack import pack
from ignition.native.pack_draft import pack_draft
from ignition.programs.native import NativeModel
from ignition.state import ServingState
from tests.ignition.driver import Driver, catalog_of, lane
from tests.ignition.native.models import checkpoint_for, library_for
from tests.ignition.pairs import draft_model
from tests.ignition.test_acceptance_distribution import DRAWS, check_chi_square, distribution
from tests.ignition.tiny import VOCABULARY

ROWS, PROMPT = 64, [5, 11, 2]
PENDING = np.arange(ROWS) % 4 * 11 + 3
"""Four pending tokens, so that rows differ in what they propose and draw."""
EVERY = np.ones(VOCABULARY, bool)


class Draws(NamedTuple):
    """Output tokens of many rounds with one proposal a row."""

    tokens: np.ndarray
    """[rounds, rows, 2], -1 where nothing was put out."""
    proposals: np.ndarray
    """[rows]."""
    given: np.ndarray
    """Target rows [rows] that each request had."""
    logits: Sequence[np.ndarray]
    """Of each row, [target rows, V]."""


def check_draws(
    draws: Draws,
    groups: np.ndarray,
    sampling: SamplingParams,
    allowed: Sequence[np.ndarray] = (EVERY, EVERY),
) -> None:
    """Chi-square of the first token and of the one behind an accepted proposal, group by group.

    Rows of a group and of as many target rows have one distribution. `allowed` are the tokens that
    masks leave to the first and second one.
    """
    checked = 0
    for key, given in itertools.product(sorted(set(groups.tolist())), (1, 2)):
        group = np.flatnonzero((groups == key) & (draws.given == given))
        if not len(group):
            continue
        proposal, logits = int(draws.proposals[group[0]]), draws.logits[group[0]]
        first, second = draws.tokens[:, group].reshape(-1, 2).T
        check_chi_square(first, _masked(logits[0], sampling, {}, allowed[0]))
        accepted = (first == proposal) & (given == 2)
        assert np.array_equal(second >= 0, accepted)
        if accepted.sum() > 500:
            expected = _masked(logits[1], sampling, {proposal: 1}, allowed[1])
            check_chi_square(second[accepted], expected)
            checked += 1
    assert checked, "some group got rows, and some of its proposals were accepted"


def _masked(
    logits: np.ndarray, sampling: SamplingParams, seen: dict[int, int], allowed: np.ndarray
) -> np.ndarray:
    return distribution(np.where(allowed, logits, -np.inf), sampling, seen)


def many_rows_driver(
    graphs: Sequence[GraphDescriptor], head: DraftHead | None = None, pair: str | None = None
) -> Driver:
    """A native model whose rows have all consumed the prompt."""
    checkpoint = checkpoint_for("llama")
    pool = PoolGeometry(
        row_count=ROWS, page_count=ROWS, page_size_tokens=16, context_length_tokens=16
    )
    arrays = pack(checkpoint, "fp32")
    if head is not None:
        arrays |= pack_draft(checkpoint, head, "fp32")
    plain = catalog_of(buckets=(ROWS,), prefill=(16,), scored=(16,)).graphs
    model = NativeModel(
        geometry=checkpoint.geometry,
        pool=pool,
        catalog=type(catalog_of()).of([*plain, *graphs]),
        arrays=arrays,
        library=library_for(checkpoint.geometry, "fp32"),
        state=ServingState.allocate(
            checkpoint.geometry, pool, np.float32, draft_layers=int(head is not None)
        ),
        threads=1,
        pair=None if pair is None else draft_model(pair, "native-fp32"),
    )
    return Driver(model)


def native_draws(
    driver: Driver,
    graph: GraphDescriptor,
    sampling: SamplingParams,
    lengths: Sequence[int],
    *,
    masks: np.ndarray | None = None,
    chunk: FrameLane | None = None,
    draws: int = DRAWS,
) -> Draws:
    """Replay a round of the first rows until they have put out `draws` first tokens.

    Copied proposals are the second most likely tokens; `chunk` is a prompt in the same mixed frame,
    `masks` [2, words] are those of both target rows of every request.
    """
    rows, generator = range(len(lengths)), np.random.default_rng(8)
    _begin(driver, sampling, chunk)
    copied = [0] * len(lengths)
    if graph.source is ProposalSource.COPY:
        driver.run(graph.name, *_lanes([1] * len(lengths), copied, masks, chunk))
        for table in [_tables(driver, graph, np.ones(len(lengths), int), chunk)]:
            copied = [int(_order(logits[0], masks)[1]) for logits in table]
    found: list[np.ndarray] = []
    program = driver.program(graph.name)
    for turn in range(1 + -(-draws // len(lengths))):
        _set_back(driver, generator, chunk)
        if turn == 0:
            driver.run(graph.name, *_lanes(lengths, copied, masks, chunk, graph.source))
            buffers = program.buffers
            given = buffers.get("offered", buffers["query_lengths"])[: len(rows)].copy()
            logits = [each.copy() for each in _tables(driver, graph, given, chunk)]
            proposals = buffers["proposals"][: len(rows), 0].copy()
            continue
        program.replay()
        is_put_out = buffers["produced"][: len(rows)] != 0
        found.append(np.where(is_put_out, buffers["tokens"][: len(rows)], -1).reshape(-1, 2))
    assert np.array_equal(proposals, buffers["proposals"][: len(rows), 0])
    return Draws(np.stack(found), proposals, given, logits)


def _order(logits: np.ndarray, masks: np.ndarray | None) -> np.ndarray:
    if masks is None:
        return np.argsort(-logits)
    allowed = np.unpackbits(masks[0].view(np.uint8), bitorder="little")[:VOCABULARY]
    return np.argsort(np.where(allowed, -logits, np.inf))


def _begin(driver: Driver, sampling: SamplingParams, chunk: FrameLane | None) -> None:
    every = list(range(ROWS))
    driver.initialize(every, [[row] for row in every], sampling, f"initialize-b{ROWS}")
    for row in every:
        if chunk is None or row != chunk.row:
            driver.prefill(row, PROMPT, [("prefill-c16", len(PROMPT))])
    driver.model.state.prompt_seen[...] = 0
    _set_back(driver, np.random.default_rng(0), chunk)


def _set_back(driver: Driver, generator: np.random.Generator, chunk: FrameLane | None) -> None:
    state = driver.model.state
    state.cached_tokens[...], state.output_count[...] = len(PROMPT), 0
    state.output_counts[...], state.pending_token[...] = 0, PENDING
    state.finished[...] = 0
    state.seed[...] = generator.integers(0, 2**63, ROWS, dtype=np.uint64)
    if chunk is not None:
        state.cached_tokens[chunk.row] = state.pending_token[chunk.row] = 0


def _lanes(
    lengths: Sequence[int],
    copied: Sequence[int],
    masks: np.ndarray | None,
    chunk: FrameLane | None,
    source: ProposalSource = ProposalSource.COPY,
) -> list[FrameLane]:
    is_copy = source is ProposalSource.COPY
    lanes = [
        lane(
            row,
            query_length=length,
            copied_token_ids=(copied[row],) * (length - 1) if is_copy else (),
            masks=None if masks is None else masks[:length],
        )
        for row, length in enumerate(lengths)
    ]
    return lanes if chunk is None else [*lanes, chunk]


def _tables(
    driver: Driver, graph: GraphDescriptor, given: np.ndarray, chunk: FrameLane | None
) -> list[np.ndarray]:
    """Return the logits of every row; native programs have them one behind the other."""
    table, ends = driver.program(graph.name).buffers["last_logits"], np.cumsum(given)
    assert chunk is None or not chunk.is_final_chunk, "a prompt that ends has the first logits"
    return [table[end - count : end] for end, count in zip(ends, given, strict=True)]
