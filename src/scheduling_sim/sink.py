"""SimulatedSink: clients that see their output the moment the loop makes it visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from helios.engine.messages import Delta, EngineEvent, Finished, Rejected
from scheduling_sim.checkers import Checker
from scheduling_sim.clock import VirtualClock
from scheduling_sim.draws import SimulatedRequest
from scheduling_sim.workload.content import END_TOKEN

_VISIBLE: Final = "x"


class CountingDetokenizer:
    """One visible character per token: what a client needs to count."""

    __slots__ = ()

    def push(self, token_id: int) -> str:
        """Return the text of a token."""
        return "" if token_id == END_TOKEN else _VISIBLE

    def finish(self) -> str:
        """Return what is left: nothing ever is."""
        return ""


_DETOKENIZER: Final = CountingDetokenizer()


def detokenizer_of(prompt_token_ids: Sequence[int]) -> CountingDetokenizer:
    """Return the detokenizer of a request; it keeps nothing, so all share it."""
    del prompt_token_ids
    return _DETOKENIZER


class SimulatedSink:
    """Implements `helios.engine.ports.TokenSink`: writes deliveries and ends into the logs."""

    def __init__(
        self,
        clock: VirtualClock,
        live: dict[str, SimulatedRequest],
        checker: Checker,
        on_end: Callable[[SimulatedRequest], None],
    ) -> None:
        self._clock = clock
        self._live = live
        self._checker = checker
        self._on_end = on_end

    def emit(self, events: Sequence[EngineEvent]) -> None:
        """Take visible events."""
        now_ns = self._clock.now_ns()
        for event in events:
            if isinstance(event, Delta):
                self._deliver(event, now_ns)
            elif isinstance(event, Finished):
                self._finish(event, now_ns)
            elif isinstance(event, Rejected):
                self._reject(event, now_ns)

    def _deliver(self, delta: Delta, now_ns: int) -> None:
        """Log the tokens that a client can see; the end token is not one of them."""
        state = self._live[delta.request_id]
        count = len(delta.token_ids)
        self._checker.on_delivered(state, count)
        if not delta.text:
            return
        if delta.token_ids[-1] == END_TOKEN:
            count -= 1
        state.log.delivery_ns.append(now_ns)
        state.log.delivery_tokens.append(count)

    def _finish(self, finished: Finished, now_ns: int) -> None:
        state = self._live.pop(finished.request_id)
        log = state.log
        log.finished_ns = now_ns
        log.reason = finished.reason
        log.error = finished.error
        log.cached_prompt_tokens = finished.cached_prompt_tokens
        self._checker.on_finished(state, finished)
        self._on_end(state)

    def _reject(self, rejected: Rejected, now_ns: int) -> None:
        state = self._live.pop(rejected.request_id)
        state.log.finished_ns = now_ns
        state.log.reason = "rejected"
        state.log.error = f"{rejected.code}: {rejected.message}"
        self._on_end(state)
