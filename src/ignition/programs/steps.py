"""The program kinds as PyTorch steps over static tensors (docs/design/programs.md section 2).

A step is called directly by the eager programs and captured once by the CUDA programs, so it has
fixed shapes, never looks at a value on the host, and passes constants as arguments of kernels
(masked_fill): a constant that becomes a tensor would be a copy, which a capture refuses. What the
host knows anyway (is this chunk the last, how far does the context reach) comes in as arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from helios.engine.ports import MAX_TOP_LOGPROBS
from ignition.models.llama import LlamaDecoder, StepInputs, plan_blocks
from ignition.programs.buffers import SAMPLING_FIELDS
from ignition.programs.tensors import StateTensors
from ignition.sampling_torch import order_keys, token_of_key

Tensors = Mapping[str, Tensor]

_MOST_COUNTED: Final = 32_767
OUTPUTS_PER_ROW: Final = (
    "tokens",
    "produced",
    "terminated",
    "report_count",
    "logprobs",
    "top_ids",
    "top_logprobs",
    "last_logits",
    "is_masked",
    "masks",
)
"""Buffers with one entry per target row."""
_SCORE_ROWS: Final = 64
"""Rows whose logits exist at one time in scored prefill; bounds its workspace."""


class RowSampler(Protocol):
    """Chooses the next token of each row."""

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return int64 [B] tokens from float32 logits [B, V] and int64 rows [B]."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What every step of one model shares."""

    decoder: LlamaDecoder
    state: StateTensors
    sampler: RowSampler
    block_pages: int
    """Pages of one attention block."""


@torch.inference_mode()
def initialize_step(state: StateTensors, buffers: Tensors) -> None:
    """Install B rows (2.1)."""
    rows = state.rows_or_scratch(buffers["rows"])
    installed = ("page_table", "stop_token_ids", "bias_ids", "bias_values")
    for name in (*installed, *(name for name, _ in SAMPLING_FIELDS)):
        state.rows[name].index_copy_(0, rows, buffers[name])
    for name in ("pending_token", "output_count", "finished", "output_counts", "prompt_seen"):
        state.rows[name].index_fill_(0, rows, 0)
    state.rows["cached_tokens"].index_fill_(0, rows, 0)


@torch.inference_mode()
def terminal_step(state: StateTensors, buffers: Tensors) -> None:
    """Report and clear B rows (2.5)."""
    rows = state.rows_or_scratch(buffers["rows"])
    for name in ("cached_tokens", "output_count"):
        buffers[name].copy_(state.rows[name].index_select(0, rows))
    state.rows["page_table"].index_fill_(0, rows, -1)
    for name in ("cached_tokens", "output_count", "pending_token", "finished"):
        state.rows[name].index_fill_(0, rows, 0)


@torch.inference_mode()
def decode_step(
    context: StepContext, buffers: Tensors, *, block_count: int, with_logprobs: bool
) -> None:
    """Feed the pending token of B rows and sample the next one (2.4)."""
    state = context.state
    requested = state.rows_or_scratch(buffers["rows"])
    is_live = (buffers["rows"] >= 0) & (state.rows["finished"].index_select(0, requested) == 0)
    rows = requested.masked_fill(~is_live, state.scratch_row)
    positions = state.rows["cached_tokens"].index_select(0, rows).to(torch.int64)
    # The scratch row's own counters move with every idle lane, so they must never be positions.
    positions = positions.masked_fill(~is_live, 0)[:, None]

    tokens = state.rows["pending_token"].index_select(0, rows).to(torch.int64)
    hidden = _run_decoder(
        context,
        rows=rows,
        tokens=tokens[:, None],
        positions=positions,
        is_used=is_live[:, None],
        block_count=block_count,
    )
    state.rows["cached_tokens"].index_copy_(0, rows, (positions[:, 0] + 1).to(torch.int32))
    _sample_and_commit(
        context,
        buffers,
        rows=rows,
        is_live=is_live,
        hidden=hidden,
        with_logprobs=with_logprobs,
    )


