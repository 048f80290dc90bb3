"""Which cuts of a prompt are kept, and what keeping more than the anchor may cost.

The anchor is kept whenever there is room. Everything else pays from an allowance of the request's
own: a share of its estimated prefill work, and of its measured decode time for the response's end.
docs/design/scheduling-runtime.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from helios.scheduler.checkpoints import Checkpoint, Guard, Key, Role
from helios.scheduler.records import Endpoint

MeasuredShape = tuple[int, float]
"""Prompt capacity in tokens and estimated duration in ms, which is positive."""


class Cut(NamedTuple):
    """A token count at which prefill stops, so that the state there can be kept."""

    tokens: int
    key: Key
    role: Role
    cost_ms: float
    """Estimated split and copy, paid from the allowance; zero for the anchor."""


class Keeping:
    """What one request has to do with checkpoints; only requests with endpoints have one."""

    __slots__ = ("armed", "credit_ms", "cuts", "demand_ns", "guard", "overran", "source")

    def __init__(self) -> None:
        self.cuts: tuple[Cut, ...] = ()
        """Those still to come, in prompt order."""
        self.armed: Checkpoint | None = None
        """Its destination is reserved; the request's next state copy fills it."""
        self.source: Checkpoint | None = None
        """What it resumes from, pinned until the state has been copied out."""
        self.guard: Guard | None = None
        """Room for its anchor."""
        self.demand_ns = 0
        """When it was seated: the demand that its captures are made for."""
        self.credit_ms = 0.0
        """Allowance for a terminal capture, earned by its completed decode."""
        self.overran = False
        """The device went on beyond the last committed token, so its state is that of no prefix."""


class PrefillWork:
    """Estimates how long the measured prefill graphs take for a number of tokens.

    Full chunks of one capacity, then the rest in equal chunks of another; the cheapest such pair.
    """

    __slots__ = ("_shapes",)

    def __init__(self, shapes: Sequence[MeasuredShape]) -> None:
        self._shapes = tuple(shape for shape in shapes if shape[1] > 0.0)

    @property
    def is_known(self) -> bool:
        """Tell whether anything is measured."""
        return bool(self._shapes)

    def of(self, tokens: int) -> float:
        """Return the estimate in ms; zero tokens are no work. Something must be measured."""
        assert self._shapes
        return min(
            tokens // capacity * duration_ms + self._rest(tokens % capacity)
            for capacity, duration_ms in self._shapes
        )

    def _rest(self, tokens: int) -> float:
        return min(-(-tokens // capacity) * duration_ms for capacity, duration_ms in self._shapes)

    def split_ms(self, start: int, cut: int, end: int) -> float:
        """Return what stopping at `cut` adds to the prefill from `start` to `end`."""
        parts = self.of(cut - start) + self.of(end - cut)
        return max(0.0, parts - self.of(end - start))


def choose_cuts(
    endpoints: Sequence[Endpoint],
    *,
    prompt_tokens: int,
    resumed_tokens: int,
    is_known: Callable[[Key], bool],
    work: PrefillWork,
    copy_ms: float,
    fraction: float,
    is_free: bool = False,
) -> tuple[Cut, ...]:
    """Return the cuts of a prompt that is resumed at `resumed_tokens`, in prompt order.

    `copy_ms` is the snapshot's estimated duration, zero or less when its cost is unknown or has
    expired. Then, or without a measured prefill, the anchor remains alone. `is_free` says that
    keeping needs neither split nor copy, because the pages are the whole state.
    """
    eligible = {
        endpoint.tokens: endpoint
        for endpoint in endpoints
        if resumed_tokens < endpoint.tokens <= prompt_tokens and not is_known(endpoint.key)
    }
    messages = [endpoint for endpoint in eligible.values() if endpoint.ends_message]
    end = eligible.get(prompt_tokens)
    anchor = messages[-1] if messages else end
    if anchor is None:
        return ()
    cuts = [Cut(anchor.tokens, anchor.key, Role.ANCHOR, 0.0)]
    extras = [(endpoint, Role.EARLIER) for endpoint in reversed(messages[:-1])]
    if end is not None and end is not anchor:
        extras.append((end, Role.PROMPT_END))
    if is_free:
        cuts += [Cut(endpoint.tokens, endpoint.key, role, 0.0) for endpoint, role in extras]
    elif work.is_known and copy_ms > 0.0:
        allowance_ms = fraction * work.of(prompt_tokens - resumed_tokens)
        bounds = (resumed_tokens, prompt_tokens)
        _add_extras(cuts, extras, bounds, work, copy_ms=copy_ms, allowance_ms=allowance_ms)
    return tuple(sorted(cuts))


def _add_extras(
    cuts: list[Cut],
    extras: Sequence[tuple[Endpoint, Role]],
    bounds: tuple[int, int],
    work: PrefillWork,
    *,
    copy_ms: float,
    allowance_ms: float,
) -> None:
    """Add each extra whose split and copy still fit the allowance, in the order of `extras`."""
    spent_ms = 0.0
    for endpoint, role in extras:
        start = max([bounds[0], *(cut.tokens for cut in cuts if cut.tokens < endpoint.tokens)])
        end = min([bounds[1], *(cut.tokens for cut in cuts if cut.tokens > endpoint.tokens)])
        cost_ms = work.split_ms(start, endpoint.tokens, end) + copy_ms
        if spent_ms + cost_ms <= allowance_ms:
            spent_ms += cost_ms
            cuts.append(Cut(endpoint.tokens, endpoint.key, role, cost_ms))
