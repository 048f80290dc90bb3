"""From a checked request to what the engine is asked: one Submit per choice.

Choice 0 of a prompt uses the request's seed itself and choice i one derived from it, so that a
choice can be repeated alone and no prompt of a list depends on its neighbours.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from helios.engine.messages import GrammarMessage, Ready, SamplingMessage, Submit
from helios.engine.ports import MAX_STOP_TOKENS
from helios.server.errors import invalid
from helios.server.schema import SamplingFields

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derived_seed(seed: int, choice: int) -> int:
    """Return the seed of a choice, unsigned 64-bit (splitmix64 of seed and choice)."""
    if choice == 0:
        return seed & _MASK
    mixed = (seed + _GOLDEN * choice) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def build_submits(
    fields: SamplingFields,
    prompts: Sequence[list[int]],
    *,
    call_id: str,
    engine: Ready,
    max_output_tokens: int,
    top_logprobs: int,
    scored: bool,
    grammar: GrammarMessage | None = None,
) -> list[Submit]:
    """Return the submits, choice i of prompt p at p * n + i.

    `top_logprobs` is -1 for none. The fields were checked by `check_tokens`.
    """
    choices = fields.n or 1
    submits: list[Submit] = []
    for prompt in prompts:
        seed = secrets.randbits(64) if fields.seed is None else fields.seed
        limit = min(max_output_tokens, engine.context_length_tokens - len(prompt))
        for choice in range(choices):
            submits.append(
                Submit(
                    request_id=f"{call_id}-{len(submits)}",
                    prompt_token_ids=prompt,
                    max_output_tokens=limit,
                    sampling=_sampling(fields, engine, derived_seed(seed, choice), top_logprobs),
                    stop=fields.stop,
                    include_stop=bool(fields.include_stop_str_in_output),
                    ignore_eos=bool(fields.ignore_eos),
                    scored=scored,
                    weight=1.0 if fields.priority is None else fields.priority,
                    tenant=fields.user or "",
                    grammar=grammar,
                )
            )
    return submits


def _sampling(
    fields: SamplingFields, engine: Ready, seed: int, top_logprobs: int
) -> SamplingMessage:
    top_k = fields.top_k or 0
    return SamplingMessage(
        temperature=_or(fields.temperature, 1.0),
        top_p=_or(fields.top_p, 1.0),
        top_k=0 if top_k < 0 or top_k >= engine.vocabulary_size else top_k,
        min_p=_or(fields.min_p, 0.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        seed=seed,
        logit_bias=fields.logit_bias,
        stop_token_ids=tuple(dict.fromkeys(fields.stop_token_ids or ())),
        top_logprobs=top_logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def check_tokens(fields: SamplingFields, engine: Ready, eos_token_ids: Sequence[int]) -> None:
    """Check token ids against the model. Raises ApiError (400) naming the field.

    A row holds a fixed number of stop tokens, and the model's own end tokens are among them.
    """
    for token_id, _ in fields.logit_bias:
        _check_token(token_id, engine, "logit_bias")
    for token_id in fields.stop_token_ids or ():
        _check_token(token_id, engine, "stop_token_ids")
    limit = MAX_STOP_TOKENS - len(eos_token_ids)
    if len(fields.stop_token_ids or ()) > limit:
        raise invalid(
            f"stop_token_ids has {len(fields.stop_token_ids or ())} tokens, more than the limit of "
            f"{limit} (beside the model's own end tokens)",
            "stop_token_ids",
        )


def check_prompt_tokens(prompts: Sequence[Sequence[int]], engine: Ready) -> None:
    """Check token ids that came as a prompt. Raises ApiError (400)."""
    for prompt in prompts:
        if min(prompt) < 0 or max(prompt) >= engine.vocabulary_size:
            _check_token(min(prompt), engine, "prompt")
            _check_token(max(prompt), engine, "prompt")


def _check_token(token_id: int, engine: Ready, param: str) -> None:
    if not 0 <= token_id < engine.vocabulary_size:
        raise invalid(
            f"{param}: {str(token_id)[:30]} is not a token id; the model has ids 0 to "
            f"{engine.vocabulary_size - 1}",
            param,
        )
