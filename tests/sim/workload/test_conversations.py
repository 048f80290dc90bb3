"""Conversations share prefixes down to their token ids; users wait for their answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scheduling_sim.workload import arrivals
from scheduling_sim.workload.assembly import Shape, assembled
from scheduling_sim.workload.content import token_ids
from scheduling_sim.workload.conversations import ConversationRules, closed_loop, conversations
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.lengths import Fixed, Uniform, output_limit
from scheduling_sim.workload.records import WorkloadRequest
from scheduling_sim.workload.summary import prefix_hits

RULES = {
    "turns": Fixed(4),
    "message": Uniform(20, 60),
    "answer": Uniform(10, 90),
    "system": Uniform(300, 500),
    "groups": 2,
    "think_s": 5.0,
}


def talks(count: int = 12, seed: int = 0, **changed: object) -> list[WorkloadRequest]:
    rules = ConversationRules(**(RULES | changed))  # type: ignore[arg-type]
    return conversations("talk", arrivals.evenly(1.0, count=count), rules, seed=seed)


def chains(requests: list[WorkloadRequest]) -> list[list[WorkloadRequest]]:
    found: list[list[WorkloadRequest]] = []
    for request in requests:
        if request.follows is None:
            found.append([])
        else:
            assert found[-1][-1].request_id == request.follows
        found[-1].append(request)
    return found


def test_a_turn_repeats_the_prompt_and_the_answer_before_it() -> None:
    for chain in chains(talks()):
        assert len(chain) == 4
        for before, after in itertools.pairwise(chain):
            history = token_ids((*before.prompt, before.output))
            prompt = token_ids(after.prompt)
            assert len(history) < len(prompt)
            assert (prompt[: len(history)] == history).all()


def test_a_group_shares_its_system_prompt_and_nothing_more() -> None:
    openers = [chain[0] for chain in chains(talks(40))]
    systems = {request.prompt[0] for request in openers}
    assert len(systems) == 2
    first = openers[0]
    shared = first.prompt[0].tokens
    for other in openers[1:]:
        left, right = (token_ids(request.prompt) for request in (first, other))
        reach = min(len(left), len(right), shared)
        assert (left[:reach] == right[:reach]).all() == (other.prompt[0] == first.prompt[0])
        assert left[shared : shared + 20].tolist() != right[shared : shared + 20].tolist()


def test_endpoints_lie_at_message_ends_and_where_answers_were_consumed() -> None:
    """Each limit is the answer's length, so the last token of an answer is never consumed."""
    for chain in chains(talks()):
        first, second = chain[:2]
        system, message = first.prompt
        assert first.endpoints == (system.tokens, first.prompt_tokens)
        assert message.tokens + system.tokens == first.prompt_tokens
        consumed = first.prompt_tokens + first.output.tokens - 1
        assert second.endpoints == (*first.endpoints, consumed, second.prompt_tokens)
        assert first.keep_terminal


def test_an_answer_closed_by_an_end_token_is_consumed_whole() -> None:
    first, second = chains(talks(limit=output_limit("fixed:500")))[0][:2]
    assert first.max_output_tokens == 500
    assert first.prompt_tokens + first.output.tokens in second.endpoints


def test_an_answer_of_one_token_adds_no_endpoint_twice() -> None:
    for chain in chains(talks(answer=Fixed(1))):
        for request in chain:
            assert list(request.endpoints) == sorted(set(request.endpoints))


@pytest.mark.parametrize("limit", ["exact", "fixed:500"])
def test_kept_answers_serve_all_but_the_last_token_of_a_history(limit: str) -> None:
    requests = talks(1, limit=output_limit(limit))
    anywhere, at_endpoints = prefix_hits(requests)
    missing = [a - b for a, b in zip(anywhere, at_endpoints, strict=True)]
    assert missing == ([0, 1, 1, 1] if limit == "exact" else [0, 0, 0, 0])
    assert anywhere[1:] == [r.prompt_tokens + r.output.tokens for r in requests[:-1]]


def test_a_conversation_ends_where_the_context_is_full() -> None:
    requests = talks(turns=Fixed(50), context_tokens=1000)
    for request in requests:
        assert request.prompt_tokens + request.max_output_tokens <= 1000
    lengths = [len(chain) for chain in chains(requests)]
    assert 2 < min(lengths) <= max(lengths) < 50


def test_a_first_message_is_cut_to_the_context() -> None:
    requests = talks(message=Fixed(5000), answer=Fixed(400), context_tokens=1000)
    assert [request.prompt_tokens for request in requests] == [600] * 12


def test_think_times_have_their_mean() -> None:
    requests = talks(2000)
    thinks_s = [r.arrival_ns / 1e9 for r in requests if r.follows is not None]
    assert np.mean(thinks_s) == pytest.approx(5.0, rel=0.05)
    assert all(r.arrival_ns == 0 for r in talks(think_s=0.0) if r.follows is not None)


def test_one_seed_gives_one_set_of_conversations() -> None:
    assert talks() == talks()
    assert talks() != talks(seed=1)
    assert talks(12)[: len(talks(6))] == talks(6)


def test_users_wait_for_their_answers() -> None:
    shape = Shape(prompt=Fixed(100), output=Fixed(10))
    requests = closed_loop(
        "user", users=500, requests_per_user=5, think_s=3.0, shape=shape, seed=0, ramp_s=10.0
    )
    workload = assembled("users", requests, source="test")
    assert len(workload.requests) == 2500
    openers = [r for r in workload.requests if r.follows is None]
    assert [r.arrival_ns for r in openers] == [round(u * 0.02e9) for u in range(500)]
    thinks_s = [r.arrival_ns / 1e9 for r in workload.requests if r.follows is not None]
    assert np.mean(thinks_s) == pytest.approx(3.0, rel=0.07)
    assert sum(prefix_hits(workload.requests)[0]) == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"groups": -1},
        {"think_s": -1.0},
        {"think_s": float("nan")},
        {"context_tokens": 7},
        {"tenants": ()},
    ],
)
def test_impossible_rules_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(WorkloadError):
        talks(**changed)


def test_a_workload_without_order_is_refused() -> None:
    first, second = talks(1)[:2]
    with pytest.raises(WorkloadError, match="does not stand before it"):
        assembled("x", [second, first], source="test")
    with pytest.raises(WorkloadError, match="share a name"):
        assembled("x", [first, first], source="test")
