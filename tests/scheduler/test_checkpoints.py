"""Checkpoints: lookup, ownership, victims and guards (runtime section 5)."""

from __future__ import annotations

import itertools
import random

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helios.scheduler import Endpoint, ResourceConfig
from helios.scheduler.checkpoints import NO_ROW, Checkpoint, CheckpointStore, Role
from helios.scheduler.resources import ResourcePool
from tests.scheduler.oracles import checkpoints as twin

PAGE = 4


def pool_of(*, pages: int = 32, snapshots: int = 4, rows: int = 8) -> ResourcePool:
    return ResourcePool(
        ResourceConfig(
            row_count=rows,
            page_count=pages,
            page_size_tokens=PAGE,
            context_length_tokens=256,
            snapshot_rows=snapshots,
        )
    )


def kept(
    pool: ResourcePool,
    store: CheckpointStore,
    key: bytes,
    tokens: int,
    role: Role = Role.ANCHOR,
    *,
    demand: int = 0,
    with_row: bool = True,
) -> Checkpoint:
    """Publish a checkpoint whose source has left."""
    row, pages = pool.reserve(pool.config.pages_for(tokens))
    snapshot = pool.take_snapshot() if with_row else NO_ROW
    made = store.arm(key, tokens, role, snapshot_row=snapshot, demand_ns=demand)
    store.publish(made, pages[: tokens // PAGE])
    pool.release(row, pages)
    return made


# Lookup -----------------------------------------------------------------------------------------


def test_lookup_is_the_deepest_proper_prefix() -> None:
    """At least one token is left to compute, so an endpoint at the prompt's end is not resumed."""
    pool = pool_of()
    store = CheckpointStore(pool)
    for key, tokens in ((b"a", 5), (b"b", 9), (b"c", 12)):
        kept(pool, store, key, tokens)
    wanted = [Endpoint(5, b"a"), Endpoint(9, b"b"), Endpoint(12, b"c")]
    assert store.deepest(wanted, 13).key == b"c"
    assert store.deepest(wanted, 12).key == b"b"
    assert store.deepest(wanted, 9).key == b"a"
    assert store.deepest(wanted, 5) is None
    assert store.deepest(wanted[:1], 13).key == b"a"
    assert store.deepest([Endpoint(6, b"a")], 13) is None, "the key is that of another endpoint"


def test_a_missing_deep_state_falls_back_to_the_deepest_complete_one() -> None:
    """Field report 12: one missing checkpoint does not throw away the whole prefix."""
    pool = pool_of()
    store = CheckpointStore(pool)
    kept(pool, store, b"a", 5, demand=1)
    kept(pool, store, b"b", 9, demand=0)
    wanted = [Endpoint(5, b"a"), Endpoint(9, b"b")]
    store.make_room(pool.pages_free + 1)
    assert store.deepest(wanted, 20).key == b"a"


def test_an_armed_checkpoint_is_not_found() -> None:
    """Publication comes only after the copy."""
    pool = pool_of()
    store = CheckpointStore(pool)
    row, pages = pool.reserve(3)
    made = store.arm(b"a", 9, Role.ANCHOR, snapshot_row=pool.take_snapshot(), demand_ns=0)
    assert store.is_known(b"a")
    assert store.deepest([Endpoint(9, b"a")], 20) is None
    store.publish(made, pages[:2])
    assert store.deepest([Endpoint(9, b"a")], 20) is made
    pool.release(row, pages)


def test_pages_alone_are_resumed_at_the_last_full_page() -> None:
    """Without a state row the match is at page granularity, and a short prefix is none."""
    pool = pool_of()
    store = CheckpointStore(pool)
    made = kept(pool, store, b"a", 11, with_row=False)
    assert store.resume_at(made) == 8
    assert store.deepest([Endpoint(11, b"a")], 9) is made
    assert store.deepest([Endpoint(11, b"a")], 8) is None
    kept(pool, store, b"b", 3, with_row=False)
    assert store.deepest([Endpoint(3, b"b")], 50) is None


@pytest.mark.parametrize("with_row", [True, False])
def test_lookup_equals_brute_force_on_a_small_world(with_row: bool) -> None:
    """Every subset of four prefixes published, every prompt length."""
    endpoints = [Endpoint(3, b"a"), Endpoint(4, b"b"), Endpoint(7, b"c"), Endpoint(9, b"d")]
    cases = 0
    for count in range(5):
        for chosen in itertools.combinations(endpoints, count):
            pool = pool_of()
            store = CheckpointStore(pool)
            plain = []
            for order, endpoint in enumerate(chosen):
                made = kept(pool, store, endpoint.key, endpoint.tokens, with_row=with_row)
                plain.append(
                    twin.Kept(
                        endpoint.key, endpoint.tokens, 3, 0, order, made.pages, has_row=with_row
                    )
                )
            for prompt in range(1, 12):
                wanted = [e for e in endpoints if e.tokens <= prompt]
                found = store.deepest(wanted, prompt)
                pairs = [(e.tokens, e.key) for e in wanted]
                expected = twin.deepest(plain, pairs, prompt, PAGE)
                assert (found.key if found else None) == expected
                cases += 1
    assert cases == 16 * 11


def test_lookup_equals_brute_force_on_ten_thousand_random_worlds() -> None:
    """Up to eight prefixes of any length, with and without a state row, asked for in any prompt."""
    source, found = random.Random(5), 0
    for _ in range(10_000):
        pool = pool_of(pages=64, snapshots=8)
        store = CheckpointStore(pool)
        endpoints = [Endpoint(tokens, b"%d" % tokens) for tokens in source.sample(range(1, 30), 8)]
        plain = []
        for order, endpoint in enumerate(endpoints[: source.randint(0, 8)]):
            with_row = source.random() < 0.5
            made = kept(pool, store, endpoint.key, endpoint.tokens, with_row=with_row)
            plain.append(
                twin.Kept(endpoint.key, endpoint.tokens, 3, 0, order, made.pages, has_row=with_row)
            )
        prompt = source.randint(1, 32)
        wanted = sorted(e for e in source.sample(endpoints, 6) if e.tokens <= prompt)
        deepest = store.deepest(wanted, prompt)
        pairs = [(e.tokens, e.key) for e in wanted]
        assert (deepest.key if deepest else None) == twin.deepest(plain, pairs, prompt, PAGE)
        found += deepest is not None
    assert 2_000 < found < 9_000


# Victims ----------------------------------------------------------------------------------------


def test_victims_by_demand_then_role_then_endpoint_then_age() -> None:
    """Extras first, anchors last, shorter first; the last word is the order of creation."""
    pool = pool_of(snapshots=8)
    store = CheckpointStore(pool)
    kept(pool, store, b"recent", 8, Role.EARLIER, demand=5)
    kept(pool, store, b"anchor", 8, Role.ANCHOR)
    kept(pool, store, b"terminal", 12, Role.TERMINAL)
    kept(pool, store, b"end", 12, Role.PROMPT_END)
    kept(pool, store, b"long", 16, Role.EARLIER)
    kept(pool, store, b"short", 8, Role.EARLIER)
    kept(pool, store, b"twin", 8, Role.EARLIER)
    order = []
    known = [b"recent", b"anchor", b"terminal", b"end", b"long", b"short", b"twin"]
    while True:
        before = [key for key in known if store.is_known(key)]
        if not before:
            break
        store.make_room(pool.pages_free + 1)
        gone = [key for key in before if not store.is_known(key)]
        assert len(gone) == 1
        order += gone
    assert order == [b"short", b"twin", b"long", b"end", b"terminal", b"anchor", b"recent"]


VictimWorld = list[tuple[int, Role, int, str]]
"""Demand, role, tokens, and who else has its pages: `free`, `resident` (a live request), `pinned`
(a newcomer who shares its pages is still copying from it)."""


def check_victims(world: VictimWorld, *, for_row: bool) -> None:
    """Ask for one page or row after the other; the twin lists every victim, the worst first."""
    pool = pool_of(snapshots=len(world))
    store = CheckpointStore(pool)
    plain, residents = [], []
    for order, (demand, role, tokens, state) in enumerate(world):
        key = b"%d" % order
        row, pages = pool.reserve(pool.config.pages_for(tokens))
        snapshot = pool.take_snapshot()
        made = store.arm(key, tokens, role, snapshot_row=snapshot, demand_ns=demand)
        store.publish(made, pages[: tokens // PAGE])
        if state == "resident":
            residents.append(pages)
        else:
            pool.release(row, pages)
        if state == "pinned":
            store.pin(made)
            residents.append(pool.reserve(0, made.pages)[1])
        plain.append(
            twin.Kept(key, tokens, role, demand, order, made.pages, True, int(state == "pinned"))
        )
    expected = twin.victims(plain, residents, for_row=for_row)
    gone: list[object] = []
    while len(gone) < len(expected):
        if for_row:
            assert store.obtain_mandatory() is not None
        else:
            store.make_room(pool.pages_free + 1)
        left = {one.key for one in plain if store.is_known(one.key)}
        gone += [one.key for one in plain if one.key not in left and one.key not in gone]
        assert gone == expected[: len(gone)], (world, for_row)
    assert not for_row or store.obtain_mandatory() is None, "nobody else is a victim"
    assert for_row or pool.pages_available == pool.pages_free, "no page of anybody else can be had"


VICTIM_KINDS = [
    (demand, role, tokens, state)
    for demand in (0, 5)
    for role in (Role.EARLIER, Role.ANCHOR)
    for tokens in (4, 8)
    for state in ("free", "resident", "pinned")
]


@pytest.mark.parametrize("for_row", [True, False])
def test_the_victims_of_every_small_world(for_row: bool) -> None:
    """All pairs of checkpoints of two demands, roles, endpoints and three states, in either order
    of creation; equal ones go in the order of creation (5.6)."""
    for world in itertools.product(VICTIM_KINDS, repeat=2):
        check_victims(list(world), for_row=for_row)


@pytest.mark.parametrize("for_row", [True, False])
def test_the_victims_of_ten_thousand_random_worlds(for_row: bool) -> None:
    """Up to six checkpoints of every role (5.6)."""
    source = random.Random(f"victims {for_row}")
    for _ in range(5_000):
        world = [
            (
                source.choice([0, 0, 3, 5]),
                source.choice(list(Role)),
                source.choice([1, 4, 8, 8, 12]),
                source.choice(["free", "free", "resident", "pinned"]),
            )
            for _ in range(source.randint(1, 6))
        ]
        check_victims(world, for_row=for_row)


def test_a_checkpoint_shared_with_a_live_request_is_no_victim_for_pages_but_one_for_rows() -> None:
    """Evicting it would free no page; its snapshot row is free to be had."""
    pool = pool_of(pages=8, snapshots=1)
    store = CheckpointStore(pool)
    row, pages = pool.reserve(3)
    shared = store.arm(b"a", 9, Role.EARLIER, snapshot_row=pool.take_snapshot(), demand_ns=0)
    store.publish(shared, pages[:2])
    assert pool.pages_available == pool.pages_free == 5
    assert not pool.can_reserve(6)
    assert store.can_obtain((1, Role.EARLIER, 1, 1))
    assert store.obtain_mandatory() == 0
    assert not store.is_known(b"a")
    assert pool.pages_free == 5
    pool.release(row, pages)
    assert pool.pages_free == 8


def test_two_checkpoints_that_share_every_page_are_both_victims() -> None:
    """Alone neither frees a page; together they free them all, so neither blocks the other."""
    pool = pool_of(pages=8)
    store = CheckpointStore(pool)
    row, pages = pool.reserve(2)
    for key, tokens in ((b"a", 8), (b"b", 9)):
        made = store.arm(key, tokens, Role.EARLIER, snapshot_row=pool.take_snapshot(), demand_ns=0)
        store.publish(made, pages[:2])
    pool.release(row, pages)
    assert (pool.pages_free, pool.pages_available) == (6, 8)
    store.make_room(8)
    assert pool.pages_free == 8
    assert store.stats().evictions == 2


def test_a_pinned_checkpoint_stays() -> None:
    """Until the state has been copied out neither its row nor its pages may go."""
    pool = pool_of(pages=4, snapshots=1)
    store = CheckpointStore(pool)
    made = kept(pool, store, b"a", 8)
    row, pages = pool.reserve(1, made.pages)
    store.pin(made)
    assert store.obtain_mandatory() is None
    assert not store.can_obtain((9, Role.ANCHOR, 9, 9))
    assert pool.pages_available == 1
    assert store.clear() == 0
    store.unpin(made)
    assert store.can_obtain((9, Role.ANCHOR, 9, 9))
    pool.release(row, pages)
    assert store.clear() == 1
    assert pool.pages_free == 4


def test_an_extra_never_displaces_what_ranks_above_it() -> None:
    """The prompt's end of a request does not cost the anchor of the same request."""
    pool = pool_of(snapshots=1)
    store = CheckpointStore(pool)
    kept(pool, store, b"anchor", 8, Role.ANCHOR, demand=7)
    assert store.obtain((7, Role.PROMPT_END, 12, 99)) is None
    assert store.is_known(b"anchor")
    assert store.obtain((8, Role.PROMPT_END, 12, 99)) == 0
    assert not store.is_known(b"anchor")


def test_a_demand_protects_every_prefix_it_names() -> None:
    """Demand recency comes before role and endpoint."""
    pool = pool_of()
    store = CheckpointStore(pool)
    kept(pool, store, b"a", 8, Role.EARLIER)
    kept(pool, store, b"b", 12, Role.EARLIER)
    kept(pool, store, b"c", 8, Role.ANCHOR)
    store.demand([Endpoint(8, b"a"), Endpoint(12, b"b"), Endpoint(20, b"unknown")], 3)
    store.make_room(pool.pages_free + 1)
    assert not store.is_known(b"c")
    store.make_room(pool.pages_free + 1)
    assert not store.is_known(b"a")


# Guards -----------------------------------------------------------------------------------------


def test_a_guarded_row_is_kept_from_earlier_optional_captures() -> None:
    """The last row goes to the anchor that comes later, not to the extra that comes first."""
    store = CheckpointStore(pool_of(snapshots=1))
    guard = store.guard()
    assert guard is not None
    assert store.guard() is None, "all room is spoken for"
    assert store.obtain((5, Role.EARLIER, 4, 0)) is None
    assert store.obtain((5, Role.ANCHOR, 8, 1), guard) == 0
    assert not guard.held


def test_mandatory_execution_revokes_an_unused_guard() -> None:
    """The latest guard loses; the row comes from under it."""
    store = CheckpointStore(pool_of(snapshots=2))
    first, second = store.guard(), store.guard()
    assert first is not None
    assert second is not None
    assert store.obtain_mandatory() == 0
    assert (first.held, second.held) == (True, False)
    assert store.obtain((5, Role.ANCHOR, 8, 1), second) is None, "the other guard is still held"
    assert store.obtain((5, Role.ANCHOR, 8, 1), first) == 1
    assert store.obtain_mandatory() is None


def test_an_ended_guard_frees_its_room() -> None:
    """Twice does nothing."""
    store = CheckpointStore(pool_of(snapshots=1))
    guard = store.guard()
    assert guard is not None
    store.unguard(guard)
    store.unguard(guard)
    assert store.can_obtain((0, Role.EARLIER, 1, 1))


def test_giving_back_twice_is_our_bug() -> None:
    """Every row and page goes back exactly once."""
    pool = pool_of()
    store = CheckpointStore(pool)
    made = store.arm(b"a", 4, Role.ANCHOR, snapshot_row=pool.take_snapshot(), demand_ns=0)
    store.disarm(made)
    with pytest.raises(AssertionError):
        store.disarm(made)
    with pytest.raises(AssertionError):
        pool.free_snapshot(0)
    with pytest.raises(AssertionError):
        store.publish(made, ())


# Random histories -------------------------------------------------------------------------------


class StoreMachine(RuleBasedStateMachine):
    """Residents come, share, keep and leave; victims go; the twin counts all from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(pages=24, snapshots=3)
        self.store = CheckpointStore(self.pool)
        self.residents: list[tuple[int, tuple[int, ...]]] = []
        self.kept: list[twin.Kept] = []
        self.objects: dict[object, Checkpoint] = {}
        self.now = 0
        self.made = 0

    def pages(self) -> list[tuple[int, ...]]:
        return [pages for _, pages in self.residents]

    def evicted(self) -> list[object]:
        """What the store has given up since the last look, in the order of creation."""
        gone = [one.key for one in self.kept if not self.store.is_known(one.key)]
        self.kept = [one for one in self.kept if one.key not in gone]
        return gone

    @rule(count=st.integers(1, 6), share=st.integers(0, 1 << 16))
    def seat(self, count: int, share: int) -> None:
        source = self.kept[share % (len(self.kept) + 1) - 1] if self.kept else None
        shared = source.pages if source and share % 3 else ()
        # Pages that are about to be shared are no room any more.
        available = self.pool.pages_available - self.pool.idle_pages(shared)
        if not self.pool.rows_free or count > available:
            return
        if source and shared:
            self.store.pin(self.objects[source.key])
            source.pins += 1
        # As seating does it: who shares pages is their resident before room is made for the rest.
        self.pool.use(shared)
        useful = twin.victims(self.kept, [*self.pages(), shared], for_row=False)
        self.store.make_room(count)
        gone = self.evicted()
        assert sorted(gone) == sorted(useful[: len(gone)]), "the worst victims go, and no others"
        expected = sorted(twin.free_pages(24, self.kept, [*self.pages(), shared]))[:count]
        assert self.pool.lowest_pages(count) == tuple(expected)
        row, pages = self.pool.reserve(count)
        assert pages == tuple(expected)
        self.residents.append((row, (*shared, *pages)))
        if source and shared:
            self.store.unpin(self.objects[source.key])
            source.pins -= 1

    @precondition(lambda self: self.residents)
    @rule(pick=st.integers(0, 1 << 16))
    def leave(self, pick: int) -> None:
        row, pages = self.residents.pop(pick % len(self.residents))
        self.pool.release(row, pages)

    @precondition(lambda self: self.residents)
    @rule(
        pick=st.integers(0, 1 << 16),
        cut=st.integers(1, 30),
        role=st.sampled_from(Role),
        with_row=st.booleans(),
        mandatory=st.booleans(),
    )
    def keep(self, pick: int, cut: int, role: Role, with_row: bool, mandatory: bool) -> None:
        _, pages = self.residents[pick % len(self.residents)]
        tokens = min(cut, len(pages) * PAGE)
        rank = (self.now, role, tokens, self.made)
        row = NO_ROW
        if with_row:
            free = self.pool.snapshots_free
            useful = twin.victims(self.kept, self.pages(), for_row=True)
            worst = [one.rank for one in self.kept if one.key == useful[0]] if useful else []
            expected = free > 0 or (bool(worst) and (mandatory or worst[0] < rank))
            taken = self.store.obtain_mandatory() if mandatory else self.store.obtain(rank)
            assert (taken is not None) == expected
            gone = self.evicted()
            assert gone == ([] if free or not expected else useful[:1])
            if taken is None:
                return
            row = taken
        key = b"%d" % self.made
        made = self.store.arm(key, tokens, role, snapshot_row=row, demand_ns=self.now)
        self.made += 1
        self.store.publish(made, pages[: tokens // PAGE])
        self.objects[key] = made
        self.kept.append(
            twin.Kept(key, tokens, role, self.now, made.sequence, made.pages, has_row=with_row)
        )

    @precondition(lambda self: self.kept)
    @rule(pick=st.integers(0, 1 << 16), later=st.integers(0, 3))
    def demand(self, pick: int, later: int) -> None:
        self.now += later
        one = self.kept[pick % len(self.kept)]
        self.store.demand([Endpoint(one.tokens, one.key)], self.now)
        one.demand = self.now

    @invariant()
    def pages_add_up(self) -> None:
        free = twin.free_pages(24, self.kept, self.pages())
        used = {page for pages in self.pages() for page in pages}
        assert self.pool.pages_free == len(free)
        assert self.pool.reclaimable == 24 - len(free) - len(used)
        assert self.pool.snapshots_free == 3 - sum(one.has_row for one in self.kept)

    def teardown(self) -> None:
        while self.residents:
            self.leave(0)
        self.store.clear()
        assert self.pool.pages_free == 24
        assert self.pool.snapshots_free == 3
        assert self.pool.rows_free == 8


TestStore = StoreMachine.TestCase
TestStore.settings = hypothesis.settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
