"""How many tokens a round gives when it serves everybody and nobody else is there to serve.

Delivery prices and age prices order requests: who is served, and how long others wait for it. Among
rounds that serve all of the same streams there is no such question left. The prices would only pay
for deliveries, of which a narrow round makes more, and choose a width that brings fewer tokens. So
the score chooses the kind of work and its cohort, and service per time chooses the width
(docs/design/scheduling-utility.md 9.14, decision 0018).
"""

from __future__ import annotations

from typing import NamedTuple

from helios.scheduler.config import DecodeMode
from helios.scheduler.geometry import Contest, Flags, Integers
from helios.scheduler.streams import Floats
from helios.scheduler.utility import View


class Ample(NamedTuple):
    """The rounds of a contest that hold everybody at full width; arrays of the same length."""

    places: Integers
    """In the contest, the shortest first."""
    durations_ms: Floats
    service_rates: Floats
    """Priced tokens that they are expected to commit, per ms."""


def asks_for_width(view: View, served: int) -> bool:
    """Tell whether a measured winner that serves so many leaves its width to `shortest_ample`."""
    return (
        view.policy.alone_service_share > 0.0
        and view.shapes.speculation.mode is DecodeMode.ADAPTIVE
        and served == len(view.decoders)
        and not (view.prefilling or view.initializing or view.blocked or view.terminals)
    )


def ample_rounds(
    contest: Contest, tokens: Floats, token_values: Floats, known_ms: Floats, inexact: Flags | None
) -> Ample:
    """Return the measured rounds whose rows hold every stream's whole lane.

    `tokens` [classes, n] are the expected ones, `token_values` [n] what each is worth, and
    `known_ms` the durations of the contest's programs. `inexact` tells of every class whether its
    tokens are a mere bound; None: of none.
    """
    programs = contest.programs
    fits = ~contest.is_tight & (programs.batch >= tokens.shape[1]) & (known_ms > 0.0)
    fits &= programs.prompt == 0
    if inexact is not None:
        fits &= ~inexact.take(programs.lane_class)
    places = fits.nonzero()[0]
    places = places[known_ms.take(places).argsort(kind="stable")]
    durations_ms = known_ms.take(places)
    service = (tokens @ token_values).take(programs.lane_class.take(places))
    return Ample(places, durations_ms, service / durations_ms)


def shortest_ample(ample: Ample, winner_ms: float, winner_rate: float, share: float) -> list[int]:
    """Return the places of rounds with at least `share` of the best service rate, shortest first.

    Where the winner itself has as much, only those that are shorter than it.
    """
    if not len(ample.places):
        return []
    least = share * max(float(ample.service_rates.max()), winner_rate)
    enough = ample.service_rates >= least
    if winner_rate >= least:
        enough &= ample.durations_ms < winner_ms
    found: list[int] = ample.places[enough].tolist()
    return found
