"""Admission rules of the engine: a Submit becomes an accepted request, or a Rejected with a reason.

Every number that execution relies on later is fixed here, once: prompt length, output limit and
the row's stop tokens. Nothing is changed by a rejection.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from helios.engine.messages import SamplingMessage, Submit
from helios.engine.ports import (
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS,
    SamplingParams,
)
from helios.engine.stops import StopSet
from helios.scheduler import InvalidRequestError, RequestSpec, ResourceConfig


class InadmissibleError(Exception):
    """The request breaks a rule; `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """What a request is checked against."""

    resources: ResourceConfig
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens; they stop every request that does not ignore them."""

    @property
    def longest_tokens(self) -> int:
        """Most tokens of one request: the context, or all pages where they hold less."""
        resources = self.resources
        pool_tokens = resources.page_count * resources.page_size_tokens
        return min(resources.context_length_tokens, pool_tokens)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A checked request: what the scheduler, the device and the text side need of it."""

    spec: RequestSpec
    prompt: npt.NDArray[np.int32]
    """[prompt_tokens]."""
    sampling: SamplingParams
    stops: StopSet | None


def accept(request: Submit, rules: AdmissionRules) -> Accepted:
    """Check a request against the rules. Raises InadmissibleError, naming the field."""
    prompt = _prompt_of(request, rules)
    limit = _output_limit_of(request, rules, prompt_tokens=len(prompt))
    sampling = _sampling_of(request, rules)
    stops = _stops_of(request)
    try:
        spec = RequestSpec(
            prompt_tokens=len(prompt),
            max_output_tokens=limit,
            scored=request.scored,
            # A stop string is recognised on the host, so no frame may run ahead of it.
            needs_feedback=stops is not None,
            weight=request.weight,
            tenant=request.tenant,
        )
    except InvalidRequestError as error:
        raise InadmissibleError("weight", str(error)) from error
    return Accepted(spec=spec, prompt=prompt, sampling=sampling, stops=stops)


def _prompt_of(request: Submit, rules: AdmissionRules) -> npt.NDArray[np.int32]:
    """Return the prompt as an array after checking its length and every id."""
    ids = request.prompt_token_ids
    longest = rules.longest_tokens
    if not ids:
        raise InadmissibleError("prompt", "the prompt is empty")
    if len(ids) > longest:
        raise InadmissibleError(
            "prompt", f"the prompt has {len(ids)} tokens; the context holds {longest}"
        )
    if min(ids) < 0 or max(ids) >= rules.vocabulary_size:
        raise InadmissibleError(
            "prompt", f"prompt token ids must be 0 to {rules.vocabulary_size - 1}"
        )
    return np.asarray(ids, dtype=np.int32)


def _output_limit_of(request: Submit, rules: AdmissionRules, *, prompt_tokens: int) -> int:
    """Return the output limit, cut to what is left of the context."""
    least = 0 if request.scored else 1
    if request.max_output_tokens < least:
        raise InadmissibleError(
            "max_tokens", f"max_tokens must be at least {least}, not {request.max_output_tokens}"
        )
    room = rules.longest_tokens - prompt_tokens
    if room < least:
        raise InadmissibleError(
            "prompt",
            f"the prompt has {prompt_tokens} tokens; the context holds {rules.longest_tokens}, "
            "so none is left for an answer",
        )
    return min(request.max_output_tokens, room)


def _stops_of(request: Submit) -> StopSet | None:
    """Return the indexed stop strings, or None when there are none."""
    if not request.stop:
        return None
    try:
        return StopSet.of(request.stop)
    except ValueError as error:
        raise InadmissibleError("stop", str(error)) from error


def _sampling_of(request: Submit, rules: AdmissionRules) -> SamplingParams:
    """Return the row's sampling parameters with its stop tokens in place."""
    sampling = request.sampling
    _check_ranges(sampling)
    _check_token_ids(sampling, rules.vocabulary_size)
    ends = () if request.ignore_eos else rules.eos_token_ids
    stop_token_ids = tuple(dict.fromkeys((*ends, *sampling.stop_token_ids)))
    if len(stop_token_ids) > MAX_STOP_TOKENS:
        raise InadmissibleError(
            "stop_token_ids",
            f"at most {MAX_STOP_TOKENS} stop tokens fit a row, {len(ends)} of them the model's own",
        )
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        logit_bias=sampling.logit_bias,
        stop_token_ids=stop_token_ids,
        top_logprobs=sampling.top_logprobs,
    )


def _check_ranges(sampling: SamplingMessage) -> None:
    """Raise InadmissibleError for the first sampling field that is out of its range."""
    infinity = math.inf
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("temperature", sampling.temperature, 0.0, infinity),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("top_k", sampling.top_k, 0, 2**31 - 1),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("presence_penalty", sampling.presence_penalty, -infinity, infinity),
        ("frequency_penalty", sampling.frequency_penalty, -infinity, infinity),
        ("repetition_penalty", sampling.repetition_penalty, 0.0, infinity),
        ("seed", sampling.seed, 0, 2**64 - 1),
        ("top_logprobs", sampling.top_logprobs, -1, MAX_TOP_LOGPROBS),
    )
    for name, value, low, high in ranges:
        if isinstance(value, float) and not math.isfinite(value):
            raise InadmissibleError(name, f"{name} must be finite, not {value}")
        if not low <= value <= high:
            raise InadmissibleError(name, f"{name} must be {low} to {high}, not {value}")
    if sampling.repetition_penalty == 0:
        raise InadmissibleError("repetition_penalty", "repetition_penalty must be above 0")


def _check_token_ids(sampling: SamplingMessage, vocabulary_size: int) -> None:
    """Raise InadmissibleError for a token id outside the vocabulary or too many biases."""
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise InadmissibleError(
            "logit_bias", f"logit_bias has {len(sampling.logit_bias)} entries; {MAX_LOGIT_BIAS} fit"
        )
    for token_id, bias in sampling.logit_bias:
        if not 0 <= token_id < vocabulary_size or not math.isfinite(bias):
            raise InadmissibleError(
                "logit_bias", f"logit_bias entry {token_id}: {bias} is not a known token and number"
            )
    for token_id in sampling.stop_token_ids:
        if not 0 <= token_id < vocabulary_size:
            raise InadmissibleError("stop_token_ids", f"stop token {token_id} is not in the model")
