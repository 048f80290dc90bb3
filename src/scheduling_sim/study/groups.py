"""All groups of the study, in the order of docs/evaluation.md."""

from __future__ import annotations

from typing import Final

from scheduling_sim.study import goodput, long_prompt, policy, replay, speculation, tenants
from scheduling_sim.study.cells import Group

GROUPS: Final[tuple[Group, ...]] = (
    replay.GROUP,
    long_prompt.GROUP,
    goodput.GROUP,
    policy.GROUP,
    speculation.GROUP,
    tenants.GROUP,
)
