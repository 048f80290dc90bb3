"""Conversations of several turns, and users who wait for an answer before they go on.

    turn 1   [system][user 1]                      -> answer 1
    turn 2   [system][user 1][answer 1][user 2]    -> answer 2
             `-----`        |         |
             shared by      message   state after answer 1: the next turn resumes here
             a group        end

The engine keeps the state that has consumed an answer as far as a server has: an answer that was
closed by an end token has been consumed whole, one that its limit cut has its last token still to
be consumed. The next turn lists exactly that position, one token before the message's end in the
second case, because a lookup finds exact positions only.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from scheduling_sim.workload.arrivals import NS_PER_S, TimesNs
from scheduling_sim.workload.assembly import Shape
from scheduling_sim.workload.content import content_identity, generator
from scheduling_sim.workload.errors import require
from scheduling_sim.workload.lengths import EXACT, LengthRule, OutputLimit
from scheduling_sim.workload.records import Segment, WorkloadRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRules:
    """What conversations look like."""

    turns: LengthRule
    """Requests of one conversation; fewer where the context is full."""
    message: LengthRule
    """Tokens of a user's message."""
    answer: LengthRule
    system: LengthRule
    """Tokens of a group's system prompt."""
    groups: int = 4
    """Conversations of one group share a system prompt; zero: none has one."""
    think_s: float = 10.0
    """Mean of the exponential time from an answer's end to the next message."""
    context_tokens: int = 32_768
    limit: OutputLimit = EXACT
    tenants: tuple[str, ...] = ("",)
    """Conversations belong to one of these, drawn evenly."""

    def __post_init__(self) -> None:
        require(self.groups >= 0, f"groups is {self.groups}; at least 0 is right")
        require(0.0 <= self.think_s < 1e6, f"think_s is {self.think_s}; 0 to a million is right")
        require(self.context_tokens >= 8, f"context_tokens is {self.context_tokens}; 8 at least")
        require(bool(self.tenants), "tenants is empty; one name, which may be empty, is right")


class _Turns:
    """One conversation in the making."""

    def __init__(self, name: str, system: Segment | None, rules: ConversationRules) -> None:
        self.name = name
        self.rules = rules
        self.requests: list[WorkloadRequest] = []
        self.history: list[Segment] = [] if system is None else [system]
        self.endpoints: list[int] = [] if system is None else [system.tokens]
        self.length = 0 if system is None else system.tokens

    def add(self, message: Segment, answer: Segment, *, arrival_ns: int, tenant: str) -> bool:
        """Add one turn; False, and nothing changes, where the context has no room for it."""
        prompt_tokens = self.length + message.tokens
        room = self.rules.context_tokens - prompt_tokens
        if room < answer.tokens:
            return False
        self.history.append(message)
        self.endpoints.append(prompt_tokens)
        limit = self.rules.limit.of(answer.tokens, room_tokens=room)
        turn = len(self.requests)
        self.requests.append(
            WorkloadRequest(
                request_id=f"{self.name}-{turn}",
                arrival_ns=arrival_ns,
                prompt=tuple(self.history),
                output=answer,
                max_output_tokens=limit,
                tenant=tenant,
                endpoints=tuple(self.endpoints),
                keep_terminal=True,
                follows=f"{self.name}-{turn - 1}" if turn else None,
            )
        )
        self.history.append(answer)
        self.length = prompt_tokens + answer.tokens
        consumed = self.length if limit > answer.tokens else self.length - 1
        if consumed > prompt_tokens:
            self.endpoints.append(consumed)
        return True


def conversations(
    name: str, starts_ns: TimesNs, rules: ConversationRules, *, seed: int
) -> list[WorkloadRequest]:
    """Return the requests of one conversation per start, chain after chain.

    A follower's `arrival_ns` is its think time. A conversation whose first turn does not fit the
    context has its system prompt and message shortened until it does.
    """
    systems = _system_prompts(name, rules, seed)
    requests: list[WorkloadRequest] = []
    for index, start_ns in enumerate(starts_ns.tolist()):
        random = generator(seed, name, "conversation", index)
        group = int(random.integers(0, max(1, rules.groups)))
        tenant = rules.tenants[int(random.integers(0, len(rules.tenants)))]
        turns = _Turns(f"{name}-{index}", systems[group] if systems else None, rules)
        planned = int(rules.turns.draw(random, 1)[0])
        messages = rules.message.draw(random, planned).tolist()
        answers = rules.answer.draw(random, planned).tolist()
        thinks_s = random.exponential(rules.think_s, planned) if rules.think_s else None
        for turn in range(planned):
            message, answer = messages[turn], answers[turn]
            if turn == 0:
                message, answer = _first_fit(message, answer, turns.length, rules.context_tokens)
            think_s = 0.0 if thinks_s is None else float(thinks_s[turn])
            if not turns.add(
                Segment(content_identity(seed, name, "message", index, turn), message),
                Segment(content_identity(seed, name, "answer", index, turn), answer),
                arrival_ns=round(think_s * NS_PER_S) if turn else start_ns,
                tenant=tenant,
            ):
                break
        requests += turns.requests
    return requests


def _system_prompts(name: str, rules: ConversationRules, seed: int) -> list[Segment]:
    """Return one system prompt per group, of at most half the context."""
    lengths = rules.system.draw(generator(seed, name, "systems"), rules.groups).tolist()
    return [
        Segment(
            content_identity(seed, name, "system", group), min(tokens, rules.context_tokens // 2)
        )
        for group, tokens in enumerate(lengths)
    ]


def _first_fit(message: int, answer: int, used: int, context_tokens: int) -> tuple[int, int]:
    """Return a first message and answer cut to what the system prompt leaves of the context."""
    room = context_tokens - used
    answer = min(answer, room - 1)
    return min(message, room - answer), answer


def closed_loop(
    name: str,
    *,
    users: int,
    requests_per_user: int,
    think_s: float,
    shape: Shape,
    seed: int,
    tenant: str = "",
    ramp_s: float = 0.0,
) -> list[WorkloadRequest]:
    """Return users who send the next request a think time after the last one's end.

    Think times are exponential with mean `think_s`; first requests come evenly over `ramp_s`. The
    content of two requests of a user has nothing in common.
    """
    require(1 <= users <= 100_000, f"users is {users}; 1 to 100,000 is right")
    require(requests_per_user >= 1, f"requests_per_user is {requests_per_user}; 1 at least")
    require(0.0 <= think_s < 1e6, f"think_s is {think_s}; 0 to a million seconds is right")
    require(0.0 <= ramp_s < 1e6, f"ramp_s is {ramp_s}; 0 to a million seconds is right")
    requests: list[WorkloadRequest] = []
    for user in range(users):
        random = generator(seed, name, "user", user)
        lengths = shape.draw(random, requests_per_user)
        waits_ns = np.rint(random.exponential(1.0, requests_per_user) * think_s * NS_PER_S)
        for turn, (prompt, output) in enumerate(lengths):
            start_ns = round(user * ramp_s / users * NS_PER_S)
            requests.append(
                WorkloadRequest(
                    request_id=f"{name}-{user}-{turn}",
                    arrival_ns=int(waits_ns[turn]) if turn else start_ns,
                    prompt=(Segment(content_identity(seed, name, "prompt", user, turn), prompt),),
                    output=Segment(content_identity(seed, name, "answer", user, turn), output),
                    max_output_tokens=shape.limit_of(prompt, output),
                    tenant=tenant,
                    follows=f"{name}-{user}-{turn - 1}" if turn else None,
                )
            )
    return requests
