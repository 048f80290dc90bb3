"""All groups of the study, in the order of docs/evaluation.md."""

from __future__ import annotations

from typing import Final

from scheduling_sim.study import (
    azure_hour,
    checkpoints,
    contexts,
    delivery,
    field,
    goodput,
    long_prompt,
    lookahead,
    optimum,
    policy,
    prompt_heavy,
    recorded_run,
    refresh,
    replay,
    saturation,
    speculation,
    tenants,
)
from scheduling_sim.study.cells import Group

GROUPS: Final[tuple[Group, ...]] = (
    replay.GROUP,
    recorded_run.GROUP,
    long_prompt.GROUP,
    prompt_heavy.GROUP,
    goodput.AZURE_GROUP,
    goodput.MOONCAKE_GROUP,
    azure_hour.GROUP,
    field.GROUP,
    policy.GROUP,
    delivery.GROUP,
    refresh.GROUP,
    lookahead.GROUP,
    contexts.GROUP,
    optimum.GROUP,
    speculation.GROUP,
    saturation.GROUP,
    tenants.GROUP,
    checkpoints.GROUP,
)
