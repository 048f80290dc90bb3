"""Measures servers in one interleaved run: A B A B, so that a slow minute hits all of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from flare.bench.driving import Driver
from flare.bench.errors import BenchError
from flare.bench.figures import Figures, failures_of, figures_of
from flare.bench.load_plan import LoadPlan, PlannedRequest, load_plan, warm_up_plan
from flare.bench.machine import busy_share
from flare.bench.records import RequestRecord
from flare.bench.scenario_files import NamedScenario
from flare.bench.session import Session, open_session, program_ns, wishes_fit
from flare.bench.starting import Command, running
from flare.bench.target import Target

_BUSY_SHARE: Final = 0.1
"""Others that use more of the processors than this spoil figures of servers on this machine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One server of the comparison: one that runs at a URL, or one that is started by a command."""

    name: str
    target: Target | None = None
    command: Command | None = None
    model: str | None = None
    api_key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured, and how."""

    contenders: tuple[Contender, ...]
    """The first is the one that ratios are about."""
    scenarios: tuple[NamedScenario, ...]
    rounds: int
    seed: int
    warm_up: bool = True
    timeout_s: float = 300.0
    """A request that takes longer has failed."""
    ready_s: float = 600.0
    """A started server that answers later has failed."""
    tokenizer_file: Path | None = None
    extra_body: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One scenario on one server in one round."""

    server: str
    scenario: str
    round_number: int
    """From 1."""
    records: tuple[RequestRecord, ...]
    figures: Figures
    failures: Mapping[str, tuple[int, str]]
    """Reason -> (requests, the first message)."""
    is_partial: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class Outcome:
    """Everything that was measured, also when it ended early."""

    settings: Settings
    runs: list[Run] = dataclasses.field(default_factory=list)
    targets: dict[str, Target] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    """Servers that could not be measured, and why."""
    ready_s: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    warm_up_requests: int = 0
    """Sent and not counted."""
    is_partial: bool = False

    def note(self, text: str) -> None:
        """Keep a remark, once."""
        if text not in self.notes:
            self.notes.append(text)


class Watcher(Protocol):
    """Is told how far the measurement is."""

    def begin(self, work: float) -> None:
        """Take the whole work, in any unit."""
        ...

    def advance(self, work: float) -> None:
        """Take work that has been done."""
        ...

    def say(self, text: str) -> None:
        """Take a sentence for the person who waits."""
        ...


class _StopError(Exception):
    """The person has asked to stop."""


async def measure(settings: Settings, watcher: Watcher, stop: asyncio.Event) -> Outcome:
    """Measure every scenario on every server, `rounds` times over.

    A stop gives what was measured so far. Raises BenchError when a server at a URL cannot be used;
    one that cannot be started is a failure of the outcome instead, and the others go on.
    """
    return await _Measuring(settings, watcher, stop).run()


class _Measuring:
    """The state of one measurement."""

    def __init__(self, settings: Settings, watcher: Watcher, stop: asyncio.Event) -> None:
        self._settings, self._watcher, self._stop = settings, watcher, stop
        self._outcome = Outcome(settings=settings)

    async def run(self) -> Outcome:
        settings = self._settings
        self._watcher.begin(self._whole_work())
        try:
            if any(one.command for one in settings.contenders):
                await self._by_server()
            else:
                await self._by_scenario()
        except _StopError:
            self._outcome.is_partial = True
        return self._outcome

    def _whole_work(self) -> float:
        settings, per_round, warm = self._settings, 0.0, 0.0
        for one in settings.scenarios:
            per_round += load_plan(one.scenario, settings.seed).work
            warm += warm_up_plan(one.scenario, settings.seed).work if settings.warm_up else 0.0
        return sum(
            settings.rounds * per_round + warm * (settings.rounds if one.command else 1)
            for one in settings.contenders
        )

    async def _by_scenario(self) -> None:
        """Servers that all run: their turns are as close together as single scenarios."""
        settings = self._settings
        sessions = {}
        for one in settings.contenders:
            assert one.target is not None
            sessions[one.name] = await self._open(one, one.target)
        self._watcher.say(f"seed {settings.seed}")
        for one in settings.contenders:
            await self._warm_up(one.name, sessions[one.name], 0)
        for number in range(1, settings.rounds + 1):
            for scenario in settings.scenarios:
                for name, session in sessions.items():
                    await self._measure_one(name, session, scenario, number)

    async def _by_server(self) -> None:
        """Servers that are started for their turn: one at a time has the machine to itself."""
        self._watcher.say(f"seed {self._settings.seed}")
        for number in range(1, self._settings.rounds + 1):
            for one in self._settings.contenders:
                try:
                    async with self._session_for_turn(one) as session:
                        # One that runs anyway is as warm as it was in the last round.
                        if one.command or number == 1:
                            await self._warm_up(one.name, session, number)
                        for scenario in self._settings.scenarios:
                            await self._measure_one(one.name, session, scenario, number)
                except BenchError as error:
                    self._check_stop()
                    self._outcome.failures.append(f"round {number}: {error}")
                    self._watcher.say(f"{one.name} FAILED: {error}")

    @asynccontextmanager
    async def _session_for_turn(self, one: Contender) -> AsyncIterator[Session]:
        if one.command is None:
            assert one.target is not None
            yield await self._open(one, one.target)
            return
        busy = await asyncio.to_thread(busy_share)
        if busy > _BUSY_SHARE:
            self._outcome.note(
                f"before {one.name} was started, others used {busy:.0%} of the processors"
            )
        self._watcher.say(f"starting {one.name}")
        async with running(one.command, self._settings.ready_s, self._stop) as started:
            self._outcome.ready_s.setdefault(one.name, []).append(started.ready_s)
            target = Target(name=one.name, url=started.url, model=one.model, api_key=one.api_key)
            yield await self._open(one, target)

    async def _open(self, one: Contender, target: Target) -> Session:
        settings = self._settings
        session = await open_session(
            target,
            [named.scenario for named in settings.scenarios],
            tokenizer_file=settings.tokenizer_file,
            extra_body=settings.extra_body,
            timeout_s=settings.timeout_s,
        )
        self._outcome.targets[one.name] = session.target
        for text in session.notes:
            self._outcome.note(f"{one.name} {text}")
        for named in settings.scenarios:
            plan = self._plan(one.name, named, 1)
            meeting = [plan.meeting.wish] if plan.meeting else []
            wishes_fit(session, named.scenario, [*(r.wish for r in plan.requests), *meeting])
        return session

    def _plan(self, server: str, named: NamedScenario, number: int) -> LoadPlan:
        return load_plan(
            named.scenario, self._settings.seed, named.name, number, self._twin_of(server)
        )

    def _twin_of(self, server: str) -> int:
        """Return how many earlier servers have the same URL.

        All servers get the same prompts, but a server that is compared with itself must not find
        them in its own prefix cache.
        """
        earlier, mine = [], None
        for one in self._settings.contenders:
            if one.name == server:
                mine = one.target and one.target.base
                break
            earlier.append(one.target and one.target.base)
        return sum(mine is not None and other == mine for other in earlier)

    async def _warm_up(self, name: str, session: Session, number: int) -> None:
        if not self._settings.warm_up:
            return
        self._watcher.say(f"warming {name} up")
        for place, named in enumerate(self._settings.scenarios):
            seed = self._settings.seed + 1000 * number + 10 * place + self._twin_of(name)
            plan = warm_up_plan(named.scenario, seed)
            records = await self._driver(session).run(plan)
            self._outcome.warm_up_requests += len(records)
            self._check_stop()

    def _driver(self, session: Session) -> Driver:
        def on_end(request: PlannedRequest) -> None:
            self._watcher.advance(request.work)

        return Driver(session, timeout_s=self._settings.timeout_s, stop=self._stop, on_end=on_end)

    async def _measure_one(
        self, name: str, session: Session, named: NamedScenario, number: int
    ) -> None:
        self._check_stop()
        plan = self._plan(name, named, number)
        before_ns = await program_ns(session.target)
        records = await self._driver(session).run(plan)
        after_ns = await program_ns(session.target)
        figures = figures_of(records, named.scenario.objectives)
        if before_ns is not None and after_ns is not None and records:
            begin = min(record.due_ns for record in records)
            span_ns = max(record.ended_ns for record in records) - begin
            figures["inside_programs_share"] = (after_ns - before_ns) / span_ns
        run = Run(
            server=name,
            scenario=named.name,
            round_number=number,
            records=tuple(records),
            figures=figures,
            failures=failures_of(records),
            is_partial=self._stop.is_set(),
        )
        if records:
            self._outcome.runs.append(run)
        self._watcher.say(_sentence(run, named, self._settings.rounds))
        self._check_stop()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _StopError


def _sentence(run: Run, named: NamedScenario, rounds: int) -> str:
    """Return one line about a run that has just ended."""
    shown = []
    for figure in named.scenario.headline:
        value = run.figures.get(figure)
        shown.append(f"{figure} {'-' if value is None else format(value, ',.4g')}")
    failed = "".join(f", {count} x {reason}" for reason, (count, _) in run.failures.items())
    where = f"round {run.round_number}/{rounds}" if rounds > 1 else "measured"
    return f"{where} {run.server} {run.scenario}: {', '.join(shown)}{failed}"
