"""A prepared model that counts: after token t comes t + 1. NumPy only, and strict about its inputs.

Every program checks what it is given against what the rows hold, so a test that serves requests
also tests positions, pages, chunk boundaries and row mapping.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from helios.engine.ports import (
    Detokenizer,
    DetokenizerFactory,
    Frame,
    FrameLane,
    LaneOutput,
    PreparedProgram,
    SamplingParams,
    TokenLogprobs,
)
from helios.runtime.settings import EngineSettings, ModelIdentity
from helios.scheduler import Catalog, GraphDescriptor, GraphKind, PolicyConfig, ResourceConfig

VOCABULARY = 1000
EOS = 999
FAULT_TOKEN = 666
"""A prompt with this token makes its prefill program raise."""
POISON_TOKEN = 667
"""Its text cannot be decoded."""
CONTEXT = 128
PAGE = 16
ROWS = 4
PAGES = 24
MASK_WORDS = -(-VOCABULARY // 32)


def text_of(token: int) -> str:
    """Letters in turn, so that counting spells the alphabet."""
    return chr(ord("a") + token % 26)


class AlphabetDetokenizer:
    """Text of single tokens; the end token has none."""

    def push(self, token_id: int) -> str:
        if token_id == POISON_TOKEN:
            raise ValueError("poison")
        return "" if token_id == EOS else text_of(token_id)

    def finish(self) -> str:
        return ""


def alphabet_detokenizers() -> DetokenizerFactory:
    def factory(prompt_token_ids: Sequence[int]) -> Detokenizer:
        return AlphabetDetokenizer()

    return factory


@dataclasses.dataclass(slots=True)
class Rows:
    """The shared static state of all programs."""

    prompt_length: np.ndarray
    cached: np.ndarray
    pending: np.ndarray
    output_count: np.ndarray
    finished: np.ndarray
    sampling: list[SamplingParams | None]
    pages: list[tuple[int, ...]]

    @classmethod
    def of(cls, count: int) -> Rows:
        zeros = [np.zeros(count, np.int64) for _ in range(5)]
        return cls(*zeros, sampling=[None] * count, pages=[()] * count)

    def emit(self, row: int, token: int) -> LaneOutput:
        """Produce one output token in a row, as a sampler would."""
        sampling = self.sampling[row]
        assert sampling is not None
        self.pending[row] = token
        self.output_count[row] += 1
        terminated = token in sampling.stop_token_ids
        self.finished[row] = terminated
        wanted = sampling.top_logprobs >= 0
        return LaneOutput(
            tokens=(token,),
            terminated=terminated,
            logprobs=(logprobs_of(token, sampling.top_logprobs),) if wanted else (),
        )


def logprobs_of(token: int, alternatives: int) -> TokenLogprobs:
    """A made-up score that says which token it belongs to."""
    ids = tuple(range(token, token + max(0, alternatives)))
    return TokenLogprobs(
        logprob=-token / VOCABULARY,
        top_ids=ids,
        top_logprobs=tuple(-one / VOCABULARY for one in ids),
    )


def masked_token(lane: FrameLane, token: int) -> int:
    """Return what a lane of one row draws instead of a token that its mask may not allow."""
    if lane.masks is None:
        return token
    assert len(lane.masks) == 1
    return allowed_token(lane.masks[0], token)


def allowed_token(mask: np.ndarray | None, token: int) -> int:
    """Return the token, or the next one that the mask allows."""
    if mask is None:
        return token
    assert mask.shape == (MASK_WORDS,)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    allowed = np.flatnonzero(bits)
    return int(allowed[np.searchsorted(allowed, token) % len(allowed)])


class CountingProgram:
    """One program of any kind over the shared rows."""

    def __init__(self, descriptor: GraphDescriptor, rows: Rows, step_s: float) -> None:
        self._descriptor = descriptor
        self._rows = rows
        self._step_s = step_s
        self._frame: Frame | None = None
        self._outputs: tuple[LaneOutput, ...] = ()

    @property
    def descriptor(self) -> GraphDescriptor:
        return self._descriptor

    def load(self, frame: Frame) -> None:
        assert 1 <= len(frame.lanes) <= self._descriptor.batch_capacity
        assert len({lane.row for lane in frame.lanes}) == len(frame.lanes)
        self._frame = frame

    def replay(self) -> None:
        assert self._frame is not None
        if self._step_s:
            time.sleep(self._step_s)
        run = {
            GraphKind.INITIALIZE: self._initialize,
            GraphKind.PREFILL: self._prefill,
            GraphKind.SCORED_PREFILL: self._prefill,
            GraphKind.DECODE: self._decode,
            GraphKind.TERMINAL: self._retire,
        }[self._descriptor.kind]
        self._outputs = tuple(run(lane) for lane in self._frame.lanes)

    def read(self, frame: Frame) -> tuple[LaneOutput, ...]:
        return self._outputs

    def _initialize(self, lane: FrameLane) -> LaneOutput:
        assert lane.sampling is not None
        rows, row = self._rows, lane.row
        rows.prompt_length[row] = lane.prompt_length
        rows.cached[row] = rows.output_count[row] = rows.finished[row] = 0
        rows.sampling[row] = lane.sampling
        rows.pages[row] = lane.pages
        return LaneOutput()

    def _prefill(self, lane: FrameLane) -> LaneOutput:
        rows, row, tokens = self._rows, lane.row, lane.prompt_token_ids
        assert tokens is not None
        assert 1 <= len(tokens) <= self._descriptor.token_capacity
        assert lane.position == rows.cached[row]
        assert lane.pages == rows.pages[row]
        if FAULT_TOKEN in tokens:
            raise RuntimeError("the fault token")
        rows.cached[row] += len(tokens)
        assert lane.is_final_chunk == (rows.cached[row] == rows.prompt_length[row])
        output = LaneOutput()
        if lane.is_final_chunk:
            assert lane.next_prompt_token_id == -1
            output = rows.emit(row, masked_token(lane, (int(tokens[-1]) + 1) % VOCABULARY))
        if self._descriptor.kind is GraphKind.SCORED_PREFILL:
            sampling = rows.sampling[row]
            assert sampling is not None
            followers = [*tokens[1:].tolist(), lane.next_prompt_token_id]
            scored = [token for token in followers if token >= 0]
            scores = tuple(logprobs_of(token, sampling.top_logprobs) for token in scored)
            output = output._replace(prompt_logprobs=scores)
        return output

    def _decode(self, lane: FrameLane) -> LaneOutput:
        rows, row = self._rows, lane.row
        if rows.finished[row]:
            return LaneOutput()
        assert lane.position == rows.cached[row]
        assert rows.cached[row] < len(lane.pages) * PAGE
        rows.cached[row] += 1
        return rows.emit(row, masked_token(lane, int(rows.pending[row] + 1) % VOCABULARY))

    def _retire(self, lane: FrameLane) -> LaneOutput:
        rows, row = self._rows, lane.row
        output = LaneOutput(
            cached_tokens=int(rows.cached[row]), output_tokens=int(rows.output_count[row])
        )
        rows.cached[row] = rows.output_count[row] = 0
        rows.pages[row] = ()
        return output


def counting_catalog() -> Catalog:
    kinds = GraphKind
    graphs = [GraphDescriptor(kind=kinds.INITIALIZE, batch_capacity=b) for b in (1, 4)]
    graphs += [GraphDescriptor(kind=kinds.DECODE, batch_capacity=b) for b in (1, 2, 4)]
    graphs += [GraphDescriptor(kind=kinds.TERMINAL, batch_capacity=b) for b in (1, 4)]
    for kind in (kinds.PREFILL, kinds.SCORED_PREFILL):
        graphs += [GraphDescriptor(kind=kind, batch_capacity=1, token_capacity=c) for c in (16, 64)]
    return Catalog.of(graphs)


class CountingModel:
    """An opened counting package; `failing` names graphs whose replay raises."""

    def __init__(self, step_s: float = 0.0, seeds: Mapping[str, int] | None = None) -> None:
        self._catalog = counting_catalog()
        rows = Rows.of(ROWS)
        self._programs = [CountingProgram(graph, rows, step_s) for graph in self._catalog.graphs]
        self._seeds = dict(seeds or {})

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    @property
    def resources(self) -> ResourceConfig:
        return ResourceConfig(
            row_count=ROWS,
            page_count=PAGES,
            page_size_tokens=PAGE,
            context_length_tokens=CONTEXT,
        )

    @property
    def programs(self) -> Sequence[PreparedProgram]:
        return self._programs

    @property
    def cost_seeds_ns(self) -> Mapping[str, int]:
        return self._seeds


def open_counting_model(step_s: float) -> CountingModel:
    return CountingModel(step_s)


def counting_identity() -> ModelIdentity:
    return ModelIdentity(
        name="counting",
        vocabulary_size=VOCABULARY,
        eos_token_ids=(EOS,),
        backend="numpy",
        precision="int64",
    )


def counting_settings(
    *,
    step_s: float = 0.0,
    waiting_limit: int = 1024,
    trace_path: Path | None = None,
    restart_limit: int = 5,
) -> EngineSettings:
    """Settings of a counting engine; each replay takes at least `step_s`."""
    return EngineSettings(
        open_model=functools.partial(open_counting_model, step_s),
        open_detokenizers=alphabet_detokenizers,
        model=counting_identity(),
        policy=PolicyConfig(),
        waiting_limit=waiting_limit,
        trace_path=trace_path,
        ready_timeout_s=60.0,
        restart_limit=restart_limit,
        restart_delay_s=0.01,
    )
