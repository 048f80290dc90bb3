"""Bringing a world to a decision, and reading that decision."""

from __future__ import annotations

from helios.scheduler import CandidateScore, GraphKind
from tests.support.world import World


def scores_of(world: World) -> dict[str, CandidateScore]:
    """The best candidate of every program in the decision now."""
    world.plan()
    found: dict[str, CandidateScore] = {}
    for score in world.scheduler.explain():
        found.setdefault(score.graph, score)
    return found


def decoding(world: World, *names: str, outputs: int = 3, **fields: object) -> None:
    """Bring the named requests into decode and empty the window."""
    for name in names:
        world.admit(name, 32, **fields)  # type: ignore[arg-type]
    while any(len(world.streams[name].tokens) < outputs for name in names):
        world.step()
    while world.queue:
        world.finish_frame()


def only(world: World, kind: GraphKind) -> list[CandidateScore]:
    """All candidates of one kind in the decision now."""
    world.plan()
    graphs = world.model.catalog.graphs
    return [s for s in world.scheduler.explain() if graphs[s.graph_index].kind is kind]
