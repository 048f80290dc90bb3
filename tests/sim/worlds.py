"""Small workloads and acceptance doubles for tests of the simulation."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Sequence

from helios.scheduler import ProposalSource
from scheduling_sim.acceptance_model import RoundDraw
from scheduling_sim.run_log import RequestLog, RunLog
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest

MS = 1_000_000


def ask(
    name: str, at_ms: float, prompt: int, output: int, limit: int = 0, **fields: object
) -> WorkloadRequest:
    """Return a request whose content is its own; without a limit it ends by the end token."""
    identity = zlib.crc32(name.encode())
    request = WorkloadRequest(
        request_id=name,
        arrival_ns=round(at_ms * MS),
        prompt=(Segment(identity, prompt),),
        output=Segment(identity + (1 << 32), output),
        max_output_tokens=limit or output + 8,
    )
    return dataclasses.replace(request, **fields)  # type: ignore[arg-type]


def asked(*requests: WorkloadRequest) -> Workload:
    """Return the workload of these requests."""
    return Workload(name="test", requests=requests)


def poisson(
    count: int, rate_per_s: float, seed: int, *, prompt: float = 200.0, output: float = 30.0
) -> Workload:
    """Return independent arrivals; half of the answers end by their limit."""
    draw, at_ms, requests = random.Random(seed), 0.0, []
    for index in range(count):
        at_ms += draw.expovariate(rate_per_s) * 1e3
        length = 1 + int(draw.expovariate(1 / output))
        requests.append(
            ask(
                f"r{index}",
                at_ms,
                1 + min(int(draw.expovariate(1 / prompt)), 3000),
                length,
                length if index % 2 else 0,
                tenant=("", "big", "small")[index % 3],
            )
        )
    return asked(*requests)


def by_name(log: RunLog) -> dict[str, RequestLog]:
    """Return the logs of requests by their ids."""
    return {entry.request.request_id: entry for entry in log.requests}


def reasons(log: RunLog) -> dict[str, int]:
    """Return how many requests ended by which reason."""
    counts: dict[str, int] = {}
    for entry in log.requests:
        counts[entry.reason] = counts.get(entry.reason, 0) + 1
    return counts


@dataclasses.dataclass(frozen=True)
class Chances:
    """Each proposal is accepted with the probability of its depth, by a seed of the position."""

    probabilities: Sequence[float] = (0.8, 0.7, 0.6, 0.5)
    """Conditional on the proposals before it; the last one holds for every deeper one."""
    seed: int = 0

    def draw(
        self, request: WorkloadRequest, output_index: int, depth: int, source: ProposalSource
    ) -> RoundDraw:
        accepted, joint, survival, goes_on = 0, 1.0, [], True
        for each in range(depth):
            chance = self.probabilities[min(each, len(self.probabilities) - 1)]
            name = f"{self.seed}/{request.request_id}/{output_index}/{each}/{source}"
            goes_on = goes_on and random.Random(name).random() < chance
            accepted += goes_on
            joint *= chance
            survival.append(joint)
        return RoundDraw(accepted, survival, survival)
