"""The engine process: opens the model, greets, and turns the loop until drained or orphaned.

One thread runs the engine loop and sleeps in one poll over the link and the executor; the
executor's thread runs programs. SIGTERM drains. When the parent is gone the process ends at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Final

import numpy as np
import numpy.typing as npt

from helios.engine.admission import AdmissionRules
from helios.engine.copying import PromptLookup, copied_survivals, lookup_depth
from helios.engine.core import EngineCore, StepOutcome
from helios.engine.messages import PROTOCOL_VERSION, Drain, Ready
from helios.engine.ports import Copying, DetokenizerFactory, PreparedModel
from helios.engine.trace import header_record
from helios.runtime.clock import MonotonicClock
from helios.runtime.executor_thread import ThreadExecutor
from helios.runtime.grammar_thread import GrammarThread
from helios.runtime.link import EngineLink, LinkError, LinkSink, StartFailed
from helios.runtime.settings import EngineSettings
from helios.runtime.trace_file import TraceFile
from helios.scheduler import (
    Catalog,
    GraphDescriptor,
    ProposalSource,
    ResourceConfig,
    Scheduler,
)

COMMANDS_PER_TURN: Final = 64
"""Commands taken before the loop looks at finished frames again."""
_SWITCH_INTERVAL_S: Final = 0.0002
_SURVIVAL_WEIGHT: Final = 4.0
"""Rounds that usual acceptance counts for when a request starts."""
_PR_SET_PDEATHSIG: Final = 1

EXIT_DRAINED: Final = 0
EXIT_START_FAILED: Final = 3
EXIT_ORPHANED: Final = 4


def engine_main(connection: socket.socket, settings: EngineSettings, parent_pid: int) -> None:
    """Run an engine over `connection` until it is drained; the entry point of the process."""
    _prepare_process(parent_pid)
    link = EngineLink(connection)
    try:
        model = settings.open_model()
        detokenizers = settings.open_detokenizers()
        trace = TraceFile.create(settings.trace_path) if settings.trace_path else None
    except Exception as fault:
        link.send([StartFailed(message=f"{type(fault).__name__}: {fault}")])
        link.close()
        raise SystemExit(EXIT_START_FAILED) from fault
    host = EngineHost(link, settings, model, detokenizers, trace)
    try:
        link.send([_greeting(settings, model)])
        host.run()
    except LinkError:
        # Nobody is left to answer. A running program cannot be interrupted and its result is of
        # no use to anyone, so the process ends without waiting for it.
        host.flush_trace()
        os._exit(EXIT_ORPHANED)
    host.close()


class EngineHost:
    """EngineCore with a real clock, a real executor, and one poll to wait in."""

    def __init__(
        self,
        link: EngineLink,
        settings: EngineSettings,
        model: PreparedModel,
        detokenizers: DetokenizerFactory,
        trace: TraceFile | None,
    ) -> None:
        self._link = link
        self._trace = trace
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._drain_requested = False
        clock = MonotonicClock()
        resources = dataclasses.replace(model.resources, waiting_limit=settings.waiting_limit)
        self._executor = ThreadExecutor(model.programs, clock, on_finished=self._wake)
        self._grammars: GrammarThread | None = None
        if settings.open_grammars is not None:
            self._grammars = GrammarThread(settings.open_grammars, on_finished=self._wake)
        scheduler = Scheduler(
            catalog=model.catalog,
            resources=resources,
            policy=settings.policy,
            speculation=settings.speculation,
        )
        # A package may hold seeds of programs that this start left out.
        loaded = [graph.name for graph in model.catalog.graphs]
        seeds = model.cost_seeds_ns
        scheduler.seed_costs({name: seeds[name] for name in loaded if name in seeds})
        proposes = starts_learned(scheduler, settings.draft_survivals)
        self._core = EngineCore(
            scheduler=scheduler,
            executor=self._executor,
            clock=clock,
            sink=LinkSink(link),
            detokenizers=detokenizers,
            rules=_rules(settings, resources, proposes=proposes),
            trace=trace,
            copying=_copying(scheduler),
            grammars=self._grammars,
        )
        if trace is not None:
            trace.write(
                header_record(
                    model=settings.model.name,
                    catalog=model.catalog,
                    policy=settings.policy,
                    resources=resources,
                    at_ns=clock.now_ns(),
                    started_unix_ns=time.time_ns(),
                )
            )
        self._poller = select.poll()
        self._poller.register(self._wake_fd, select.POLLIN)
        self._poller.register(link, select.POLLIN)
        signal.signal(signal.SIGTERM, self._on_terminate)

    def run(self) -> None:
        """Turn the loop until it is drained. Raises LinkError when the parent is gone."""
        outcome = StepOutcome.IDLE
        while outcome is not StepOutcome.DRAINED:
            self._take_commands()
            if self._drain_requested:
                self._drain_requested = False
                self._core.handle(Drain())
            outcome = self._core.step()
            self._link.flush()
            if self._grammars is not None and self._grammars.is_holding:
                # A held request has yet to be answered, if only with a refusal.
                outcome = StepOutcome.RUNNING
            if outcome is not StepOutcome.DRAINED and not self._link.has_commands:
                self._sleep(outcome)

    def _take_commands(self) -> None:
        """Hand the core what has arrived, and the requests whose grammars have been compiled."""
        grammars = self._grammars
        for command in self._link.receive(COMMANDS_PER_TURN):
            if grammars is None or not grammars.holds_back(command):
                self._core.handle(command)
        if grammars is not None and grammars.is_holding:
            for submit in grammars.released():
                self._core.handle(submit)

    def close(self) -> None:
        """Send what is left, end the executor's thread and close everything."""
        if self._grammars is not None:
            self._grammars.close()
        self._executor.close()
        self.flush_trace()
        self._link.close()
        os.close(self._wake_fd)

    def flush_trace(self) -> None:
        """Write the buffered trace records."""
        if self._trace is not None:
            self._trace.flush()

    def _sleep(self, outcome: StepOutcome) -> None:
        """Wait for a command, a finished frame or a signal; forever when nothing is running."""
        if outcome is StepOutcome.IDLE:
            self.flush_trace()
        events = select.POLLIN | (select.POLLOUT if self._link.has_unsent else 0)
        self._poller.modify(self._link, events)
        self._poller.poll(0 if outcome is StepOutcome.STALLED else None)
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            # The link woke us up; no frame has finished.
            return

    def _wake(self) -> None:
        """End the current poll; called on the executor's thread and in signal handlers."""
        os.eventfd_write(self._wake_fd, 1)

    def _on_terminate(self, _signal: int, _frame: FrameType | None) -> None:
        self._drain_requested = True
        self._wake()


