"""Which mixed programs are prepared: the bounds that the source document sets (`mixed_shapes`).

Every batch bucket of at least two rows gets every prompt capacity at width one, and each wider
width within the envelope of target rows gets one balanced prompt capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from helios.scheduler import (
    COMPLETION_TOKENS,
    PROMPT_ALIGNMENT_TOKENS,
    GraphDescriptor,
    GraphKind,
    ProposalSource,
    RowAllocation,
)
from ignition.round_shapes import Depths, confidence_width, round_widths


def mixed_prompts(prefill_capacities: Iterable[int]) -> tuple[int, ...]:
    """Return the prefill capacities that a mixed program may have, ascending."""
    return tuple(c for c in sorted(prefill_capacities) if c % PROMPT_ALIGNMENT_TOKENS == 0)


def mixed_batches(buckets: Iterable[int]) -> tuple[int, ...]:
    """Return the request buckets that a mixed program may have: powers of two from two."""
    return tuple(bucket for bucket in buckets if bucket >= 2 and not bucket & (bucket - 1))


def balanced_prompt(prompts: Sequence[int]) -> int:
    """Return the capacity that minimises max(P / P_min, P_max / P), the smaller of equals."""
    shortest, longest = min(prompts), max(prompts)
    return min(prompts, key=lambda prompt: (max(prompt / shortest, longest / prompt), prompt))


def mixed_graphs(
    batches: Iterable[int], prompts: Sequence[int], depths: Depths, *, token_capacity: int
) -> Iterator[GraphDescriptor]:
    """Yield the programs of the ordinary mode, and with drafts those of the speculative modes."""
    for batch in batches:
        for prompt in prompts:
            yield _mixed(batch, prompt)
            if depths:
                yield _mixed(batch, prompt, speculates=True)
        for source, draft_tokens in depths.items():
            for width in round_widths(draft_tokens):
                if width <= COMPLETION_TOKENS and batch * width <= token_capacity:
                    balanced = balanced_prompt(prompts)
                    yield _mixed(batch, balanced, width, source=source, speculates=True)


def _mixed(
    batch: int,
    prompt: int,
    width: int = 1,
    *,
    source: ProposalSource = ProposalSource.NONE,
    speculates: bool = False,
) -> GraphDescriptor:
    return GraphDescriptor(
        kind=GraphKind.MIXED,
        batch_capacity=batch,
        token_capacity=width,
        proposal_depth=width - 1,
        prefill_capacity=prompt,
        allocation=RowAllocation.HOST if width > 1 else RowAllocation.NONE,
        source=source,
        speculation_enabled=speculates,
        confidence_width=confidence_width(source, width),
    )
