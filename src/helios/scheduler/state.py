"""State: everything that a scheduler remembers between calls, in one place.

`seating`, `planning`, `submission` and `settlement` are functions over it; `Scheduler` documents
them. Only `seating`, `submission` and `settlement` change it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from helios.scheduler.accounting import LastInterval
from helios.scheduler.catalog import Catalog, GraphKind
from helios.scheduler.checkpoints import CheckpointStore
from helios.scheduler.config import PolicyConfig, ResourceConfig, SpeculationConfig
from helios.scheduler.cost import CostTable
from helios.scheduler.geometry import takes_copies
from helios.scheduler.ledger import Funds
from helios.scheduler.plan import SelectionReason
from helios.scheduler.policy import Decided
from helios.scheduler.records import ExecutionCount
from helios.scheduler.refresh import Dispatches
from helios.scheduler.requests import RequestTable
from helios.scheduler.resources import ResourcePool
from helios.scheduler.shapes import Shapes
from helios.scheduler.speculation import SpeculationHistory
from helios.scheduler.standing import Standing
from helios.scheduler.units import Fence
from helios.scheduler.utility import Estimates
from helios.scheduler.window import Window

_COPIES = attrgetter("copies")

NO_VERSION: Final = -1
"""The version of a memo that is void, although its standing may still be that of the last one."""

PROMPT_KINDS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL, GraphKind.MIXED)
GENERATING_KINDS = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


class State:
    """The whole state of one scheduler; `version` rises with every change."""

    __slots__ = (
        "catalog",
        "class_price",
        "commits",
        "costs",
        "decision",
        "dispatches",
        "executions",
        "funds",
        "growth_pages",
        "history",
        "interval",
        "keeps_rows",
        "last_fence",
        "learning_since",
        "longest_chunk",
        "memo",
        "now_ns",
        "policy",
        "pool",
        "preemptions",
        "shapes",
        "speculation",
        "store",
        "table",
        "uncopied",
        "version",
        "widest_lane",
        "window",
    )

    def __init__(
        self,
        catalog: Catalog,
        resources: ResourceConfig,
        policy: PolicyConfig,
        speculation: SpeculationConfig,
    ) -> None:
        catalog.check_mode(speculation)
        self.catalog = catalog
        self.shapes = Shapes(catalog, speculation)
        self.uncopied = _without_copies(catalog, speculation)
        """The shapes while nobody has anything to copy; None where that makes no difference."""
        self.pool = ResourcePool(resources)
        self.store = CheckpointStore(self.pool)
        kinds = [graph.kind for graph in catalog.graphs]
        self.keeps_rows = (
            resources.snapshot_rows > 0
            and not resources.page_prefixes
            and GraphKind.SNAPSHOT in kinds
            and GraphKind.RESTORE in kinds
        )
        """Complete states can be copied to snapshot rows and back."""
        self.longest_chunk = max(
            graph.prefill_capacity or graph.token_capacity
            for graph in catalog.graphs
            if graph.kind in PROMPT_KINDS
        )
        """Most prompt tokens that one frame consumes."""
        self.widest_lane = int(self.shapes.geometry.generating.width.max())
        """Most target rows of one lane in this decode mode."""
        self.class_price: float | None = None
        """What prompts stand at together (prompt_class.py); None after a frame without any."""
        self.growth_pages = 0
        """Pages that no newcomer may have: all that prompts still need, a step of the others."""
        self.preemptions = 0
        self.policy = policy
        self.speculation = speculation
        self.costs = CostTable(catalog, ttl_ns=policy.estimate_ttl_ns)
        self.history = SpeculationHistory(
            catalog, resources.row_count, population_weight=policy.population_weight
        )
        """Acceptance and forecasts by physical row."""
        self.funds = Funds()
        self.learning_since = 0
        """Commits when the credit of acceptance learning last became full."""
        self.dispatches = Dispatches(len(self.costs.estimates_ns))
        self.table = RequestTable()
        self.window = Window()
        self.now_ns = 0
        self.version = 0
        self.last_fence: Fence | None = None
        self.commits = 0
        self.interval: LastInterval | None = None
        """The last completed frame, while publications may still correct it."""
        self.decision: Decided | None = None
        """What `plan` decided last, for `explain`; never read by a decision."""
        self.memo: tuple[int, Standing | None] = (0, None)
        """The standing of one state version, derived."""
        self.executions = dict.fromkeys(SelectionReason, ExecutionCount(0, 0))

    def present_shapes(self) -> Shapes:
        """Return the shapes that the residents can be served with.

        Rounds for copies are left out while nobody has any: what they then do, one of their batch
        at one row does as well, behind a running frame, too (decision 0023).
        """
        if self.uncopied is None or any(map(_COPIES, self.table.resident)):
            return self.shapes
        return self.uncopied

    def estimates(self, shapes: Shapes) -> Estimates | None:
        """Return what prices proposals; None where none of the shapes takes any."""
        if not shapes.geometry.proposes:
            return None
        return Estimates(self.history.acceptance, self.history.forecasts)

    def standing(self) -> Standing:
        """Return the standing of this state version, computed at most once."""
        version, standing = self.memo
        if standing is None or version != self.version:
            table, shapes = self.table, self.present_shapes()
            standing = Standing(
                shapes,
                self.costs,
                table.resident,
                has_tenants=table.waiting.has_tenants,
                estimates=self.estimates(shapes),
                last=standing,
            )
            self.memo = (self.version, standing)
        return standing


def _without_copies(catalog: Catalog, speculation: SpeculationConfig) -> Shapes | None:
    """Return the shapes without rounds for copies; None where these are not all replaceable.

    One is by any other round of at least its batch, which serves lanes of one row.
    """
    rounds = [g for g in catalog.graphs if Catalog.generates(g, speculation)]
    copied = [graph.batch_capacity for graph in rounds if takes_copies(graph)]
    others = [
        graph.batch_capacity
        for graph in rounds
        if graph.kind is GraphKind.SPECULATIVE and not takes_copies(graph)
    ]
    if not copied or max(copied) > max(others, default=0):
        return None
    return Shapes(catalog, speculation, copies=False)
