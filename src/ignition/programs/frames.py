"""Between frames and host buffers: writes lanes into inputs, reads outputs back into lanes.

A frame that does not fit its program is refused with FrameError before any buffer is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from helios.engine.ports import (
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS,
    Frame,
    FrameLane,
    LaneOutput,
    SamplingParams,
    Sidecar,
    TokenLogprobs,
)
from helios.scheduler import GraphDescriptor, GraphKind, ProposalSource
from ignition.geometry import ModelGeometry, PoolGeometry
from ignition.programs.buffers import (
    PREFILL_KINDS,
    SAMPLING_FIELDS,
    is_dealt,
    is_mixed,
    is_round,
    mask_words,
    prompt_capacity,
    reports_bursts,
)

Buffers = Mapping[str, npt.NDArray[Any]]


class FrameError(ValueError):
    """A frame does not fit the program it was given to; no buffer was written."""


class ReplayError(RuntimeError):
    """A program met a state that it must not run on; the state is unchanged."""


def check_frame(
    graph: GraphDescriptor, frame: Frame, model: ModelGeometry, pool: PoolGeometry
) -> None:
    """Raise FrameError, naming lane and limit, unless the frame fits the program."""
    if not 1 <= len(frame.lanes) <= graph.batch_capacity:
        raise FrameError(f"{graph.name}: {len(frame.lanes)} lanes, capacity {graph.batch_capacity}")
    rows = [lane.row for lane in frame.lanes]
    if len(set(rows)) != len(rows):
        raise FrameError(f"{graph.name}: a row stands in two lanes: {rows}")
    for lane in frame.lanes:
        if not 0 <= lane.row < pool.row_count:
            raise FrameError(f"{graph.name}: row {lane.row} of {pool.row_count}")
        if lane.masks is not None:
            _check_masks(graph, lane, lane.masks, model)
        if graph.kind is GraphKind.INITIALIZE:
            _check_initialize(graph, lane, model, pool)
        elif graph.kind in PREFILL_KINDS or (is_mixed(graph) and _is_prompt(lane)):
            _check_prefill(graph, lane, model, pool)
        elif is_round(graph) or is_mixed(graph):
            _check_round(graph, lane, model)
    _check_together(graph, frame)


def prompt_lane(graph: GraphDescriptor, frame: Frame) -> int:
    """Return which lane consumes prompt tokens; -1 for none."""
    if graph.kind in PREFILL_KINDS:
        return 0
    places = (i for i, lane in enumerate(frame.lanes) if _is_prompt(lane))
    return next(places, -1) if is_mixed(graph) else -1


def _is_prompt(lane: FrameLane) -> bool:
    return lane.prompt_token_ids is not None


def _check_initialize(
    graph: GraphDescriptor, lane: FrameLane, model: ModelGeometry, pool: PoolGeometry
) -> None:
    sampling = lane.sampling
    if sampling is None:
        raise FrameError(f"{graph.name}: row {lane.row} has no sampling parameters")
    if len(lane.pages) > pool.pages_per_row:
        raise FrameError(
            f"{graph.name}: row {lane.row} has {len(lane.pages)} pages, more than the "
            f"{pool.pages_per_row} of a whole context"
        )
    if any(not 0 <= page < pool.page_count for page in lane.pages):
        raise FrameError(f"{graph.name}: row {lane.row} names a page past {pool.page_count - 1}")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise FrameError(f"{graph.name}: more than {MAX_STOP_TOKENS} stop tokens")
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise FrameError(f"{graph.name}: more than {MAX_LOGIT_BIAS} logit bias entries")
    if any(not 0 <= token < model.vocabulary_size for token, _ in sampling.logit_bias):
        raise FrameError(f"{graph.name}: logit bias outside the vocabulary")
    if not -1 <= sampling.top_logprobs <= MAX_TOP_LOGPROBS:
        raise FrameError(f"{graph.name}: top_logprobs must be -1 to {MAX_TOP_LOGPROBS}")


def _check_prefill(
    graph: GraphDescriptor, lane: FrameLane, model: ModelGeometry, pool: PoolGeometry
) -> None:
    tokens, capacity = lane.prompt_token_ids, prompt_capacity(graph)
    if tokens is None or not 1 <= len(tokens) <= capacity:
        count = 0 if tokens is None else len(tokens)
        raise FrameError(f"{graph.name}: {count} prompt tokens, capacity {capacity}")
    if tokens.min() < 0 or tokens.max() >= model.vocabulary_size:
        raise FrameError(f"{graph.name}: prompt token outside {model.vocabulary_size}")
    if lane.position < 0 or lane.position + len(tokens) > pool.context_length_tokens:
        raise FrameError(
            f"{graph.name}: position {lane.position} and {len(tokens)} tokens pass the context of "
            f"{pool.context_length_tokens}"
        )


def _check_round(graph: GraphDescriptor, lane: FrameLane, model: ModelGeometry) -> None:
    length, proposals = lane.query_length, lane.copied_token_ids
    if not 1 <= length <= graph.token_capacity:
        raise FrameError(
            f"{graph.name}: row {lane.row} has a query length of {length}, it must be 1 to "
            f"{graph.token_capacity}"
        )
    supplied = 0 if graph.source is ProposalSource.LEARNED else length - 1
    if len(proposals) != supplied:
        raise FrameError(
            f"{graph.name}: row {lane.row} has {len(proposals)} proposals, its query length of "
            f"{length} takes {supplied}"
        )
    if any(not 0 <= token < model.vocabulary_size for token in proposals):
        raise FrameError(
            f"{graph.name}: row {lane.row} has a proposal outside {model.vocabulary_size}"
        )


def _check_together(graph: GraphDescriptor, frame: Frame) -> None:
    """What lanes that fit one by one must also fit in as a whole: one prompt, P target rows."""
    if is_mixed(graph) and sum(map(_is_prompt, frame.lanes)) > 1:
        raise FrameError(f"{graph.name}: more than one lane consumes a prompt")
    asked = sum(lane.query_length for lane in frame.lanes)
    if is_round(graph) and not is_dealt(graph) and asked > graph.rows:
        raise FrameError(
            f"{graph.name}: query lengths add up to {asked}, there are {graph.rows} target rows"
        )


def _check_masks(
    graph: GraphDescriptor,
    lane: FrameLane,
    masks: npt.NDArray[np.uint32],
    model: ModelGeometry,
) -> None:
    is_burst = reports_bursts(graph) and not _is_prompt(lane)
    expected = (lane.query_length if is_burst else 1, mask_words(model.vocabulary_size))
    if masks.shape != expected or masks.dtype != np.uint32:
        raise FrameError(
            f"{graph.name}: row {lane.row} has masks of {masks.dtype} {masks.shape}, it must be "
            f"uint32 {expected}"
        )
    if not masks.any(axis=1).all():
        raise FrameError(f"{graph.name}: a mask of row {lane.row} allows no token at all")


def check_pages(
    graph: GraphDescriptor, frame: Frame, page_table: npt.NDArray[np.int32], page_size: int
) -> None:
    """Raise FrameError unless the row of a prompt has every page that its chunk reaches."""
    place = prompt_lane(graph, frame)
    if place < 0:
        return
    lane = frame.lanes[place]
    assert lane.prompt_token_ids is not None
    pages = -(-(lane.position + len(lane.prompt_token_ids)) // page_size)
    if (page_table[lane.row, :pages] < 0).any():
        raise FrameError(
            f"{graph.name}: row {lane.row} has fewer than the {pages} pages that this chunk reaches"
        )


def load_frame(graph: GraphDescriptor, frame: Frame, buffers: Buffers) -> None:
    """Write the inputs of a checked frame."""
    rows = buffers["rows"]
    rows[...] = -1
    for index, lane in enumerate(frame.lanes):
        rows[index] = lane.row
        if graph.kind is GraphKind.INITIALIZE:
            assert lane.sampling is not None
            _load_initialize(index, lane, lane.sampling, buffers)
    if is_round(graph):
        _load_round(frame, buffers)
    if graph.kind in PREFILL_KINDS:
        _load_prompt(graph, frame.lanes[0], buffers)
    if is_mixed(graph):
        _load_mixed(graph, frame, buffers)
    if "is_masked" in buffers:
        _load_masks(graph, frame, buffers)


def _load_initialize(
    index: int, lane: FrameLane, sampling: SamplingParams, buffers: Buffers
) -> None:
    pages = buffers["page_table"][index]
    pages[...] = -1
    pages[: len(lane.pages)] = lane.pages
    for name, _ in SAMPLING_FIELDS:
        if name == "bias_count":
            buffers[name][index] = len(sampling.logit_bias)
        else:
            buffers[name][index] = getattr(sampling, name)
    stops = buffers["stop_token_ids"][index]
    stops[...] = -1
    stops[: len(sampling.stop_token_ids)] = sampling.stop_token_ids
    for entry, (token, value) in enumerate(sampling.logit_bias):
        buffers["bias_ids"][index, entry] = token
        buffers["bias_values"][index, entry] = value


def _load_round(frame: Frame, buffers: Buffers) -> None:
    lengths, proposals = buffers["query_lengths"], buffers.get("proposals")
    lengths[...] = 0
    for index, lane in enumerate(frame.lanes):
        lengths[index] = lane.query_length
    if proposals is None:
        return
    proposals[...] = 0
    for index, lane in enumerate(frame.lanes):
        proposals[index, : len(lane.copied_token_ids)] = lane.copied_token_ids


def _load_mixed(graph: GraphDescriptor, frame: Frame, buffers: Buffers) -> None:
    """Write both parts; the prompt's lane has no target rows of its own."""
    _load_round(frame, buffers)
    place = prompt_lane(graph, frame)
    buffers["prefill_row"][0] = place
    if place < 0:
        buffers["count"][0] = buffers["position"][0] = buffers["is_final_chunk"][0] = 0
    else:
        buffers["query_lengths"][place] = 0
        _load_prompt(graph, frame.lanes[place], buffers)


