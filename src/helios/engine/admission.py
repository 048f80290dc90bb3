"""Admission rules of the engine: a Submit becomes an accepted request, or a Rejected with a reason.

Every number that execution relies on later is fixed here, once: prompt length, output limit and
the row's stop tokens. Nothing is changed by a rejection.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from helios.engine.endpoints import PrefixHash, prefixes_of
from helios.engine.grammar import GrammarError, GrammarFactory, OutputGrammar
from helios.engine.messages import SamplingMessage, Submit
from helios.engine.ports import (
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS,
    SamplingParams,
)
from helios.engine.stops import StopSet
from helios.scheduler import (
    Endpoint,
    ImageSpan,
    InvalidRequestError,
    RequestSpec,
    ResourceConfig,
)

_SPEC_FIELDS = ("images", "boundaries", "width_limit", "tenant", "weight")
"""Fields of RequestSpec that a Submit sets and the spec itself checks; its message names them."""


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
    grammar_learned_limit: int = 0
    """Most target rows of a request with a grammar in rounds whose programs propose by themselves;
    zero: any. One where there are such: the host knows no mask behind a proposal that it has not
    seen. Copies it has seen."""

    @property
    def longest_tokens(self) -> int:
        """Most tokens of one request: the context, or all pages where they hold less."""
        resources = self.resources
        pool_tokens = resources.page_count * resources.page_size_tokens
        return min(resources.context_length_tokens, pool_tokens)

    @property
    def keeps_states(self) -> bool:
        """Whether states are kept at all, so that prompts need keys."""
        return bool(self.resources.snapshot_rows) or self.resources.page_prefixes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A checked request: what the scheduler, the device and the text side need of it."""

    spec: RequestSpec
    prompt: npt.NDArray[np.int32]
    """[prompt_tokens]."""
    sampling: SamplingParams
    stops: StopSet | None
    prefix: PrefixHash | None = None
    """Hash of the prompt, where the state at the answer's end may be kept."""
    keeps_output: bool = False
    """Its output token ids are needed later: for a replay, or for the key of its end."""


def accept(request: Submit, rules: AdmissionRules) -> Accepted:
    """Check a request against the rules. Raises InadmissibleError, naming the field."""
    prompt = _prompt_of(request, rules)
    limit = _output_limit_of(request, rules, prompt_tokens=len(prompt))
    sampling = _sampling_of(request, rules)
    stops = _stops_of(request)
    endpoints, prefix = _prefixes_of(request, rules, prompt)
    keeps_terminal = request.keep_terminal and rules.keeps_states
    return Accepted(
        spec=_spec_of(
            request,
            prompt_tokens=len(prompt),
            max_output_tokens=limit,
            # A stop string is recognised on the host, so no frame may run ahead of the token that
            # may complete it. A mask is made behind that token wherever it becomes known.
            needs_feedback=stops is not None,
            endpoints=endpoints,
            learned_width_limit=0 if request.grammar is None else rules.grammar_learned_limit,
        ),
        prompt=prompt,
        sampling=sampling,
        stops=stops,
        prefix=prefix if keeps_terminal else None,
        keeps_output=rules.resources.page_growth or keeps_terminal,
    )


def _spec_of(
    request: Submit,
    *,
    prompt_tokens: int,
    max_output_tokens: int,
    needs_feedback: bool,
    endpoints: tuple[Endpoint, ...],
    learned_width_limit: int,
) -> RequestSpec:
    """Return what the scheduler is asked; what it checks itself is left to it."""
    try:
        return RequestSpec(
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            scored=request.scored,
            needs_feedback=needs_feedback,
            weight=request.weight,
            tenant=request.tenant,
            width_limit=request.width_limit,
            learned_width_limit=learned_width_limit,
            images=tuple(
                ImageSpan(image.start, image.tokens, image.features) for image in request.images
            ),
            boundaries=tuple(request.boundaries),
            endpoints=endpoints,
        )
    except InvalidRequestError as error:
        message = str(error)
        param = next((name for name in _SPEC_FIELDS if message.startswith(name)), "prompt")
        raise InadmissibleError(param, message) from error


def _prefixes_of(
    request: Submit, rules: AdmissionRules, prompt: npt.NDArray[np.int32]
) -> tuple[tuple[Endpoint, ...], PrefixHash | None]:
    """Return the endpoints with their keys and the prompt's hash; none where nothing is kept."""
    _check_ends(request.endpoints, len(prompt))
    if not rules.keeps_states:
        return (), None
    for index, image in enumerate(request.images):
        if not image.digest:
            raise InadmissibleError("images", f"images[{index}] needs the digest of its content")
    return prefixes_of(prompt, request.endpoints, request.images)


def _check_ends(ends: Sequence[int], prompt_tokens: int) -> None:
    """Raise InadmissibleError unless message ends rise and lie in the prompt."""
    behind = 0
    for index, end in enumerate(ends):
        if not behind < end <= prompt_tokens:
            raise InadmissibleError(
                "endpoints",
                f"endpoints[{index}] is {end}; it must be {behind + 1} to {prompt_tokens}, "
                "above the one before and within the prompt",
            )
        behind = end


def _prompt_of(request: Submit, rules: AdmissionRules) -> npt.NDArray[np.int32]:
    """Return the prompt as an array after checking its length and every id."""
    ids = request.prompt_token_ids
    longest = rules.longest_tokens
    if not len(ids):
        raise InadmissibleError("prompt", "the prompt is empty")
    if len(ids) > longest:
        raise InadmissibleError(
            "prompt", f"the prompt has {len(ids)} tokens; the context holds {longest}"
        )
    prompt = np.asarray(ids)
    # Anything but integers would be cut to some other token; an array of Python objects holds one
    # that no token id is as large as.
    if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise InadmissibleError(
            "prompt", f"prompt token ids must be integers from 0 to {rules.vocabulary_size - 1}"
        )
    if prompt.min() < 0 or prompt.max() >= rules.vocabulary_size:
        raise InadmissibleError(
            "prompt", f"prompt token ids must be 0 to {rules.vocabulary_size - 1}"
        )
    return prompt.astype(np.int32, copy=False)


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


def open_grammar(request: Submit, factory: GrammarFactory | None) -> OutputGrammar | None:
    """Return the request's grammar at its start. Raises InadmissibleError naming its field."""
    wanted = request.grammar
    if wanted is None:
        return None
    if factory is None:
        raise InadmissibleError(
            wanted.param, f"{wanted.param}: this engine cannot constrain its output"
        )
    try:
        grammar = factory(wanted, ignores_end=request.ignore_eos)
        grammar.masks(())
    except GrammarError as error:
        raise InadmissibleError(wanted.param, f"{wanted.param} {error}") from error
    if grammar.is_complete:
        raise InadmissibleError(wanted.param, f"{wanted.param} admits nothing but an empty answer")
    return grammar
