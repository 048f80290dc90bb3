"""Completing rounds: bursts, offered rows, sidecars, peers, copies, and what they teach."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from helios.scheduler import (
    CompletionError,
    CompletionRecord,
    FenceError,
    InvalidRequestError,
    Phase,
    PhaseError,
    ProposalSource,
    StalePlanError,
    UnknownHandleError,
)
from helios.scheduler.acceptance import COUNT, LEARNED, MEAN
from helios.scheduler.forecast import OWN
from tests.support import rounds
from tests.support.rounds import (
    COPY,
    DEVICE,
    HOST,
    HOST_RAGGED,
    MIXED,
    NARROW,
    decoding,
    fly,
    history,
    land,
    lane,
    phase_of,
    row_of,
    sidecar,
)
from tests.support.snapshot import freeze
from tests.support.world import Flight, World, measured_world

SURE = (0.75, 0.5, 0.25)


def survivals(world: World, name: str, source: int = LEARNED) -> list[float]:
    rows = np.array([row_of(world, name)])
    return history(world).acceptance.survivals(rows, source)[0].tolist()


def forecasts(world: World, name: str) -> list[float]:
    graphs = world.scheduler.catalog.graphs
    program = next(i for i, graph in enumerate(graphs) if graph.name == DEVICE)
    return history(world).forecasts.means(np.array([row_of(world, name)]), program)[0].tolist()


def output_of(world: World, name: str) -> int:
    return world.scheduler.output_count_of(world.streams[name].handle)


def refused(
    world: World, flight: Flight, records: list[CompletionRecord], match: str, **more: object
) -> None:
    """The call raises CompletionError and leaves the state as it was, bit for bit."""
    world.advance_to(max(world.now_ns, flight.finish_ns))
    before = freeze(world.scheduler)
    with pytest.raises(CompletionError, match=match):
        land(world, flight, records, **more)  # type: ignore[arg-type]
    assert freeze(world.scheduler) == before


# ---- bursts -------------------------------------------------------------------------------


def test_a_lane_commits_every_token_of_its_burst_in_order() -> None:
    """One GeneratedToken per token, consecutive positions, one frame (runtime 8.1)."""
    world = decoding("ab")
    flight = fly(world, HOST, {"a": 4, "b": 4})
    tokens = land(world, flight, [lane(flight, 0, 4), lane(flight, 1, 2)])
    told = [(world.by_handle[t.handle].name, t.token, t.output_index) for t in tokens]
    assert told == [
        ("a", 0, 1),
        ("a", 1, 2),
        ("a", 2, 3),
        ("a", 3, 4),
        ("b", 100, 1),
        ("b", 101, 2),
    ]
    assert not any(token.is_last for token in tokens)
    assert (output_of(world, "a"), output_of(world, "b")) == (5, 3)


def test_only_the_last_token_of_a_burst_is_the_last_output() -> None:
    """A request ends with its burst's last token: end token or output limit (8.1)."""
    world = decoding("ab", output={"a": 100, "b": 4})
    flight = fly(world, HOST, {"a": 4, "b": 3})
    tokens = land(world, flight, [lane(flight, 0, 2, terminated=True), lane(flight, 1, 3)])
    assert [token.is_last for token in tokens] == [False, True, False, False, True]
    assert phase_of(world, "a") is phase_of(world, "b") is Phase.TERMINAL
    assert output_of(world, "b") == 4


def test_a_burst_is_one_delivery() -> None:
    """A visible burst supplies one delivery regardless of its token count (8.2)."""
    prices = []
    for produced in (1, 4):
        world = decoding("a")
        for _ in range(2):
            flight = fly(world, HOST, {"a": 4})
            land(world, flight, [lane(flight, 0, produced)])
            handle = world.streams["a"].handle
            for _ in range(produced):
                world.scheduler.published_output(handle, flight.fence)
        prices.append(world.scheduler._state.table.find(handle).delivery_price)
    assert prices[0] == prices[1]


def test_served_tokens_are_the_committed_ones() -> None:
    """Rejected proposals earn no service: prices move by committed tokens alone (8.2)."""

    def price(graph: str, ceiling: int, tokens: int) -> float | None:
        world = decoding("a")
        flight = fly(world, graph, {"a": ceiling})
        land(world, flight, [lane(flight, 0, tokens)])
        return world.scheduler._state.table.find(world.streams["a"].handle).token_price

    assert price(HOST, 4, 1) == price(HOST, 2, 1) == price(NARROW, 1, 1)