@torch.inference_mode()
def round_step(
    context: StepContext,
    buffers: Tensors,
    *,
    block_count: int,
    with_logprobs: bool,
    packed_rows: int | None = None,
) -> None:
    """Verify the proposals behind the pending token of B rows, commit what is accepted (2.6).

    `packed_rows` are the target rows of a ragged program (2.8); None: W for every lane.
    """
    state = context.state
    requested = state.rows_or_scratch(buffers["rows"])
    is_live = (buffers["rows"] >= 0) & (state.rows["finished"].index_select(0, requested) == 0)
    lanes = fed_lanes(
        context, buffers, is_live=is_live, block_count=block_count, packed_rows=packed_rows
    )
    hidden = context.decoder.hidden(lanes.inputs, state.keys, state.values)
    logits = lanes.by_lane(context.decoder.logits(hidden))
    accept_proposals(
        context, buffers, rows=lanes.rows, is_live=is_live, lengths=lanes.lengths, logits=logits
    )
    commit_lanes(context, buffers, lanes)
    if with_logprobs:
        report_targets(buffers, logits)


class FedLanes(NamedTuple):
    """B lanes that generate, W target rows each, as the decoder takes them."""

    rows: Tensor
    """int64 [B], idle lanes on the scratch row."""
    is_live: Tensor
    lengths: Tensor
    """Target rows of each lane; zero for idle ones."""
    first: Tensor
    """int64 [B] position of the pending token."""
    inputs: StepInputs
    places: Tensor
    """int64 [B, W]: which fed row each target row is; any row for those past a lane's length."""

    @property
    def shape(self) -> tuple[int, int]:
        """B and W."""
        return self.places.shape[0], self.places.shape[1]

    def by_lane(self, fed: Tensor) -> Tensor:
        """Return what stands by fed row, [rows, n], by lane and target row, [B, W, n]."""
        if fed.shape[0] == self.places.numel():
            return fed.view(*self.shape, -1)
        return fed.index_select(0, self.places.view(-1)).view(*self.shape, -1)


class _Layout(NamedTuple):
    """Which target rows are fed, in which order; columns [fed rows]."""

    lane: Tensor
    place: Tensor
    is_used: Tensor
    places: Tensor


def _layout(lengths: Tensor, width: int, packed_rows: int | None) -> _Layout:
    """Place the first int64 `lengths` [B] of every lane's W rows among all W * B, or among P.

    In a ragged program the used rows stand together, lane after lane.
    """
    count = lengths.shape[0]
    lanes = torch.arange(count, device=lengths.device)
    index = torch.arange(width, device=lengths.device)
    if packed_rows is None or packed_rows == count * width:
        place = index.repeat(count)
        lane = lanes.repeat_interleave(width)
        is_used = place < lengths.index_select(0, lane)
        return _Layout(lane, place, is_used, lanes[:, None] * width + index)
    ends = lengths.cumsum(0)
    starts = ends - lengths
    row = torch.arange(packed_rows, device=lengths.device)
    lane = torch.searchsorted(ends, row, right=True).clamp(max=count - 1)
    place = (row - starts.index_select(0, lane)).clamp(max=width - 1)
    places = (starts[:, None] + index).clamp(max=packed_rows - 1)
    return _Layout(lane, place, row < ends[-1:], places)