def _load_masks(graph: GraphDescriptor, frame: Frame, buffers: Buffers) -> None:
    """Write each lane's masks into the entries of its own rows; the words of others are not read.

    A stale mask beside an entry that is not masked changes nothing, so it is left there.
    """
    is_masked, table = buffers["is_masked"], buffers["masks"]
    is_masked[...] = 0
    for index, lane in enumerate(frame.lanes):
        if lane.masks is None:
            continue
        rows = (index, slice(len(lane.masks)))
        entries = rows if reports_bursts(graph) else slice(index, index + 1)
        is_masked[entries] = 1
        table[entries] = lane.masks


def _load_prompt(graph: GraphDescriptor, lane: FrameLane, buffers: Buffers) -> None:
    tokens = lane.prompt_token_ids
    assert tokens is not None
    buffers["token_ids"][: len(tokens)] = tokens
    buffers["token_ids"][len(tokens) :] = 0
    buffers["count"][0] = len(tokens)
    buffers["position"][0] = lane.position
    buffers["is_final_chunk"][0] = lane.is_final_chunk
    if graph.kind is GraphKind.SCORED_PREFILL:
        buffers["next_prompt_token_id"][0] = lane.next_prompt_token_id


def read_frame(graph: GraphDescriptor, frame: Frame, buffers: Buffers) -> tuple[LaneOutput, ...]:
    """Return the outputs of an executed frame, one per lane in its order."""
    return tuple(_read_lane(graph, index, lane, buffers) for index, lane in enumerate(frame.lanes))