def test_a_queued_round_is_counted_by_its_ceiling_until_it_completes() -> None:
    """Upper bounds of what is in flight give way to what was committed (8.1)."""
    world = decoding("a")
    request = world.scheduler._state.table.find(world.streams["a"].handle)
    flight = fly(world, HOST, {"a": 4})
    assert request.queued_tokens == 4
    land(world, flight, [lane(flight, 0, 2)])
    assert (request.queued_tokens, request.output_count) == (0, 3)


# ---- validation of records ----------------------------------------------------------------

Fault = Callable[[list[CompletionRecord], Flight], list[CompletionRecord]]


def broken(**fields: object) -> Fault:
    def apply(records: list[CompletionRecord], _: Flight) -> list[CompletionRecord]:
        return [records[0], records[1]._replace(**fields)]  # type: ignore[arg-type]

    return apply


FAULTS: dict[str, tuple[Fault, str]] = {
    "a lane is missing": (lambda r, _: r[:1], "2 lanes were committed, 1 completed"),
    "a lane too many": (lambda r, _: [*r, r[0]], "3 completed"),
    "lanes in another order": (lambda r, _: r[::-1], "the record names"),
    "another generation": (
        lambda r, f: [r[0], r[1]._replace(handle=r[1].handle._replace(generation=9))],
        "generation=9",
    ),
    "prompt tokens out of nowhere": (broken(prompt_tokens=2), "2 consumed"),
    "a token beyond the ceiling": (broken(tokens=(1, 2, 3, 4)), "4 tokens, at most 3 fit"),
    "no token from a live lane": (broken(tokens=()), "no token"),
    "an end without a token": (broken(tokens=(), terminated=True), "terminated without"),
    "more rows than the ceiling": (broken(offered=4), "4 target rows were offered, at most 3"),
    "negative rows": (broken(offered=-1), "-1 target rows"),
    "a bool for rows": (broken(offered=True), "True target rows"),
    "a fraction of rows": (broken(offered=2.0), "2.0 target rows"),
}


@pytest.mark.parametrize("graph", [HOST, DEVICE])
@pytest.mark.parametrize("fault", FAULTS)
def test_malformed_records_of_a_round_change_nothing(fault: str, graph: str) -> None:
    """Every lane is validated before estimates, prices or progress move (8.3)."""
    world = decoding("ab")
    flight = fly(world, graph, {"a": 4, "b": 3})
    good = [lane(flight, 0, 2), lane(flight, 1, 3)]
    more: dict[str, object] = {}
    if graph == DEVICE:
        more["confidence"] = sidecar(world, {"a": SURE, "b": SURE})
    apply, match = FAULTS[fault]
    refused(world, flight, apply(good, flight), match, **more)
    land(world, flight, good, **more)  # type: ignore[arg-type]


def test_the_host_fixed_the_length_of_its_lanes() -> None:
    """An exact query length leaves the device no choice (8.3)."""
    world = decoding("ab")
    flight = fly(world, HOST_RAGGED, {"a": 4, "b": 4})
    good = [lane(flight, 0, 2, offered=4), lane(flight, 1, 1)]
    refused(world, flight, [lane(flight, 0, 2, offered=3), good[1]], "the host had fixed 4")
    land(world, flight, good)


def test_a_device_lane_commits_no_more_than_it_was_offered() -> None:
    """Tokens fit the rows that the device gave, not only the ceiling (8.3)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 4, "b": 4})
    confidence = sidecar(world, {"a": SURE, "b": SURE})
    bad = [lane(flight, 0, 3, offered=2), lane(flight, 1, 1)]
    refused(world, flight, bad, "3 tokens, at most 2 fit", confidence=confidence)


def test_a_device_never_gives_more_rows_than_the_program_has() -> None:
    """Ceilings may sum above P, offered rows may not (8.3)."""
    world = decoding("abc")
    flight = fly(world, DEVICE, {"a": 4, "b": 4, "c": 4})
    confidence = sidecar(world, dict.fromkeys("abc", SURE))
    unsaid = [lane(flight, index, 1) for index in range(3)]
    refused(world, flight, unsaid, "12 target rows were offered", confidence=confidence)
    given = [4, 3, 2]
    bad = [lane(flight, index, 1, offered=rows) for index, rows in enumerate(given)]
    refused(world, flight, bad, "9 target rows were offered, .* has 8", confidence=confidence)
    given = [4, 3, 1]
    good = [lane(flight, index, 1, offered=rows) for index, rows in enumerate(given)]
    assert len(land(world, flight, good, confidence=confidence)) == 3


def test_a_silent_lane_takes_no_row_and_needs_no_sidecar() -> None:
    """A lane that an earlier frame's end token ended is silent and free (8.4)."""
    world = decoding("abc")
    first = fly(world, HOST, {"a": 4, "b": 4})
    world.scheduler._state.window.frames[0].extendable = True
    second = fly(world, DEVICE, {"a": 4, "b": 4})
    land(world, first, [lane(first, 0, 2, terminated=True), lane(first, 1, 4)])
    talking = [lane(second, 0, 1), lane(second, 1, 2)]
    confidence = sidecar(world, {"b": SURE})
    refused(world, second, talking, "after the request's end token", confidence=confidence)
    before = survivals(world, "a"), forecasts(world, "a")
    tokens = land(world, second, [lane(second, 0, 0), talking[1]], confidence=confidence)
    assert [world.by_handle[token.handle].name for token in tokens] == ["b", "b"]
    assert (survivals(world, "a"), forecasts(world, "a")) == before