def fed_lanes(
    context: StepContext,
    buffers: Tensors,
    *,
    is_live: Tensor,
    block_count: int,
    packed_rows: int | None = None,
) -> FedLanes:
    """Lay out the pending token and the proposals of every live lane; W as outputs [B, W] have."""
    state, width = context.state, buffers["tokens"].shape[1]
    requested = state.rows_or_scratch(buffers["rows"])
    rows = requested.masked_fill(~is_live, state.scratch_row)
    # Where the program deals its rows, what the host gave are ceilings.
    given = buffers["offered"] if "offered" in buffers else buffers["query_lengths"]
    lengths = given.masked_fill(~is_live, 0)
    first = state.rows["cached_tokens"].index_select(0, rows).to(torch.int64)
    first = first.masked_fill(~is_live, 0)

    pending = state.rows["pending_token"].index_select(0, rows)[:, None]
    fed = torch.cat([pending, buffers["proposals"][:, : width - 1]], dim=1).to(torch.int64)
    lane, place, is_used, places = _layout(lengths.to(torch.int64), width, packed_rows)
    # Every target row is a lane of its own, so its bits are those of a decode step: products of
    # attention with another number of queries would round otherwise. A layer appends the keys of
    # all rows before any of them attends.
    inputs = step_inputs(
        context,
        rows=rows.index_select(0, lane),
        tokens=fed[lane, place].masked_fill(~is_used, 0)[:, None],
        positions=(first.index_select(0, lane) + place).masked_fill(~is_used, 0)[:, None],
        is_used=is_used[:, None],
        block_count=block_count,
    )
    return FedLanes(rows, is_live, lengths, first, inputs, places)


def commit_lanes(context: StepContext, buffers: Tensors, lanes: FedLanes) -> None:
    """Advance the cache of every live lane by what it produced."""
    produced = buffers["produced"].sum(dim=1)
    end = torch.where(lanes.is_live, lanes.first + produced, 0).to(torch.int32)
    context.state.rows["cached_tokens"].index_copy_(0, lanes.rows, end)


def report_targets(buffers: Tensors, logits: Tensor) -> None:
    """Report log-probabilities of every target row; logits are [B, W, V]."""
    for place in range(logits.shape[1]):
        _report_into(_place(buffers, place), logits[:, place])


def accept_proposals(
    context: StepContext,
    buffers: Tensors,
    *,
    rows: Tensor,
    is_live: Tensor,
    lengths: Tensor,
    logits: Tensor,
) -> None:
    """Draw row after row from the target's own distribution until a draw differs (3.6)."""
    proposals, width = buffers["proposals"], buffers["tokens"].shape[1]
    is_open = is_live
    for place in range(width):
        open_rows = rows.masked_fill(~is_open, context.state.scratch_row)
        tokens, is_stop = _commit_row(
            context,
            _place(buffers, place),
            rows=open_rows,
            is_live=is_open,
            logits=logits[:, place],
        )
        if place + 1 < width:
            is_open = is_open & ~is_stop & (place + 1 < lengths) & (proposals[:, place] == tokens)


def _place(buffers: Tensors, place: int) -> dict[str, Tensor]:
    """Return views of one target row's entries of every lane."""
    return {name: buffers[name][:, place] for name in OUTPUTS_PER_ROW}


@torch.inference_mode()
def prefill_step(
    context: StepContext,
    buffers: Tensors,
    *,
    block_count: int,
    is_final_chunk: bool,
    with_scores: bool,
    with_logprobs: bool,
) -> None:
    """Consume up to C prompt tokens of one row (2.2), scoring them when asked to (2.3)."""
    state = context.state
    rows = state.rows_or_scratch(buffers["rows"])
    inputs = prompt_inputs(context, buffers, rows=rows, block_count=block_count)
    hidden = context.decoder.hidden(inputs, state.keys, state.values)
    commit_prompt(context, buffers, rows=rows)

    if with_scores:
        _score_prompt(context, buffers, hidden)
        buffers["report_count"].copy_(state.rows["top_logprobs"].index_select(0, rows))
    if is_final_chunk:
        last = last_consumed(buffers, hidden)
        _sample_and_commit(
            context,
            buffers,
            rows=rows,
            is_live=buffers["rows"] >= 0,
            hidden=last,
            with_logprobs=with_logprobs,
        )
    else:
        buffers["produced"].zero_()


