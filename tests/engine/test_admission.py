"""Admission: every rule names its field, and the numbers that execution uses are fixed here."""

from __future__ import annotations

import dataclasses
import math

import pytest

from helios.engine.admission import AdmissionRules, InadmissibleError, accept
from helios.engine.messages import GrammarMessage, SamplingMessage
from helios.engine.ports import MAX_LOGIT_BIAS, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS
from helios.scheduler import ResourceConfig
from tests.engine.world import request

RULES = AdmissionRules(
    resources=ResourceConfig(
        row_count=2, page_count=8, page_size_tokens=4, context_length_tokens=20
    ),
    vocabulary_size=100,
    eos_token_ids=(98, 99),
)


def refused(**fields: object) -> tuple[str, str]:
    with pytest.raises(InadmissibleError) as caught:
        accept(request(**fields), RULES)  # type: ignore[arg-type]
    return caught.value.param, str(caught.value)


def refused_sampling(**fields: object) -> str:
    return refused(sampling=SamplingMessage(**fields))[0]  # type: ignore[arg-type]


def test_output_is_cut_to_what_is_left_of_the_context() -> None:
    accepted = accept(request(prompt=[1] * 15, max_output_tokens=1000), RULES)
    assert accepted.spec.prompt_tokens == 15
    assert accepted.spec.max_output_tokens == 5


def test_fewer_pages_than_context_bound_a_request_too() -> None:
    """A request without a limit of its own is cut to what exists, not refused for ever."""
    few = AdmissionRules(
        resources=ResourceConfig(
            row_count=2, page_count=3, page_size_tokens=4, context_length_tokens=20
        ),
        vocabulary_size=100,
        eos_token_ids=(),
    )
    assert accept(request(prompt=[1] * 5, max_output_tokens=1000), few).spec.max_output_tokens == 7
    with pytest.raises(InadmissibleError, match="12"):
        accept(request(prompt=[1] * 13), few)


def test_the_longest_prompts() -> None:
    assert accept(request(prompt=[1] * 19), RULES).spec.max_output_tokens == 1
    scored = request(prompt=[1] * 20, max_output_tokens=0, scored=True)
    assert accept(scored, RULES).spec.max_output_tokens == 0
    assert refused(prompt=[1] * 20)[0] == "prompt"
    param, message = refused(prompt=[1] * 21, max_output_tokens=0, scored=True)
    assert (param, "21" in message, "20" in message) == ("prompt", True, True)


@pytest.mark.parametrize("prompt", [[], [100], [-1], [1, 2**40]])
def test_impossible_prompts(prompt: list[int]) -> None:
    assert refused(prompt=prompt)[0] == "prompt"


def test_output_limits() -> None:
    assert refused(max_output_tokens=0)[0] == "max_tokens"
    assert refused(max_output_tokens=-1, scored=True)[0] == "max_tokens"
    assert refused(weight=0.0)[0] == "weight"
    assert refused(weight=math.nan)[0] == "weight"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf]),
        ("top_p", [-0.1, 1.1, math.nan]),
        ("top_k", [-1, 2**31]),
        ("min_p", [-0.1, 1.1]),
        ("presence_penalty", [math.inf]),
        ("frequency_penalty", [math.nan]),
        ("repetition_penalty", [0.0, -1.0]),
        ("seed", [-1, 2**64]),
        ("top_logprobs", [-2, MAX_TOP_LOGPROBS + 1]),
        ("stop_token_ids", [(100,), (-1,)]),
        ("logit_bias", [((100, 1.0),), ((1, math.nan),), ((1, 1.0),) * (MAX_LOGIT_BIAS + 1)]),
    ],
)
def test_sampling_out_of_range_names_the_field(name: str, values: list[object]) -> None:
    for value in values:
        assert refused_sampling(**{name: value}) == name


def test_limits_themselves_are_legal() -> None:
    sampling = SamplingMessage(
        temperature=0.0,
        top_p=0.0,
        top_k=2**31 - 1,
        min_p=1.0,
        seed=2**64 - 1,
        top_logprobs=MAX_TOP_LOGPROBS,
        logit_bias=((99, -100.0),) * MAX_LOGIT_BIAS,
    )
    accepted = accept(request(sampling=sampling), RULES)
    assert accepted.sampling.seed == 2**64 - 1
    assert accepted.sampling.logit_bias == sampling.logit_bias


def test_stop_tokens_of_the_row() -> None:
    """End tokens come first, each once, and leave when they are ignored."""
    sampling = SamplingMessage(stop_token_ids=(5, 99, 5))
    assert accept(request(sampling=sampling), RULES).sampling.stop_token_ids == (98, 99, 5)
    ignoring = request(sampling=sampling, ignore_eos=True)
    assert accept(ignoring, RULES).sampling.stop_token_ids == (5, 99)
    many = tuple(range(MAX_STOP_TOKENS - 1))
    assert refused_sampling(stop_token_ids=many) == "stop_token_ids"


def test_stop_strings_need_feedback_and_stop_tokens_do_not() -> None:
    assert accept(request(stop=("x",)), RULES).spec.needs_feedback
    sampling = SamplingMessage(stop_token_ids=(5,))
    assert not accept(request(sampling=sampling), RULES).spec.needs_feedback
    assert refused(stop=("",))[0] == "stop"


@pytest.mark.parametrize(
    ("ruled", "asked", "is_constrained", "expected"),
    [(0, 0, True, 0), (0, 3, True, 0), (1, 0, True, 1), (1, 3, True, 1), (1, 3, False, 0)],
)
def test_only_a_grammar_bounds_learned_rounds_and_copies_stay_as_wide_as_asked(
    ruled: int, asked: int, is_constrained: bool, expected: int
) -> None:
    rules = dataclasses.replace(RULES, grammar_learned_limit=ruled)
    grammar = GrammarMessage(kind="regex", text="a", param="regex") if is_constrained else None
    accepted = accept(request(width_limit=asked, grammar=grammar), rules)
    assert (accepted.spec.width_limit, accepted.spec.learned_width_limit) == (asked, expected)