# ---- which call -----------------------------------------------------------------------------

NEEDED = {
    HOST: (False, True),
    DEVICE: (True, True),
    NARROW: (False, False),
    MIXED: (False, True),
}
"""Whether a program takes confidence, and whether it writes survival."""


@pytest.mark.parametrize("graph", NEEDED)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("survival", [False, True])
def test_a_program_completes_only_through_calls_that_fit_it(
    graph: str, packed: bool, survival: bool
) -> None:
    """Device rounds bring their confidence, survival comes from programs that write it (8.5)."""
    world = decoding("a")
    flight = fly(world, graph, {"a": 1})
    more: dict[str, object] = {}
    if packed:
        more["confidence"] = sidecar(world, {"a": SURE})
    if survival:
        more["survival"] = sidecar(world, {"a": SURE})
    takes_confidence, writes_survival = NEEDED[graph]
    good = [lane(flight, 0, 1)]
    if packed is not takes_confidence:
        match = "reports no confidence" if packed else "complete_packed_round"
        refused(world, flight, good, match, **more)
    elif survival and not writes_survival:
        refused(world, flight, good, "reports no survival", **more)
    else:
        assert len(land(world, flight, good, **more)) == 1  # type: ignore[arg-type]


def test_survival_is_welcome_only_from_programs_that_declare_it() -> None:
    """The same shape without reports_survival is refused (8.5)."""
    world = decoding("a", reports_survival=False)
    flight = fly(world, HOST, {"a": 4})
    survival = sidecar(world, {"a": SURE})
    refused(world, flight, [lane(flight, 0, 1)], "reports no survival", survival=survival)


def test_a_host_program_with_confidence_may_complete_either_way() -> None:
    """Only device allocation makes the packed call a must (8.5)."""
    model = rounds.modelled(
        {"initialize-b4": 1.0, "prefill-c64": 1.0, "terminal-b4": 1.0, HOST: 4.0},
        confidence_width=3,
    )
    world = World(model, rows=4, speculation=rounds.ADAPTIVE)
    world.admit("a", 20, 50, needs_feedback=True)
    rounds.begin(world, "a")
    world.commit(rounds.compose(world, "prefill-c64", {}, prompt=("a", 20, 1)))
    world.finish_frame()
    flight = fly(world, HOST, {"a": 4})
    land(world, flight, [lane(flight, 0, 1)])
    flight = fly(world, HOST, {"a": 4})
    confidence = np.full((1, 4, 3), 0.75, dtype=np.float32)
    land(world, flight, [lane(flight, 0, 1)], confidence=confidence)
    means = history(world).forecasts._cells[row_of(world, "a"), MEAN]
    assert means[0] > 0.5


# ---- validation of sidecars -----------------------------------------------------------------