def prompt_inputs(
    context: StepContext, buffers: Tensors, *, rows: Tensor, block_count: int
) -> StepInputs:
    """Lay out the chunk of one row, int64 [1]; an idle program's rows go to the scratch row."""
    tokens, index = _padded_prompt(buffers["token_ids"], context.decoder.tiling.multiple)
    is_used = (index < buffers["count"]) & (rows != context.state.scratch_row)
    positions = (buffers["position"] + index).masked_fill(~is_used, 0)
    return step_inputs(
        context,
        rows=rows,
        tokens=tokens[None],
        positions=positions[None],
        is_used=is_used[None],
        block_count=block_count,
    )


def commit_prompt(context: StepContext, buffers: Tensors, *, rows: Tensor) -> None:
    """Mark the consumed tokens of one row, int64 [1], as seen, and advance its cache."""
    state, tokens = context.state, buffers["token_ids"].to(torch.int64)
    index = torch.arange(tokens.shape[0], device=tokens.device)
    is_used = index < buffers["count"]
    seen_rows = rows.expand_as(tokens).masked_fill(~is_used, state.scratch_row)
    one = torch.ones((), dtype=torch.uint8, device=tokens.device)
    state.rows["prompt_seen"].index_put_((seen_rows, tokens), one)
    end = buffers["position"] + buffers["count"]
    state.rows["cached_tokens"].index_copy_(0, rows, end)


def last_consumed(buffers: Tensors, hidden: Tensor) -> Tensor:
    """Return the hidden row [1, hidden size] of the last token of a chunk."""
    return hidden.index_select(0, (buffers["count"] - 1).clamp(min=0).to(torch.int64))


def _padded_prompt(token_ids: Tensor, multiple: int) -> tuple[Tensor, Tensor]:
    """Return int64 tokens and their index, padded to the rows that products are computed in."""
    padding = -token_ids.shape[0] % multiple
    padded = torch.nn.functional.pad(token_ids, (0, padding)).to(torch.int64)
    return padded, torch.arange(padded.shape[0], device=padded.device)


def _run_decoder(
    context: StepContext,
    *,
    rows: Tensor,
    tokens: Tensor,
    positions: Tensor,
    is_used: Tensor,
    block_count: int,
) -> Tensor:
    """Return hidden rows [B * W, hidden] of int64 tokens and positions [B, W]."""
    inputs = step_inputs(
        context,
        rows=rows,
        tokens=tokens,
        positions=positions,
        is_used=is_used,
        block_count=block_count,
    )
    return context.decoder.hidden(inputs, context.state.keys, context.state.values)


