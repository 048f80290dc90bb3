"""Platform: a machine with a model on it, as the simulator knows it."""

from __future__ import annotations

import dataclasses

from helios.scheduler import Catalog, ResourceConfig
from scheduling_sim.costs.model import CostModel


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Time that the host adds around the device; it never enters a cost estimate."""

    turn_ns: int = 0
    """One turn of the engine loop: the clock advances by it before a frame is submitted."""
    launch_ns: int = 0
    """From submission to the start on the device, hidden while another frame runs."""
    delivery_ns: int = 0
    """From the end on the device to the host's observation."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The prepared programs, what they cost, and what there is to hand out."""

    name: str
    """Such as `rtx-pro-6000/llama-3.1-8b`."""
    catalog: Catalog
    resources: ResourceConfig
    costs: CostModel
    host: HostCosts = HostCosts()
    source: str = "synthetic"
    """Where the costs come from, with the licence."""