BAD_VALUES = {
    "NaN": (math.nan, 0.5, 0.25),
    "NaN further on": (0.75, math.nan, 0.25),
    "infinite": (math.inf, 0.5, 0.25),
    "negative": (0.75, 0.5, -0.25),
    "above one": (1.5, 0.5, 0.25),
    "increasing": (0.5, 0.75, 0.25),
    "increasing at the end": (0.75, 0.5, 0.5000001),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("which", ["confidence", "survival"])
@pytest.mark.parametrize("fault", BAD_VALUES)
def test_bad_sidecar_values_change_nothing(fault: str, which: str, rank: int) -> None:
    """NaN, infinite, negative or increasing values name rank, row and depth (8.6)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 4, "b": 4})
    good = {
        "confidence": sidecar(world, {"a": SURE, "b": SURE}, ranks=2),
        "survival": sidecar(world, {"a": SURE, "b": SURE}, ranks=2),
    }
    bad = {name: values.copy() for name, values in good.items()}
    bad[which][rank, row_of(world, "b"), :3] = BAD_VALUES[fault]
    expected = [1.0, *BAD_VALUES[fault]]
    depth = next(d for d in (1, 2, 3) if not 0 <= expected[d] <= expected[d - 1])
    records = [lane(flight, 0, 2), lane(flight, 1, 4)]
    match = f"{which} of rank {rank}, row {row_of(world, 'b')}, depth {depth} is"
    refused(world, flight, records, match, **bad)
    land(world, flight, records, **good)


@pytest.mark.parametrize(
    "shape", [(4, 5), (0, 4, 5), (1, 5, 5), (1, 4, 4), (1, 4, 3), (1, 1, 4, 5)]
)
@pytest.mark.parametrize("which", ["confidence", "survival"])
def test_a_sidecar_of_another_shape_changes_nothing(which: str, shape: tuple[int, ...]) -> None:
    """[ranks, row_count, draft capacity] of the catalog, not of the program (8.6)."""
    world = decoding("a")
    flight = fly(world, DEVICE, {"a": 4})
    good = {"confidence": sidecar(world, {"a": SURE}), "survival": sidecar(world, {"a": SURE})}
    bad = {**good, which: np.full(shape, 0.5, dtype=np.float32)}
    refused(world, flight, [lane(flight, 0, 1)], f"{which} must have shape", **bad)


@pytest.mark.parametrize("value", [[[0.5]], np.full((1, 4, 5), 0.5), np.full((1, 4, 5), 1), "x"])
def test_a_sidecar_of_another_type_changes_nothing(value: object) -> None:
    """The sidecar is FP32 (8.6)."""
    world = decoding("a")
    flight = fly(world, DEVICE, {"a": 4})
    refused(world, flight, [lane(flight, 0, 1)], "float32 array", confidence=value)


def test_only_produced_entries_are_looked_at() -> None:
    """Confidence covers all D produced prefixes, survival the evaluated ones (8.6)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 4, "b": 2})
    records = [lane(flight, 0, 1, offered=2), lane(flight, 1, 1)]
    short = {"a": SURE[:2], "b": SURE[:2]}
    refused(world, flight, records, "depth 3", confidence=sidecar(world, short))
    one = sidecar(world, {"a": SURE[:1], "b": SURE[:1]})
    full = sidecar(world, {"a": SURE, "b": SURE})
    none = sidecar(world, {"a": SURE[:1]})
    refused(world, flight, records, "survival .* depth 1", confidence=full, survival=none)
    land(world, flight, records, confidence=full, survival=one)


# ---- ranks ------------------------------------------------------------------------------------


PEER_FAULTS: dict[str, tuple[Callable[[CompletionRecord], CompletionRecord], str]] = {
    "identity": (
        lambda r: r._replace(handle=r.handle._replace(generation=7)),
        "handle is",
    ),
    "consumption": (lambda r: r._replace(prompt_tokens=1), "prompt_tokens is 1"),
    "another token": (lambda r: r._replace(tokens=(*r.tokens[:-1], 9)), "tokens is"),
    "a shorter prefix": (lambda r: r._replace(tokens=r.tokens[:-1]), "tokens is"),
    "termination": (lambda r: r._replace(terminated=True), "terminated is True"),
    "offered rows": (lambda r: r._replace(offered=3), "offered is 3, rank 0 has 4"),
}


