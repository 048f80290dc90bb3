"""The mixed step: one prompt row's chunk beside rows that generate (docs/design/programs.md 2.7).

Products see all rows at once, attention each group by itself, with the very shapes that a prefill
and a decode step have: that is why a row's bits are those of its separate step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ignition.programs.steps import (
    OUTPUTS_PER_ROW,
    FedLanes,
    StepContext,
    Tensors,
    accept_proposals,
    commit_lanes,
    commit_prompt,
    fed_lanes,
    last_consumed,
    prompt_inputs,
    report_targets,
)


@torch.inference_mode()
def mixed_step(
    context: StepContext,
    buffers: Tensors,
    *,
    block_count: int,
    has_prompt: bool,
    is_final_chunk: bool,
    with_logprobs: bool,
) -> None:
    """Consume up to C prompt tokens of one lane and generate in all others (2.7)."""
    state, outputs = context.state, _by_target_row(buffers)
    requested = state.rows_or_scratch(buffers["rows"])
    lane = torch.arange(requested.shape[0], device=requested.device)
    is_prompt = lane == buffers["prefill_row"]
    is_active = (buffers["rows"] >= 0) & (state.rows["finished"].index_select(0, requested) == 0)
    lanes = fed_lanes(context, outputs, is_live=is_active & ~is_prompt, block_count=block_count)
    if not has_prompt:
        hidden = context.decoder.hidden(lanes.inputs, state.keys, state.values)
        _draw(context, outputs, lanes, hidden, with_logprobs=with_logprobs)
        return

    prompt_row = requested.index_select(0, buffers["prefill_row"].to(torch.int64))
    prompt = prompt_inputs(context, buffers, rows=prompt_row, block_count=block_count)
    hidden = context.decoder.hidden_together((prompt, lanes.inputs), state.keys, state.values)
    consumed, targets = torch.split(hidden, [prompt.width, lanes.inputs.token_ids.shape[0]])
    commit_prompt(context, buffers, rows=prompt_row)
    if is_final_chunk:
        # The prompt's own lane has been idle so far; the first of its target rows draws for it.
        place = buffers["prefill_row"].to(torch.int64) * lanes.shape[1]
        targets = targets.index_copy(0, place, last_consumed(buffers, consumed))
        drawing = lanes._replace(
            rows=torch.where(is_prompt, requested, lanes.rows),
            is_live=lanes.is_live | is_prompt,
            lengths=torch.where(is_prompt, 1, lanes.lengths),
        )
        _draw(context, outputs, drawing, targets, with_logprobs=with_logprobs, advancing=lanes)
    else:
        _draw(context, outputs, lanes, targets, with_logprobs=with_logprobs)


def _draw(
    context: StepContext,
    outputs: Tensors,
    lanes: FedLanes,
    hidden: Tensor,
    *,
    with_logprobs: bool,
    advancing: FedLanes | None = None,
) -> None:
    """Draw for every live lane; `advancing` are those whose cache grows by what they produced."""
    logits = lanes.by_lane(context.decoder.logits(hidden))
    accept_proposals(
        context,
        outputs,
        rows=lanes.rows,
        is_live=lanes.is_live,
        lengths=lanes.lengths,
        logits=logits,
    )
    commit_lanes(context, outputs, advancing or lanes)
    if with_logprobs:
        report_targets(outputs, logits)


def _by_target_row(buffers: Tensors) -> dict[str, Tensor]:
    """Return the buffers with outputs [B, W], also where W is one and has no axis."""
    views = dict(buffers)
    if buffers["tokens"].dim() == 1:
        for name in OUTPUTS_PER_ROW:
            views[name] = buffers[name].unsqueeze(1)
    views.setdefault("proposals", buffers["rows"].new_zeros((buffers["rows"].shape[0], 0)))
    return views
