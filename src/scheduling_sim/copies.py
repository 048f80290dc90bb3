"""Copied proposals in a simulated run: when prompt lookup would find something to propose.

Tokens of simulated content never repeat by themselves; what repeats earlier text is part of the
acceptance model. Lookup therefore finds a match exactly where the last tokens, as many as the
engine's shortest run that is looked up, stand in one copied piece. It proposes beyond the end of a
piece too, where the model rejects it. Runs that match by chance are left out, which favours copying
by the time that their rejected proposals would take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from helios.engine.copying import LOOKUP_SIZE, lookup_depth
from helios.engine.ports import Copying, CopySource, DecisionCore
from helios.scheduler import Catalog, GraphKind, ProposalSource, RequestHandle
from scheduling_sim.acceptance_model import AcceptanceModel
from scheduling_sim.draws import SimulatedRequest
from scheduling_sim.workload.records import WorkloadRequest

_MATCHED: Final = LOOKUP_SIZE
_GENERATING: Final = (GraphKind.DECODE, GraphKind.SPECULATIVE)
_ANY_TOKEN: Final = 1
"""The modelled device draws what becomes of a proposal and never reads it."""


@runtime_checkable
class _TakesCopies(Protocol):
    def supply_copies(self, handle: RequestHandle, count: int) -> None: ...


class ModelledCopies:
    """Implements helios.engine.ports.CopySource by the acceptance model of the run."""

    __slots__ = ("_acceptance", "_depth", "_position", "_request")

    def __init__(
        self, request: WorkloadRequest, acceptance: AcceptanceModel, *, depth: int
    ) -> None:
        assert depth > 0
        self._request = request
        self._acceptance = acceptance
        self._depth = depth
        self._position = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take committed output tokens."""
        self._position += len(tokens)

    def propose(self) -> tuple[int, ...]:
        """Return `depth` proposals where the last tokens repeat a run of earlier text."""
        first = self._position - _MATCHED
        if first < 0:
            return ()
        drawn = self._acceptance.draw(self._request, first, _MATCHED, ProposalSource.COPY)
        return (_ANY_TOKEN,) * self._depth if drawn.accepted == _MATCHED else ()


def copying_of(
    catalog: Catalog,
    core: DecisionCore,
    acceptance: AcceptanceModel | None,
    live: Mapping[str, SimulatedRequest],
) -> Copying | None:
    """Return the engine's copying; None without programs that take copies or a core that hears.

    `live` has every request that the engine knows, by its id. Raises ValueError without a model.
    """
    depth = lookup_depth(graph for graph in catalog.graphs if graph.kind in _GENERATING)
    if not depth or not isinstance(core, _TakesCopies):
        return None
    if acceptance is None:
        raise ValueError("the catalog has programs of copies; the run needs an acceptance model")
    model = acceptance

    def open_source(request_id: str, prompt: npt.NDArray[np.int32]) -> CopySource:
        del prompt
        return ModelledCopies(live[request_id].request, model, depth=depth)

    return Copying(open_source, core.supply_copies)