@pytest.mark.parametrize("fault", PEER_FAULTS)
def test_ranks_that_disagree_change_nothing(fault: str) -> None:
    """Identities, consumption and emitted prefixes agree across ranks (8.7)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 4, "b": 4})
    mine = [lane(flight, 0, 2), lane(flight, 1, 3)]
    apply, match = PEER_FAULTS[fault]
    confidence = sidecar(world, {"a": SURE, "b": SURE}, ranks=3)
    peers = [mine, [mine[0], apply(mine[1])]]
    refused(world, flight, mine, f"rank 2, lane 1: {match}", confidence=confidence, peers=peers)
    tokens = land(world, flight, mine, confidence=confidence, peers=[mine, mine])
    assert len(tokens) == 5


def test_a_peer_with_another_lane_count_changes_nothing() -> None:
    """Every rank completes the same cohort (8.7)."""
    world = decoding("ab")
    flight = fly(world, HOST, {"a": 4, "b": 4})
    mine = [lane(flight, 0, 2), lane(flight, 1, 3)]
    refused(world, flight, mine, "rank 1: 1 lanes, rank 0 has 2", peers=[mine[:1]])
    land(world, flight, mine, peers=[tuple(mine)])


def test_a_peer_may_say_the_ceiling_that_rank_zero_left_unsaid() -> None:
    """Zero offered rows mean the whole ceiling on every rank (8.7)."""
    world = decoding("a")
    flight = fly(world, HOST, {"a": 4})
    assert land(world, flight, [lane(flight, 0, 2)], peers=[[lane(flight, 0, 2, offered=4)]])


def test_the_sidecar_has_one_layer_per_rank_that_reported() -> None:
    """With peers, the number of ranks is known (8.6)."""
    world = decoding("a")
    flight = fly(world, DEVICE, {"a": 4})
    mine = [lane(flight, 0, 2)]
    refused(
        world,
        flight,
        mine,
        r"must have shape \[2, 4, 5\], not \[3, 4, 5\]",
        confidence=sidecar(world, {"a": SURE}, ranks=3),
        peers=[mine],
    )
    land(world, flight, mine, confidence=sidecar(world, {"a": SURE}, ranks=2), peers=[mine])


def test_rank_zero_drives_and_peers_need_not_agree() -> None:
    """Peer confidence must be valid and is not used (8.6)."""
    read = []
    for other in (0.25, 0.875):
        world = decoding("a")
        flight = fly(world, DEVICE, {"a": 4})
        confidence = sidecar(world, {"a": SURE}, ranks=2)
        confidence[1, :, :3] = other
        land(world, flight, [lane(flight, 0, 1)], confidence=confidence)
        read.append(forecasts(world, "a"))
    assert read[0] == read[1]
    assert read[0][0] > 0.5


# ---- what a round teaches -----------------------------------------------------------------


def test_a_round_teaches_the_rows_that_ran_and_no_other() -> None:
    """Acceptance and forecasts belong to a request's row (8.8)."""
    world = decoding("abc")
    before = {name: (survivals(world, name), forecasts(world, name)) for name in "abc"}
    flight = fly(world, DEVICE, {"c": 4, "a": 4})
    confidence = sidecar(world, {"a": SURE, "c": SURE})
    land(world, flight, [lane(flight, 0, 4), lane(flight, 1, 1)], confidence=confidence)
    assert survivals(world, "c")[:3] > before["c"][0][:3]
    assert survivals(world, "a")[0] < before["a"][0][0]
    assert survivals(world, "b") == before["b"][0]
    cells = history(world).forecasts._cells
    assert (cells[row_of(world, "b"), OWN] == 0).all()
    assert (cells[row_of(world, "a"), COUNT, :3] == 2).all()
    assert (cells[row_of(world, "c"), COUNT, :3] == 5).all(), "of the output after the round"


