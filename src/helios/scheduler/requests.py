"""Request state and the handle table with generations.

A Request object belongs to one (slot, generation) for its whole life, so holding the object can
never charge or touch a later request in the same slot.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from helios.scheduler.catalog import GraphKind
from helios.scheduler.checkpoints import Checkpoint
from helios.scheduler.checks import shown
from helios.scheduler.errors import UnknownHandleError
from helios.scheduler.lifecycle import Event, next_phase
from helios.scheduler.records import Phase, RequestHandle, RequestSpec
from helios.scheduler.retention import Keeping
from helios.scheduler.speculation import SavedHistory
from helios.scheduler.tenants import Account, WaitingLines

NO_PAGES: tuple[int, ...] = ()
UNLIMITED = 1 << 62
"""The reach of a request whose pages limit nothing."""


class ImageWindow(NamedTuple):
    """The images whose features are in the prepared storage of a request, or about to be."""

    first: int
    """First image of the window; its features start at offset zero."""
    end: int
    """One past the last image of the window."""
    image: int
    """The next one to encode."""


class Request:
    """Everything the scheduler knows about one request; progress counters are committed ones."""

    __slots__ = (
        "account",
        "arrival",
        "copies",
        "delivery_price",
        "end_token_seen",
        "epoch",
        "handle",
        "incarnation",
        "is_leaving",
        "keeping",
        "last_used",
        "leaving_since_ns",
        "max_output",
        "needs_feedback",
        "output_count",
        "pages",
        "phase",
        "preemptions",
        "prompt_done",
        "prompt_tokens",
        "queued",
        "queued_tokens",
        "reach",
        "resumed_tokens",
        "retired_state",
        "row",
        "saved",
        "served_ns",
        "snapshot_row",
        "spec",
        "stages",
        "stops",
        "tenant",
        "terminal_since_ns",
        "transfer_row",
        "visible_ns",
        "weight",
        "window",
    )

    def __init__(
        self,
        handle: RequestHandle,
        spec: RequestSpec,
        arrival: int,
        epoch: int,
        account: Account | None = None,
    ) -> None:
        self.handle = handle
        self.spec = spec
        self.tenant = spec.tenant
        self.account = Account() if account is None else account
        """Where its token price is; the members of a tenant share one."""
        self.weight = spec.weight
        self.needs_feedback = spec.needs_feedback
        self.prompt_tokens = spec.prompt_tokens
        self.max_output = spec.max_output_tokens
        self.arrival = arrival
        """Admission order; the last word of every tie, because slots are labels only."""
        self.epoch = epoch
        """State version at which ownership or progress last changed."""
        self.phase = Phase.WAITING
        self.row = 0
        self.pages = NO_PAGES
        self.prompt_done = 0
        self.output_count = 0
        self.end_token_seen = False
        self.queued = 0
        """Submitted frames that hold this request."""
        self.queued_tokens = 0
        """Most output tokens that those frames can commit."""
        self.stages: tuple[GraphKind, ...] = (GraphKind.INITIALIZE,)
        """Prerequisites still to run before its next inference, in order; empty: ready."""
        self.stops = spec.boundaries
        """Rising positions that no prefill chunk crosses: boundaries, and cuts for snapshots."""
        self.window: ImageWindow | None = None
        """None for a request without images, and before its first stages are set."""
        self.incarnation = 0
        """Generation of its execution state; each INITIALIZE or RESTORE binds the next one."""
        self.snapshot_row = -1
        """The snapshot row it owns; -1 for none."""
        self.copies = 0
        """Copy proposals that the host has supplied for its next round."""
        self.last_used = -1
        """Commit number of the last frame that held it."""
        self.served_ns = 0
        """Time of its last token service, or of getting its row."""
        self.delivery_price: float | None = None
        """Absent until the first publication."""
        self.visible_ns = 0
        """Time of the last visible output, or of entering decode."""
        self.terminal_since_ns = 0
        self._own_nothing()

    def _own_nothing(self) -> None:
        """Set what concerns checkpoints, growth and preemption before anything has happened."""
        self.transfer_row = -1
        """A checkpoint's row that its next RESTORE reads or SNAPSHOT writes; -1: its own row."""
        self.keeping: Keeping | None = None
        """Its part in checkpoints; None while it has none."""
        self.resumed_tokens = 0
        """Prompt tokens that it had from a checkpoint when it was seated."""
        self.reach = UNLIMITED
        """Tokens that its next lane may write with the pages at hand."""
        self.is_leaving = False
        """Preemption was decided: it is selected no more until it is seated again."""
        self.leaving_since_ns = 0
        self.preemptions = 0
        self.retired_state: Checkpoint | None = None
        """Its state at the last preemption, while that was worth keeping."""
        self.saved: SavedHistory | None = None
        """Its acceptance estimates while it has no row."""

    def move(self, event: Event, epoch: int) -> None:
        """Apply one lifecycle event. Raises PhaseError and changes nothing when it is illegal."""
        self.phase = next_phase(self.phase, event)
        self.epoch = epoch

    @property
    def token_price(self) -> float | None:
        """The price of its account, in ms per token."""
        return self.account.token_price

    @token_price.setter
    def token_price(self, price: float | None) -> None:
        self.account.token_price = price

    @property
    def is_newcomer(self) -> bool:
        """Nothing of it was ever served. What a preempted one has to compute again was."""
        return self.prompt_done == 0 and not self.preemptions

    @property
    def remaining_prompt(self) -> int:
        """Prompt tokens not yet consumed."""
        return self.prompt_tokens - self.prompt_done

    def position_after(self, queued: int) -> int:
        """Return the tokens in the cache once `queued` submitted decode lanes have run.

        The last output token is pending: produced, but not yet fed to the model.
        """
        if self.output_count == 0 or self.prompt_done < self.prompt_tokens:
            return self.prompt_done
        return self.spec.prompt_tokens + self.output_count - 1 + queued