def _read_lane(graph: GraphDescriptor, index: int, lane: FrameLane, buffers: Buffers) -> LaneOutput:
    if graph.kind is GraphKind.INITIALIZE:
        return LaneOutput()
    if graph.kind is GraphKind.TERMINAL:
        return LaneOutput(
            cached_tokens=int(buffers["cached_tokens"][index]),
            output_tokens=int(buffers["output_count"][index]),
        )
    if reports_bursts(graph):
        return _read_round(index, buffers)
    scores = _read_scores(lane, buffers) if graph.kind is GraphKind.SCORED_PREFILL else ()
    if not buffers["produced"][index]:
        return LaneOutput(prompt_logprobs=scores)
    token_scores = _read_report(index, buffers)
    return LaneOutput(
        tokens=(int(buffers["tokens"][index]),),
        terminated=bool(buffers["terminated"][index]),
        logprobs=() if token_scores is None else (token_scores,),
        prompt_logprobs=scores,
    )


def _read_round(index: int, buffers: Buffers) -> LaneOutput:
    """Return the accepted prefix of a lane and the token behind it."""
    count = int(buffers["produced"][index].sum())
    reports = [_read_report((index, place), buffers) for place in range(count)]
    return LaneOutput(
        tokens=tuple(buffers["tokens"][index, :count].tolist()),
        terminated=bool(count and buffers["terminated"][index, count - 1]),
        logprobs=tuple(report for report in reports if report is not None),
        offered=int(buffers["offered"][index]) if "offered" in buffers else 0,
    )


def read_sidecar(
    name: str, buffers: Buffers, row_count: int, draft_capacity: int
) -> Sidecar | None:
    """Return what an executed round tells of its prefixes by row, [1, rows, draft capacity].

    NaN where the round had nothing to say; None for a program without a buffer of that name.
    """
    if name not in buffers:
        return None
    table, rows = buffers[name], buffers["rows"]
    sidecar = np.full((1, row_count, draft_capacity), np.nan, np.float32)
    is_active = rows >= 0
    sidecar[0, rows[is_active], : table.shape[1]] = table[is_active]
    return sidecar


def _read_report(place: int | tuple[int, int], buffers: Buffers) -> TokenLogprobs | None:
    """Return the log-probabilities of one sampled token; None when the row reports none."""
    report = int(buffers["report_count"][place])
    if report < 0:
        return None
    return TokenLogprobs(
        logprob=float(buffers["logprobs"][place]),
        top_ids=tuple(buffers["top_ids"][place][:report].tolist()),
        top_logprobs=tuple(buffers["top_logprobs"][place][:report].tolist()),
    )


def _read_scores(lane: FrameLane, buffers: Buffers) -> tuple[TokenLogprobs, ...]:
    assert lane.prompt_token_ids is not None
    followed = len(lane.prompt_token_ids) - (lane.next_prompt_token_id < 0)
    report = max(int(buffers["report_count"][0]), 0)
    return tuple(
        TokenLogprobs(
            logprob=float(buffers["prompt_logprobs"][i]),
            top_ids=tuple(buffers["prompt_top_ids"][i, :report].tolist()),
            top_logprobs=tuple(buffers["prompt_top_logprobs"][i, :report].tolist()),
        )
        for i in range(followed)
    )