def test_forecasts_stop_at_the_frozen_ceiling_and_not_at_what_was_offered() -> None:
    """A lane observes its forecast up to its ceiling, whatever it was given (8.8)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 3, "b": 4})
    confidence = sidecar(world, {"a": SURE, "b": SURE})
    records = [lane(flight, 0, 1, offered=1), lane(flight, 1, 1, offered=1)]
    before = survivals(world, "a")
    land(world, flight, records, confidence=confidence)
    own = history(world).forecasts._cells[:, OWN]
    assert own[row_of(world, "a")].tolist() == [1, 1, 0, 0, 0]
    assert own[row_of(world, "b")].tolist() == [1, 1, 1, 0, 0]
    assert survivals(world, "a") == before, "one target row shows nothing of acceptance"


@pytest.mark.parametrize("graph", [NARROW, HOST])
def test_width_one_rounds_teach_a_cost_and_no_acceptance(graph: str) -> None:
    """One row per lane, by the program's width or by the lane's own limit (8.8)."""
    world = decoding("a")
    before = freeze(history(world))
    costs = freeze(world.scheduler._state.costs)
    flight = fly(world, graph, {"a": 1})
    land(world, flight, [lane(flight, 0, 1)])
    assert freeze(history(world)) == before
    assert freeze(world.scheduler._state.costs) != costs


def test_an_end_token_censors_what_it_hid() -> None:
    """Depths behind an end token keep their means; the accepted ones count (8.8)."""
    world = decoding("a")
    before = survivals(world, "a")
    row = row_of(world, "a")
    flight = fly(world, HOST, {"a": 4})
    land(world, flight, [lane(flight, 0, 2, terminated=True)])
    means = history(world).acceptance._cells[row, LEARNED, MEAN].tolist()
    assert means[0] > before[0]
    assert means[1:] == before[1:]


@pytest.mark.parametrize("graph", [HOST, DEVICE])
def test_survival_leaves_what_the_round_itself_did_alone(graph: str) -> None:
    """The same tokens, service and lengths with it and without; later estimates differ (8.8)."""
    outcomes, learned = [], []
    for values in (None, (1.0, 0.75, 0.5), (0.25, 0.125, 0.0)):
        world = decoding("ab")
        flight = fly(world, graph, {"a": 4, "b": 3})
        more: dict[str, object] = {}
        if graph == DEVICE:
            more["confidence"] = sidecar(world, {"a": SURE, "b": SURE})
        if values is not None:
            more["survival"] = sidecar(world, {"a": values, "b": values[:2]})
        records = [lane(flight, 0, 3), lane(flight, 1, 1)]
        tokens = land(world, flight, records, **more)  # type: ignore[arg-type]
        prices = [
            world.scheduler._state.table.find(world.streams[name].handle).token_price
            for name in "ab"
        ]
        outcomes.append(([(t.token, t.output_index) for t in tokens], prices, flight.plan.steps))
        learned.append(survivals(world, "a"))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert learned[0] != learned[1] != learned[2]


def test_survival_replaces_the_binary_outcome() -> None:
    """Evaluated prefixes observe the program's own probabilities (8.8)."""
    world = decoding("ab")
    flight = fly(world, HOST, {"a": 4, "b": 3})
    survival = sidecar(world, {"a": (1.0, 0.875, 0.5), "b": (0.25, 0.25)})
    land(world, flight, [lane(flight, 0, 1), lane(flight, 1, 1)], survival=survival)
    assert survivals(world, "a")[:3] > [0.5, 0.25, 0.125]
    weight = 2 * 2 ** (-2 / 128) + 1
    assert survivals(world, "b")[0] == pytest.approx(0.5 - 0.25 / weight)
    assert survivals(world, "b")[1] == 0.25, "an observation equal to the mean moves nothing"


@pytest.mark.parametrize("ending", ["cancel", "stop"])
def test_a_request_that_the_host_ended_publishes_and_teaches_nothing(ending: str) -> None:
    """Tokens of a cancelled or finished request are dropped (8.9)."""
    world = decoding("ab")
    row = row_of(world, "a")
    flight = fly(world, DEVICE, {"a": 4, "b": 4})
    confidence = sidecar(world, {"a": SURE, "b": SURE})
    {"cancel": world.cancel, "stop": world.stop}[ending]("a")
    before = history(world).take(row)
    prior = history(world).forecasts.prior(flight.plan.graph_index)
    tokens = land(world, flight, [lane(flight, 0, 3), lane(flight, 1, 2)], confidence=confidence)
    assert [world.by_handle[token.handle].name for token in tokens] == ["b", "b"]
    if ending == "stop":
        assert output_of(world, "a") == 1
        assert freeze(history(world).take(row)) == freeze(before)
    moved = history(world).forecasts.prior(flight.plan.graph_index)
    once = prior[:3] + (np.array(SURE) - prior[:3]) / 64
    assert moved[:3].tolist() == pytest.approx(once.tolist(), abs=1e-15), "one lane moved it"