class RequestTable:
    """Handles, the lines of those who wait, and the resident requests in seating order."""

    __slots__ = ("_free_slots", "_requests", "admitted", "resident", "waiting")

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._free_slots: list[int] = []
        self.admitted = 0
        self.waiting: WaitingLines[Request] = WaitingLines()
        self.resident: list[Request] = []

    def add(self, spec: RequestSpec, epoch: int) -> Request:
        """Issue a handle (lowest free slot, next generation) at the end of its tenant's line."""
        if self._free_slots:
            slot = heapq.heappop(self._free_slots)
            handle = RequestHandle(slot, self._requests[slot].handle.generation + 1)
        else:
            slot = len(self._requests)
            handle = RequestHandle(slot, 0)
        account = self.waiting.join(spec.tenant)
        request = Request(handle, spec, self.admitted, epoch, account)
        if slot == len(self._requests):
            self._requests.append(request)
        else:
            self._requests[slot] = request
        self.admitted += 1
        self.waiting.append(request)
        return request

    def find(self, handle: RequestHandle) -> Request:
        """Return the request of an issued handle, released or not.

        Raises UnknownHandleError when it was never issued or its slot was issued again, and for
        what is no tuple of two integers. A bool or a float is none, although it may equal one.
        """
        try:
            request = self._requests[handle[0]]
            if request.handle is handle:
                return request
        except (IndexError, KeyError, TypeError):
            # The checks below say what is wrong with it.
            pass
        if not isinstance(handle, tuple) or list(map(type, handle)) != [int, int]:
            raise UnknownHandleError(f"{shown(handle)} is no RequestHandle")
        slot, generation = handle
        if not 0 <= slot < len(self._requests):
            raise UnknownHandleError(f"no request was ever issued {shown(handle)}")
        request = self._requests[slot]
        if request.handle[1] != generation:
            raise UnknownHandleError(f"{shown(handle)}: the slot is at {request.handle}")
        return request

    def current(self, handles: list[RequestHandle]) -> list[Request] | None:
        """Return the requests of many handles; None when `find` has an objection to one of them."""
        requests = self._requests
        try:
            found = [requests[slot] for slot, _ in handles]
        except IndexError:
            return None
        return found if [request.handle for request in found] == handles else None

    def live(self, handle: RequestHandle) -> Request:
        """Return the request of a handle that still owns or waits for something."""
        request = self.find(handle)
        if request.phase is Phase.RELEASED:
            raise UnknownHandleError(f"{handle} was released")
        return request

    def free_slot(self, request: Request) -> None:
        """Let the slot of a released request be issued again."""
        assert request.phase is Phase.RELEASED
        self.waiting.leave(request.tenant)
        heapq.heappush(self._free_slots, request.handle.slot)
