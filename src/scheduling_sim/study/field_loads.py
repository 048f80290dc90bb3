"""The workloads of the field and who competes on each, once without rounds and once with them.

Images are in none: no composed platform has image programs and no baseline runs one, so there is
nobody to compare with. A load with rounds has the strong draft's acceptance and a catalog with
rounds, so that every policy that does not speculate pays for the draft's memory as ours does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from scheduling_sim.metrics import Objectives
from scheduling_sim.study.contexts import INTERVALS
from scheduling_sim.study.goodput import AZURE, AZURE_OBJECTIVES, MOONCAKE
from scheduling_sim.study.tenants import LOAD as TENANTS
from scheduling_sim.workload.named import workload
from scheduling_sim.workload.records import Workload

OURS: Final = "helios"
WITHOUT: Final = ("fcfs", "prefill-first", "chunked", "vllm", "vtc", "mlfq", "srpt", "vllm-free")
FIXED: Final = "fixed-width"
WITH: Final = (
    "plain",
    FIXED,
    "turbospec",
    *(name for name in WITHOUT if name != "vllm"),
)
"""With rounds `plain` is what `vllm` is: the same rule, without speculation."""
DRAFT: Final = "strong-draft"


class Load(NamedTuple):
    """A kind of workload, without rounds or with them."""

    title: str
    ask: Callable[[Path], Workload]
    needs: str = ""
    objectives: Objectives = AZURE_OBJECTIVES
    intervals: tuple[int, ...] = ()
    slots: int = 64
    is_shared: bool = False
    """By tenants: their service gap is measured."""
    has_rounds: bool = False

    @property
    def policies(self) -> tuple[str, ...]:
        """Return who competes."""
        return (OURS, *(WITH if self.has_rounds else WITHOUT))

    @property
    def mode(self) -> str:
        """Return the catalog's mode."""
        return "speculative-mixed" if self.has_rounds else "mixed"

    def with_rounds(self) -> Load:
        """Return the same load with a draft."""
        return self._replace(title=f"{self.title}, rounds", has_rounds=True)


def _named(name: str, **options: str | float) -> Callable[[Path], Workload]:
    return lambda _: workload(name, **{"seed": 1, **options})


_PLAIN: Final = (
    Load("poisson", _named("poisson", rate_per_s=6.0, duration_s=40.0)),
    Load("bursty, cv 13", _named("bursty", rate_per_s=4.0, cv=13.0, duration_s=60.0)),
    Load("closed loop", _named("closed-loop", users=48, requests_per_user=4, think_s=1.0)),
    Load("conversations", _named("conversations", rate_per_s=1.0, duration_s=40.0)),
    Load(
        "heavy-tailed answers",
        _named("poisson", rate_per_s=2.0, duration_s=40.0, output="pareto:150:1.2"),
    ),
    Load(
        "azure",
        lambda data: workload(
            f"azure-conv:{data / AZURE}", start_s=600, length_s=40, rate_per_s=6.0
        ),
        AZURE,
    ),
    Load(
        "mooncake",
        lambda data: workload(
            f"mooncake-conv:{data / MOONCAKE}", start_s=600, length_s=100, share=0.1, seed=1
        ),
        MOONCAKE,
        Objectives(ttft_ms=30_000.0, gap_ms=100.0, gap_quantile=0.99),
        INTERVALS,
    ),
    Load(
        "tenants",
        _named("tenants", **TENANTS),
        slots=16,
        is_shared=True,
    ),
    Load(
        "16 streams",
        _named(
            "closed-loop",
            users=16,
            requests_per_user=3,
            think_s=0.01,
            ramp_s=0.01,
            prompt="fixed:128",
            output="fixed:300",
        ),
    ),
)
LOADS: Final = (*_PLAIN, *(load.with_rounds() for load in _PLAIN))
