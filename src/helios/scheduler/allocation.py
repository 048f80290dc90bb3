"""Who gets the target rows of a packed round: the causal frontier, for device and host.

Every lane has its pending row. The remaining rows go one at a time to the best frontier, the next
proposal of some lane. Whether depth d is admitted depends on that lane's values up to d alone: an
allocator that looked at what was drawn there, or later, would bias the output distribution.
See docs/design/scheduling-utility.md section 8.
"""

from __future__ import annotations

import numpy as np

from helios.scheduler.acceptance import Flags, Floats, Integers


def frontier_order(values: Floats, ceilings: Integers, slots: Integers) -> Integers:
    """Return the lanes in the order in which they are given rows beyond their pending one.

    `values` [n, depth] are nonincreasing over depth (a later rise is read as its lane's minimum so
    far), `ceilings` [n] bound lengths, and `slots` [n] are the distinct physical rows. Entry j of
    the result, int64 [sum of min(ceiling - 1, depth)], is the lane of the j-th admission. Ties go
    to the shorter prefix, then to the smaller slot.
    """
    depth = values.shape[1]
    by_slot = np.argsort(slots)
    ranked = np.minimum.accumulate(values[by_slot], axis=1)
    within = np.arange(1, depth + 1)[:, None] < ceilings[by_slot]
    # Depth-major, slots ascending: a stable sort leaves equal values in exactly the tie order.
    lanes = np.broadcast_to(by_slot, (depth, len(slots)))[within]
    return lanes[np.argsort(-ranked.T[within], kind="stable")].astype(np.int64)


def lengths_of_cohorts(order: Integers, members: Flags, packed: Integers) -> Integers:
    """Return the lengths of many cohorts of the same lanes, int64 [m, n]; zero for outsiders.

    `members` [m, n] picks the cohorts, `packed` [m] are their capacities, each at least its size.
    The relative order of a cohort's proposals does not depend on who else is in it.
    """
    inside = members[:, order]
    spare = packed - members.sum(axis=1)
    admitted = inside & (np.cumsum(inside, axis=1) <= spare[:, None])
    count = members.shape[1]
    lengths = members.astype(np.int64)
    cohorts, places = np.nonzero(admitted)
    flat = np.bincount(cohorts * count + order[places], minlength=lengths.size)
    return lengths + flat.reshape(lengths.shape)


def device_lengths(
    confidence: Floats, ceilings: Integers, slots: Integers, packed_capacity: int
) -> Integers:
    """Return the lengths that a device gives its lanes, the pending row included, int64 [n].

    `confidence` [n, depth] are joint prefix probabilities: the host predicts with forecast means.
    It is what the first admissions of `frontier_order` come to: who is above the last value that is
    admitted needs no order, and of those at that value the first by the ties are admitted. Raises
    nothing: a capacity below one row per lane is the caller's bug.
    """
    count, depth = confidence.shape
    room = packed_capacity - count
    assert room >= 0, "every lane has its pending row"
    falling = np.minimum.accumulate(confidence, axis=1)
    within = np.arange(1, depth + 1) < ceilings[:, None]
    claims = falling[within]
    left_out = len(claims) - room
    lengths: Integers = np.ones(count, dtype=np.int64)
    if left_out <= 0:
        lengths += np.add.reduce(within, axis=1, dtype=np.int64)
        return lengths
    if not room:
        return lengths
    claims.partition(left_out)
    last = claims[left_out]
    lengths += np.add.reduce((falling > last) & within, axis=1, dtype=np.int64)
    spare = packed_capacity - int(np.add.reduce(lengths))
    by_slot = slots.argsort()
    # Depth-major, slots ascending: the order of ties.
    tied = ((falling == last) & within)[by_slot].T.nonzero()[1][:spare]
    lengths += np.bincount(by_slot[tied], minlength=count)
    return lengths


def host_lengths(
    survivals: Floats,
    token_values: Floats,
    ceilings: Integers,
    slots: Integers,
    packed_capacity: int,
    *,
    alpha: float = 1.0,
) -> Integers:
    """Return the exact lengths that the host gives its lanes before proposals are drawn, int64 [n].

    Rows go to the largest priced marginal, survival**alpha * token value (`token_values` [n]).
    """
    marginals = (survivals if alpha == 1.0 else survivals**alpha) * token_values[:, None]
    return device_lengths(marginals, ceilings, slots, packed_capacity)
