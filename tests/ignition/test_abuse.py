"""Abuse of every kind of round: what single steps answer and count, and nothing that is kept.

A real scheduler, engine and model on a virtual clock, so that nothing depends on how long a step
takes. Ends fall in the middle of accepted bursts: those of output limits, of the context and of
stop strings; drafts propose nothing but the end of the text; grammars admit nothing more. The same
over HTTP, with the context of a model: tests/flare/test_identity.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from helios.engine.messages import GrammarMessage, Rejected, Submit
from tests.ignition.abused import (
    PROMPTS,
    Abused,
    Answer,
    abused,
    ask,
    end_token,
    free_answers,
    plain,
)
from tests.ignition.kinds import CONTEXT, KINDS, Kind

EAGER = ("copies-shared", "copies-mixed", "head-dealt", "pair-fixed")
"""Kinds that eager programs are abused in, too: those of the others differ in nothing but speed."""
CASES = [
    *(pytest.param(kind, "native-fp32", id=name) for name, kind in KINDS.items()),
    *(pytest.param(KINDS[n], "eager", id=f"{n}-eager", marks=pytest.mark.slow) for n in EAGER),
]
pytestmark = pytest.mark.parametrize(("kind", "backend"), CASES)
PLACES = range(len(PROMPTS))


def check(found: Abused, requests: Sequence[Submit], kind: Kind, backend: str) -> None:
    """Hold answers against those of single steps, then ask for ordinary ones."""
    assert found.serve(requests) == plain(backend).serve(requests)
    assert {graph.name for graph in kind.graphs} <= found.programs()
    later = found.serve([ask(f"later-{place}", place) for place in PLACES])
    assert tuple(answer.tokens for answer in later.values()) == free_answers(backend)  # type: ignore[union-attr]
    found.assert_nothing_is_kept()


def answer_of(found: Abused, name: str) -> Answer:
    answer = found.answer(name)
    assert isinstance(answer, Answer), answer
    return answer


def test_limits_and_the_context_end_a_round_where_they_stand(kind, backend) -> None:
    requests = [ask(f"limit-{limit}", limit, limit) for limit in range(1, 15)]
    requests += [ask(f"context-{place}", place) for place in PLACES]
    found = abused(kind, backend)
    check(found, requests, kind, backend)
    for submit in requests:
        prompt_tokens = len(submit.prompt_token_ids)
        output_tokens = min(submit.max_output_tokens, CONTEXT - prompt_tokens)
        answer = answer_of(found, submit.request_id)
        assert (answer.reason, answer.usage) == ("length", (prompt_tokens, output_tokens))
    bursts = found.bursts()
    for group in ("limit", "context"):
        assert any(name.startswith(group) for name in found.shortened())
        last = [counts[-1] for name, counts in bursts.items() if name.startswith(group)]
        # The head knows the beginnings of these answers, the others all of them.
        assert max(last) > 1 or kind.draft == "head"


def test_a_stop_string_inside_an_accepted_burst_ends_the_answer_there(kind, backend) -> None:
    requests = [
        ask(f"stop-{place}-{at}", place, stop=(f" {tokens[at]} {tokens[at + 1]} ",))
        for place, tokens in enumerate(free_answers(backend))
        for at in range(2, 9)
    ]
    found = abused(kind, backend)
    check(found, requests, kind, backend)
    bursts, cut = found.bursts(), 0
    for submit in requests:
        answer = answer_of(found, submit.request_id)
        assert (answer.reason, answer.stop_matched) == ("stop", submit.stop[0])
        assert answer.text + submit.stop[0] == "".join(f"{token} " for token in answer.tokens)
        assert answer.usage[1] == len(answer.tokens)
        cut += sum(bursts[submit.request_id]) > answer.usage[1]
    assert cut > 4, "too few of them ended inside a burst"


def test_a_draft_may_propose_nothing_but_the_end(kind, backend) -> None:
    """Where a text does end it is right, and ends the text unless that is ignored."""
    requests = [
        ask(f"{place}-{ignores}", place, ignore_eos=ignores)
        for ignores in (True, False)
        for place in PLACES
    ]
    end = end_token(backend)
    found = abused(kind, backend, only=end)
    check(found, requests, kind, backend)
    for place, tokens in enumerate(free_answers(backend)):
        whole, ended = (answer_of(found, f"{place}-{ignores}") for ignores in (True, False))
        assert whole.tokens == tokens
        assert ended.tokens == tokens[: tokens.index(end) + 1 if end in tokens else None]
        assert (ended.reason, ended.stop_matched) == (
            ("stop", end) if end in tokens else ("length", None)
        )
    counters = found.world.stats().counters
    offered, accepted = (
        counters[f"flare_speculative_{name}_tokens_total"] for name in ("offered", "accepted")
    )
    assert offered > accepted
    # A scheduler that may choose gives up such a draft before it is right once.
    assert accepted > 0 or not kind.fixed_width


def grammar(pattern: str) -> GrammarMessage:
    return GrammarMessage(kind="regex", text=pattern, param="guided_regex")


def test_a_grammar_that_admits_nothing_ends_its_own_request_alone(kind, backend) -> None:
    """No token is an x, y or z: at the start, or behind some tokens, nothing may come."""
    requests = []
    for place in PLACES:
        requests += [
            ask(f"never-{place}", place, grammar=grammar("[x-z]+")),
            ask(f"dead-{place}", place, grammar=grammar(f"[!-Z]{{{1 + place}}}[x-z]")),
            ask(f"whole-{place}", place, grammar=grammar(f"[!-Z]{{{2 + place}}}")),
            ask(f"free-{place}", place),
        ]
    found = abused(kind, backend)
    check(found, requests, kind, backend)
    for place in PLACES:
        never = found.answer(f"never-{place}")
        assert isinstance(never, Rejected)
        assert "admits no" in never.message
        dead, whole = (answer_of(found, f"{name}-{place}") for name in ("dead", "whole"))
        assert (dead.reason, dead.usage[1], dead.is_faulty) == ("error", 1 + place, True)
        assert (whole.reason, whole.usage[1], whole.is_faulty) == ("stop", 2 + place, False)