def step_inputs(
    context: StepContext,
    *,
    rows: Tensor,
    tokens: Tensor,
    positions: Tensor,
    is_used: Tensor,
    block_count: int,
) -> StepInputs:
    """Find the pages of int64 tokens and positions [B, W]; unused ones go to the scratch page."""
    state, page_size = context.state, context.state.served.page_size_tokens
    table = state.rows["page_table"].index_select(0, rows).to(torch.int64)
    table = table.masked_fill(table < 0, state.scratch_page)
    pages = table.gather(1, positions // page_size)
    slots = pages * page_size + positions % page_size
    slots = slots.masked_fill(~is_used, state.scratch_page * page_size)

    blocks = plan_blocks(
        table,
        positions,
        page_size=page_size,
        block_pages=context.block_pages,
        block_count=block_count,
    )
    return StepInputs(
        token_ids=tokens, positions=positions, write_slots=slots.reshape(-1), blocks=blocks
    )


def _sample_and_commit(
    context: StepContext,
    buffers: Tensors,
    *,
    rows: Tensor,
    is_live: Tensor,
    hidden: Tensor,
    with_logprobs: bool,
) -> None:
    """Sample one token per row (section 3) and commit it; idle rows commit to the scratch row."""
    logits = context.decoder.logits(hidden)
    _commit_row(context, buffers, rows=rows, is_live=is_live, logits=logits)
    if with_logprobs:
        _report_into(buffers, logits)


def _commit_row(
    context: StepContext, buffers: Tensors, *, rows: Tensor, is_live: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample and commit one token per row of logits [B, V]; return tokens and which of them stop.

    `buffers` have one entry per lane.
    """
    allowed = allow_only(logits, buffers["is_masked"], buffers["masks"])
    tokens = context.sampler(allowed, rows)
    state = context.state.rows
    state["pending_token"].index_copy_(0, rows, tokens.to(torch.int32))
    counted = state["output_counts"][rows, tokens].clamp(max=_MOST_COUNTED - 1) + 1
    state["output_counts"].index_put_((rows, tokens), counted)
    count = state["output_count"].index_select(0, rows) + 1
    state["output_count"].index_copy_(0, rows, count)
    stops = state["stop_token_ids"].index_select(0, rows)
    is_stop = (stops == tokens[:, None]).any(dim=1)
    state["finished"].index_copy_(0, rows, is_stop.to(torch.uint8))

    buffers["last_logits"].copy_(logits)
    buffers["tokens"].copy_(tokens)
    buffers["produced"].copy_(is_live)
    buffers["terminated"].copy_(is_stop)
    buffers["report_count"].copy_(state["top_logprobs"].index_select(0, rows))
    return tokens, is_stop


def allow_only(logits: Tensor, is_masked: Tensor, masks: Tensor) -> Tensor:
    """Return logits [B, V] with minus infinity for what the masks of masked rows forbid (3.7)."""
    bit = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = ((masks[:, :, None] >> bit) & 1).flatten(1)[:, : logits.shape[1]]
    is_free = is_masked[:, None] == 0
    return logits.masked_fill((is_allowed == 0) & ~is_free, -torch.inf)


def _report_into(buffers: Tensors, logits: Tensor) -> None:
    chosen, top_ids, top = _report(logits, buffers["tokens"].to(torch.int64))
    buffers["logprobs"].copy_(chosen)
    buffers["top_ids"].copy_(top_ids)
    buffers["top_logprobs"].copy_(top)


def _score_prompt(context: StepContext, buffers: Tensors, hidden: Tensor) -> None:
    """Score the prompt token that follows each consumed one, a few rows of logits at a time."""
    capacity = buffers["token_ids"].shape[0]
    following = torch.roll(buffers["token_ids"].to(torch.int64), -1)
    index = torch.arange(capacity, device=following.device)
    is_last = index == buffers["count"] - 1
    following = torch.where(is_last, buffers["next_prompt_token_id"].to(torch.int64), following)
    following = following.clamp(min=0)
    for start in range(0, capacity, _SCORE_ROWS):
        part = slice(start, min(start + _SCORE_ROWS, capacity))
        chosen, top_ids, top = _report(context.decoder.logits(hidden[part]), following[part])
        buffers["prompt_logprobs"][part].copy_(chosen)
        buffers["prompt_top_ids"][part].copy_(top_ids)
        buffers["prompt_top_logprobs"][part].copy_(top)


def _report(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities [N] of tokens, and ids and log-probabilities [N, most] of the top.

    Taken from the raw distribution with float64 sums. A vocabulary smaller than the report repeats
    its least likely token, which no reader asks for.
    """
    wide = logits.to(torch.float64)
    normalizer = torch.logsumexp(wide, dim=-1, keepdim=True)
    most = min(MAX_TOP_LOGPROBS, logits.shape[1])
    top_ids = token_of_key(order_keys(logits).topk(most, dim=-1).values)
    if most < MAX_TOP_LOGPROBS:
        filler = top_ids[:, -1:].expand(-1, MAX_TOP_LOGPROBS - most)
        top_ids = torch.cat([top_ids, filler], dim=-1)
    chosen = wide.gather(1, tokens[:, None])[:, 0] - normalizer[:, 0]
    return chosen, top_ids, wide.gather(1, top_ids) - normalizer