def test_a_failed_round_teaches_nothing() -> None:
    """Only completed rounds update forecasts and acceptance (8.8)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 4})
    before = freeze(history(world))
    world.scheduler.fail(flight.fence)
    assert freeze(history(world)) == before


def test_a_new_request_in_a_row_starts_untrained() -> None:
    """No estimate reaches a later request of the row (utility 7.7)."""
    world = decoding("abcd")
    row = row_of(world, "a")
    flight = fly(world, DEVICE, {"a": 4})
    land(world, flight, [lane(flight, 0, 4)], confidence=sidecar(world, {"a": (1.0, 1.0, 1.0)}))
    assert survivals(world, "a")[0] > 0.5
    world.cancel("a")
    world.admit("e", 20, 50)
    assert row_of(world, "e") == row
    assert survivals(world, "e") == [0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert (history(world).forecasts._cells[row, OWN] == 0).all()


def test_mixed_rounds_teach_by_role() -> None:
    """The prompt row commits its extent and one token and teaches no acceptance (8.10)."""
    world = decoding("ab")
    world.admit("p", 40, 50, needs_feedback=True)
    rounds.begin(world, "p")
    before = survivals(world, "p")
    flight = fly(world, MIXED, {"a": 4, "b": 2}, prompt=("p", 40, 1))
    records = [lane(flight, 0, 3), lane(flight, 1, 2), lane(flight, 2, 1)]
    short = records[2]._replace(prompt_tokens=39)
    refused(world, flight, [*records[:2], short], "40 prompt tokens were scheduled, 39 consumed")
    silent = records[2]._replace(tokens=())
    refused(world, flight, [*records[:2], silent], "no token")
    double = records[2]._replace(tokens=(1, 2))
    refused(world, flight, [*records[:2], double], "2 tokens, at most 1 fit")
    tokens = land(world, flight, records)
    assert [world.by_handle[token.handle].name for token in tokens] == list("aaabbp")
    assert phase_of(world, "p") is Phase.DECODE
    assert (output_of(world, "a"), output_of(world, "p")) == (4, 1)
    assert survivals(world, "p") == before
    assert survivals(world, "a")[0] > 0.5


def test_the_prompt_lane_of_a_device_round_has_no_confidence() -> None:
    """Rows and sidecars of a mixed device round are its generating lanes' alone (8.6, 8.10)."""
    graph = f"{MIXED}-device"
    names = ("initialize-b4", "prefill-c64", "terminal-b4", NARROW, graph)
    world = World(rounds.modelled(dict.fromkeys(names, 4.0)), rows=4, speculation=rounds.ADAPTIVE)
    for name in "ap":
        world.admit(name, 20, 50, needs_feedback=True)
    rounds.begin(world, "ap")
    world.commit(rounds.compose(world, "prefill-c64", {}, prompt=("a", 20, 1)))
    world.finish_frame()
    flight = fly(world, graph, {"a": 4}, prompt=("p", 20, 1))
    confidence = np.full((1, 4, 3), np.nan, dtype=np.float32)
    confidence[0, row_of(world, "a")] = SURE
    tokens = land(world, flight, [lane(flight, 0, 2), lane(flight, 1, 1)], confidence=confidence)
    assert [world.by_handle[token.handle].name for token in tokens] == list("aap")


# ---- copies -------------------------------------------------------------------------------


def copies(world: World, name: str) -> int:
    return world.scheduler._state.table.find(world.streams[name].handle).copies


def test_copies_teach_their_own_source_and_are_used_up() -> None:
    """Copied proposals have separate acceptance; any output invalidates the supply (8.11)."""
    world = decoding("ab")
    handle = world.streams["a"].handle
    learned = survivals(world, "a")
    world.scheduler.supply_copies(handle, 3)
    flight = fly(world, COPY, {"a": 4})
    land(world, flight, [lane(flight, 0, 3)])
    assert copies(world, "a") == 0
    assert survivals(world, "a") == learned
    assert survivals(world, "a", source=1)[0] > 0.5
    world.scheduler.supply_copies(handle, 3)
    flight = fly(world, HOST, {"b": 4})
    land(world, flight, [lane(flight, 0, 1)])
    assert copies(world, "a") == 3, "another request's round leaves the supply alone"
    flight = fly(world, NARROW, {"a": 1})
    land(world, flight, [lane(flight, 0, 1)])
    assert copies(world, "a") == 0, "the pending token moved on"


@pytest.mark.parametrize("count", [-1, True, 1.5, "3", None])
def test_a_bad_count_of_copies_changes_nothing(count: object) -> None:
    """Counts are nonnegative integers (8.11)."""
    world = decoding("a")
    before = freeze(world.scheduler)
    with pytest.raises(InvalidRequestError, match="copies"):
        world.scheduler.supply_copies(world.streams["a"].handle, count)  # type: ignore[arg-type]
    assert freeze(world.scheduler) == before


def test_copies_need_a_stream_and_a_forecast_ends_with_its_frame() -> None:
    """Refused before and after a request decodes; any output ends a supply (8.11)."""
    world = decoding("ab")
    supply = world.scheduler.supply_copies
    handle = world.streams["a"].handle
    flight = fly(world, HOST, {"a": 4})
    supply(handle, 2)
    assert copies(world, "a") == 2, "what will stand behind all that the frame can commit"
    land(world, flight, [lane(flight, 0, 1)])
    assert copies(world, "a") == 0, "only the host knows what became of it"
    supply(handle, 2)
    fresh = world.admit("c", 20, 50)
    for wrong in (fresh, world.streams["b"].handle):
        if wrong is not fresh:
            world.stop("b")
        with pytest.raises(PhaseError, match="not phase"):
            supply(wrong, 1)
    with pytest.raises(UnknownHandleError):
        supply(handle._replace(generation=5), 1)


