"""The coordinate that all prompts share where the policy weighs them as a class (decision 0019).

It counts machine time, not tokens: a prompt with five tokens left cannot be consumed faster than
one frame allows, so tokens of different prompts do not compare, and the milliseconds that the
fastest prepared graph would need for them do. The price is the inverse of the share of the machine
that prompts receive, and moves by the flow of section 2 with a reference rate of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from helios.scheduler.requests import Request
from helios.scheduler.service import Flow, flow_over


class ClassClaim(NamedTuple):
    """What the prompts of one decision claim together."""

    price: float
    """ms of an interval per ms of machine time that prompts receive in it."""
    rates: Mapping[Request, float | None]
    """Tokens/ms that the whole machine could consume of each prompt; None while unmeasured."""


NO_CLAIM = ClassClaim(0.0, {})
"""Nobody's prompt is left, or the policy does not weigh prompts as a class."""


def class_flow(
    rates: Mapping[Request, float | None],
    served_tokens: Mapping[Request, float],
    interval_ms: float,
    adaptation_ms: float,
) -> Flow:
    """Solve the flow of the class price over an interval in which prompts received these tokens."""
    machine_ms = 0.0
    for request, rate in rates.items():
        if rate is not None:
            machine_ms += served_tokens.get(request, 0.0) / rate
    return flow_over(machine_ms, interval_ms, 1.0, adaptation_ms)
