"""Tenants of unequal size: by requests that they keep outstanding, or by their rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduling_sim.workload import arrivals
from scheduling_sim.workload.assembly import Shape, single_requests
from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.conversations import closed_loop
from scheduling_sim.workload.errors import WorkloadError, require
from scheduling_sim.workload.records import WorkloadRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TenantRate:
    """One tenant with open arrivals."""

    name: str
    rate_per_s: float
    shape: Shape
    cv: float = 1.0
    """Coefficient of variation of its gaps; 1 is Poisson."""
    weight: float = 1.0


def backlogged(
    sizes: Sequence[int], shape: Shape, *, requests_per_tenant: int, seed: int
) -> list[WorkloadRequest]:
    """Return tenants that keep `sizes` requests outstanding each, from the start on.

    A tenant of size n is n users without think time. All tenants have the same number of requests,
    so under equal service they end at about the same time; `requests_per_tenant` is divided among
    the users, the first ones getting one more where it does not divide.
    """
    require(bool(sizes) and min(sizes) >= 1, f"sizes are {tuple(sizes)}; each at least 1 is right")
    require(
        requests_per_tenant >= max(sizes),
        f"requests_per_tenant is {requests_per_tenant}; at least {max(sizes)}, the largest size",
    )
    found: list[WorkloadRequest] = []
    for index, size in enumerate(sizes):
        name = f"tenant{index}-of-{size}"
        each, more = divmod(requests_per_tenant, size)
        for user in range(size):
            found += closed_loop(
                f"{name}-{user}",
                users=1,
                requests_per_user=each + (user < more),
                think_s=0.0,
                shape=shape,
                seed=seed,
                tenant=name,
            )
    return found


def by_rate(
    tenants: Sequence[TenantRate], *, seed: int, duration_s: float
) -> list[WorkloadRequest]:
    """Return every tenant's own arrivals over `duration_s`, tenant after tenant."""
    names = [tenant.name for tenant in tenants]
    if len(set(names)) < len(names):
        raise WorkloadError(f"tenants are {', '.join(names)}; different names are right")
    found: list[WorkloadRequest] = []
    for tenant in tenants:
        own_seed = content_identity(seed, "tenant", tenant.name) >> 1
        times_ns = arrivals.bursty(
            tenant.rate_per_s, cv=tenant.cv, seed=own_seed, duration_s=duration_s
        )
        found += single_requests(
            tenant.name,
            times_ns,
            tenant.shape,
            seed=seed,
            tenant=tenant.name,
            weight=tenant.weight,
        )
    return found
