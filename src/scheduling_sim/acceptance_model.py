"""AcceptanceModel: what becomes of a round's proposals, as the modelled device asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from helios.scheduler import ProposalSource
from scheduling_sim.workload.records import WorkloadRequest


class RoundDraw(NamedTuple):
    """The fate of D proposals behind one pending token, before rows are allocated to them."""

    accepted: int
    """How many leading proposals the target would accept if it verified all of them, 0 to D."""
    confidence: Sequence[float]
    """[D]: joint probability that the draft gives its first d proposals; falls from at most 1."""
    survival: Sequence[float]
    """[D]: product of min(1, p/q) over the first d proposals; falls from at most 1."""


class AcceptanceModel(Protocol):
    """Draws rounds; pure, so that two policies meet the same proposals at the same position.

    A round that verifies fewer than `accepted` proposals commits those that it verifies.
    """

    def draw(
        self, request: WorkloadRequest, output_index: int, depth: int, source: ProposalSource
    ) -> RoundDraw:
        """Return the fate of `depth` proposals (at least 1) that follow output `output_index`.

        `output_index` counts from zero: it is the number of output tokens committed before the
        round. The same arguments give the same answer in every run of one seed. The profile is
        named by `request.acceptance`, that of the run where it is empty.
        """
        ...