def test_copies_without_a_program_that_takes_them_are_refused() -> None:
    """A catalog without copy programs has no use for a supply (8.11)."""
    model = rounds.modelled(
        {"initialize-b4": 1.0, "prefill-c64": 1.0, "terminal-b4": 1.0, HOST: 4.0}
    )
    world = World(model, rows=4, speculation=rounds.ADAPTIVE)
    handle = world.admit("a", 20, 50)
    with pytest.raises(InvalidRequestError, match="no graph that takes copied proposals"):
        world.scheduler.supply_copies(handle, 1)


def test_a_changed_supply_makes_older_plans_stale_and_an_equal_one_does_not() -> None:
    """A plan must not verify copies that the host withdrew (8.11)."""
    world = decoding("a")
    handle = world.streams["a"].handle
    world.scheduler.supply_copies(handle, 3)
    plan = rounds.compose(world, COPY, {"a": 4})
    world.scheduler.supply_copies(handle, 3)
    flight = world.commit(plan)
    world.queue.clear()
    land(world, flight, [lane(flight, 0, 1)])
    world.scheduler.supply_copies(handle, 3)
    plan = rounds.compose(world, COPY, {"a": 4})
    world.scheduler.supply_copies(handle, 0)
    with pytest.raises(StalePlanError):
        world.commit(plan)


# ---- seeds and calibration ------------------------------------------------------------------


def test_seeded_acceptance_is_where_every_request_starts() -> None:
    """An earlier process's acceptance, installed before the first admission (utility 7.8)."""
    world = World(rounds.catalog(), rows=4, speculation=rounds.ADAPTIVE)
    seed = world.scheduler.seed_acceptance
    seed(ProposalSource.LEARNED, [0.875, 0.75, 0.5], weight=64.0)
    for source, values in ((ProposalSource.NONE, [0.5]), (ProposalSource.COPY, [0.5, 0.75])):
        before = freeze(world.scheduler)
        with pytest.raises(InvalidRequestError):
            seed(source, values, weight=4.0)
        assert freeze(world.scheduler) == before
    world.admit("a", 20, 50)
    assert survivals(world, "a")[:4] == [0.875, 0.75, 0.5, 0.0625]
    assert survivals(world, "a", source=1)[0] == 0.5
    with pytest.raises(PhaseError, match="seed_acceptance"):
        seed(ProposalSource.LEARNED, [0.5], weight=4.0)


def test_calibration_compares_what_was_read_before_with_what_was_accepted() -> None:
    """Predicted against accepted, per source and for forecasts (utility 7.11)."""
    world = decoding("ab")
    flight = fly(world, DEVICE, {"a": 4, "b": 4})
    confidence = sidecar(world, {"a": (1.0, 1.0, 1.0), "b": (1.0, 1.0, 1.0)})
    records = [lane(flight, 0, 4), lane(flight, 1, 1)]
    land(world, flight, records, confidence=confidence)
    report = world.scheduler.calibration()
    assert report.copied == ()
    assert [(e.depth, e.observations, e.predicted, e.accepted) for e in report.learned] == [
        (1, 2, 0.5, 0.5),
        (2, 2, 0.25, 0.5),
        (3, 2, 0.125, 0.5),
    ]
    assert report.forecast == report.learned, "the prior was as wrong as the untrained estimate"
    flight = fly(world, DEVICE, {"a": 4})
    land(world, flight, [lane(flight, 0, 4)], confidence=sidecar(world, {"a": (1.0, 1.0, 1.0)}))
    assert world.scheduler.calibration().forecast[0].predicted > 0.5


def test_a_catalog_without_proposals_has_nothing_to_calibrate() -> None:
    """Features that are off leave no trace (utility 7.11)."""
    world = measured_world(rows=2)
    assert world.scheduler.calibration() == ((), (), ())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("survival", [False, True])
def test_every_call_takes_the_oldest_frame_alone(packed: bool, survival: bool) -> None:
    """A wrong fence is refused before anything is looked at (8.3)."""
    world = decoding("a")
    flight = fly(world, DEVICE, {"a": 4})
    wrong = dataclasses.replace(flight, fence=flight.fence + 1)
    world.advance_to(flight.finish_ns)
    before = freeze(world.scheduler)
    with pytest.raises(FenceError):
        land(
            world,
            wrong,
            [],
            confidence=sidecar(world, {}) if packed else None,
            survival=sidecar(world, {}) if survival else None,
        )
    assert freeze(world.scheduler) == before