def _prepare_process(parent_pid: int) -> None:
    """Arrange signals, the parent's death and the interpreter's thread switching."""
    # A terminal sends Ctrl-C to the whole group; the HTTP process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The executor's thread must not wait 5 ms, the default, for the lock when a replay ends
    # while the engine's thread is in the middle of its own work.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # The closed link already says that the parent is gone; this also ends a process that is
    # stuck inside a program and does not look at its link.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)


def _rules(
    settings: EngineSettings, resources: ResourceConfig, *, proposes: bool
) -> AdmissionRules:
    """Return what requests are checked against; `proposes` where programs propose by themselves."""
    return AdmissionRules(
        resources=resources,
        vocabulary_size=settings.model.vocabulary_size,
        eos_token_ids=settings.model.eos_token_ids,
        grammar_learned_limit=int(proposes),
    )


def _generating(scheduler: Scheduler) -> list[GraphDescriptor]:
    """Return the programs that streams may run in."""
    return [
        graph
        for graph in scheduler.catalog.graphs
        if Catalog.generates(graph, scheduler.speculation)
    ]


def _deepest(scheduler: Scheduler) -> int:
    return max(graph.proposal_depth for graph in scheduler.catalog.graphs)


def starts_learned(scheduler: Scheduler, survivals: Sequence[float]) -> bool:
    """Return whether programs propose by themselves, and let requests start as they should there.

    They start with what the training of the head has measured, if anything is known of it. What the
    requests of this process show moves that start for those that follow, as with copies.
    """
    if all(graph.source is not ProposalSource.LEARNED for graph in _generating(scheduler)):
        return False
    known = tuple(survivals)[: _deepest(scheduler)]
    if known:
        scheduler.seed_acceptance(
            ProposalSource.LEARNED, known, weight=_SURVIVAL_WEIGHT, is_taught=True
        )
    return True


def _copying(scheduler: Scheduler) -> Copying | None:
    """Return how proposals are copied; None where no program of the decode mode takes any.

    Requests start with acceptance as it usually is: from the scheduler's own prior, one half per
    proposal, a request would be half over before a wide round had shown what it is worth. What the
    requests of this process show moves that start for those that follow.
    """
    depth = lookup_depth(_generating(scheduler))
    if not depth:
        return None
    survivals = copied_survivals(_deepest(scheduler))
    scheduler.seed_acceptance(
        ProposalSource.COPY, survivals, weight=_SURVIVAL_WEIGHT, is_taught=True
    )
    return Copying(
        open_source=functools.partial(_open_lookup, depth),
        supply=scheduler.supply_copies,
        depth=depth,
    )


def _open_lookup(depth: int, _request_id: str, prompt: npt.NDArray[np.int32]) -> PromptLookup:
    return PromptLookup(prompt, depth=depth)


def _greeting(settings: EngineSettings, model: PreparedModel) -> Ready:
    """Return the Ready event."""
    resources = model.resources
    return Ready(
        protocol_version=PROTOCOL_VERSION,
        model=settings.model.name,
        context_length_tokens=resources.context_length_tokens,
        row_count=resources.row_count,
        page_count=resources.page_count,
        page_size_tokens=resources.page_size_tokens,
        vocabulary_size=settings.model.vocabulary_size,
        graphs=tuple(graph.name for graph in model.catalog.graphs),
        backend=settings.model.backend,
        precision=settings.model.precision,
    )
