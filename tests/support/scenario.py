"""The commands of the golden scenarios: a `World` told in text, printed in text.

start gpu|cpu|tiny [cold|seeded|measured] rows= pages= page_size= prefills= scored= FIELD=
    Build the world; measured is the default. Any policy field may be given by its name.
start rounds mode=adaptive|fixed|ordinary width= rows= widths= ragged=D:QUARTERS,.. [device] copy=
    mixed=W:PROMPT,.. mixed_ordinary= vision= [states] prefills= [cold] snapshot_rows= preseeded=K
    FIELD=
    The recipe of `catalogs.Recipe`; measured is the default here too.
    With preseeded=K an earlier process has seen K drafted proposals accepted in every round.
duration NAME=MS            from now on, the program truly costs this
measure                     let the scheduler observe every true cost once, now
admit NAME prompt= output= ends_at= count= weight= [scored] [feedback]
    With count=N the requests are NAME0 to NAME(N-1). What of its proposals is accepted:
    accepts=K in every round, chance=P1,P2,.. by depth, script=K1,K2,.. by output position.
    tenant= and width_limit= as in RequestSpec; keep=N asks for the state at N prompt tokens.
run frames=                 run frames; prints them, equal neighbours folded
until ms=                   run until a moment after start
idle                        run until nothing is left
    These three take `quiet`, which prints only how often each program ran.
rounds frames=              run frames; prints what streams gained by them: least, most
submit                      fill the window; prints what was submitted
advance ms=                 let time pass
cancel NAME / stop NAME     client gone / stop string found
plan                        what would be submitted now
choices top=                the ranked candidates of the decision at this moment
spread                      outputs of all streams: least, most; and the worst gap
streams                     per request: phase, outputs, first output, worst gap
usage                       rows and pages in use
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable

from helios.scheduler import (
    DecodeMode,
    Endpoint,
    GraphKind,
    PolicyConfig,
    ProposalSource,
    ScheduledPlan,
    SelectionReason,
    SpeculationConfig,
)
from tests.support.catalogs import (
    NS_PER_MS,
    TINY,
    ModelledCatalog,
    Recipe,
    cpu_like,
    gpu_like,
    recipe,
)
from tests.support.datadriven import Arguments, ScenarioError
from tests.support.device import Acceptance, Always, Chance, Scripted
from tests.support.world import Flight, World, measure_all, measure_directly

POLICY_FIELDS = tuple(field.name for field in dataclasses.fields(PolicyConfig))


class Scenario:
    """One scenario file's state; call it with each command."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.start_ns = 0

    def __call__(self, name: str, arguments: Arguments) -> str:
        """Run one command and return its output."""
        handler: Callable[[Arguments], str] | None = getattr(self, f"on_{name}", None)
        if handler is None:
            raise ScenarioError(f"no command {name}")
        return handler(arguments)

    @property
    def now(self) -> World:
        """The world; an error before `start`."""
        if self.world is None:
            raise ScenarioError("start comes first")
        return self.world

    def on_start(self, arguments: Arguments) -> str:
        rows = arguments.number("rows", 16)
        is_rounds = arguments.flag("rounds")
        model = recipe(_recipe(arguments, rows)) if is_rounds else _model(arguments, rows)
        policy = PolicyConfig(
            **{
                field: float(arguments.text(field))
                for field in POLICY_FIELDS
                if field in arguments.named_without_reading()
            }
        )
        is_cold, is_seeded = arguments.flag("cold"), arguments.flag("seeded")
        arguments.flag("measured")
        self.world = World(
            model,
            rows=rows,
            pages=arguments.number("pages", 1024),
            page_size=arguments.number("page_size", 1024),
            policy=policy,
            seeded=model.duration_ns if is_seeded else None,
            speculation=_speculation(arguments) if is_rounds else None,
            more={"snapshot_rows": arguments.number("snapshot_rows", 0)},
        )
        if preseeded := arguments.text("preseeded", ""):
            _preseed(self.world, int(preseeded))
        if not is_cold and not is_seeded:
            (measure_directly if is_rounds else measure_all)(self.world)
        self.start_ns = self.world.now_ns
        return "ok"

    def on_duration(self, arguments: Arguments) -> str:
        for name, ms in arguments.named().items():
            self.now.model = self.now.model.with_duration(name, float(ms))
        return "ok"

    def on_measure(self, arguments: Arguments) -> str:
        measure_directly(self.now)
        return "ok"

    def on_admit(self, arguments: Arguments) -> str:
        world = self.now
        is_scored, needs_feedback = arguments.flag("scored"), arguments.flag("feedback")
        (name,) = [w for w in arguments.rest() if w not in ("scored", "feedback")]
        count = arguments.number("count", 0)
        fields = {
            "prompt": arguments.number("prompt", 64),
            "output": arguments.number("output", 4000),
            "ends_at": arguments.number("ends_at", 1 << 30),
            "weight": arguments.real("weight", 1.0),
            "tenant": arguments.text("tenant", ""),
            "width_limit": arguments.number("width_limit", 0),
            "endpoints": _kept(arguments),
            "acceptance": _acceptance(arguments),
        }
        names = [f"{name}{index}" for index in range(count)] or [name]
        for each in names:
            world.admit(each, scored=is_scored, needs_feedback=needs_feedback, **fields)
        return "\n".join(_phases(world, names))

    def on_run(self, arguments: Arguments) -> str:
        frames, quiet = arguments.number("frames"), arguments.flag("quiet")
        return self._frames(lambda: self.now.run(frames), quiet=quiet)

    def on_until(self, arguments: Arguments) -> str:
        ms = arguments.real("ms") + self.start_ns / NS_PER_MS
        return self._frames(lambda: self.now.run_until(ms), quiet=arguments.flag("quiet"))

    def on_idle(self, arguments: Arguments) -> str:
        return self._frames(self.now.run_until_idle, quiet=arguments.flag("quiet"))

    def on_rounds(self, arguments: Arguments) -> str:
        streams = self.now.streams.values()
        before = [len(stream.tokens) for stream in streams]
        self.now.run(arguments.number("frames"))
        gains = [len(stream.tokens) - count for stream, count in zip(streams, before, strict=True)]
        return f"least={min(gains)} most={max(gains)}"

    def on_submit(self, arguments: Arguments) -> str:
        return "\n".join(self._frame_line([f]) for f in self.now.submit()) or "nothing"

    def on_advance(self, arguments: Arguments) -> str:
        self.now.advance(arguments.real("ms"))
        return f"t={self._ms(self.now.now_ns)}"

    def on_cancel(self, arguments: Arguments) -> str:
        names = arguments.rest()
        for name in names:
            self.now.cancel(name)
        return "\n".join(_phases(self.now, names))

    def on_stop(self, arguments: Arguments) -> str:
        names = arguments.rest()
        for name in names:
            self.now.stop(name)
        return "\n".join(_phases(self.now, names))

    def on_plan(self, arguments: Arguments) -> str:
        plan = self.now.plan()
        if plan is None:
            return "nothing" + (" until the queue has drained" if self.now.queue else "")
        return _plan_line(self.now, plan)

    def on_streams(self, arguments: Arguments) -> str:
        world = self.now
        wanted = arguments.rest() or list(world.streams)
        lines = []
        for name in wanted:
            stream = world.streams[name]
            first = f"{stream.first_output_ms:.2f}" if stream.visible_ns else "-"
            gap = f"{max(stream.gaps_ms):.2f}" if stream.gaps_ms else "-"
            (phase,) = _phases(world, [name])
            lines.append(
                f"{phase} outputs={len(stream.tokens)} first_ms={first} worst_gap_ms={gap}"
            )
        return "\n".join(lines)

    def on_spread(self, arguments: Arguments) -> str:
        streams = list(self.now.streams.values())
        counts = [len(stream.tokens) for stream in streams]
        gaps = [gap for stream in streams for gap in stream.gaps_ms]
        worst = f"{max(gaps):.2f}" if gaps else "-"
        first = max(stream.first_output_ms for stream in streams if stream.visible_ns)
        return (
            f"least={min(counts)} most={max(counts)} latest_first_ms={first:.2f} "
            f"worst_gap_ms={worst}"
        )

    def on_usage(self, arguments: Arguments) -> str:
        return usage_line(self.now)

    def on_choices(self, arguments: Arguments) -> str:
        return choices_text(self.now, arguments.number("top", 5))

    # ---- printing -------------------------------------------------------------------------

    def _ms(self, now_ns: int) -> str:
        return f"{(now_ns - self.start_ns) / NS_PER_MS:.3f}"

    def _frames(self, run: Callable[[], None], *, quiet: bool) -> str:
        world = self.now
        done = {flight.fence for flight in world.log if flight not in world.queue}
        run()
        finished = [f for f in world.log if f.fence not in done and f not in world.queue]
        if quiet:
            counts = collections.Counter(flight.name for flight in finished)
            return "\n".join(f"{name} x{counts[name]}" for name in sorted(counts)) or "nothing"
        groups = itertools.groupby(
            finished, key=lambda f: (f.name, f.lanes, _prompt_of(f), _rows_of(f), _probe_of(f))
        )
        lines = [self._frame_line(list(group)) for _, group in groups]
        return "\n".join(lines) or "nothing"

    def _frame_line(self, flights: list[Flight]) -> str:
        first, last = flights[0], flights[-1]
        count = f" x{len(flights)}" if len(flights) > 1 else ""
        prompt = f" prompt={_prompt_of(first)}" if _prompt_of(first) else ""
        span = f"{self._ms(first.start_ns)}..{self._ms(last.finish_ns)}"
        reason = "" if first.plan.reason.value == "ordinary" else f" {first.plan.reason.value}"
        rows = _rows_of(first)
        return f"{span} {first.name}{count} {folded(first.lanes)}{prompt}{rows}{reason}"


def _model(arguments: Arguments, rows: int) -> ModelledCatalog:
    if arguments.flag("cpu"):
        return cpu_like()
    if arguments.flag("tiny"):
        return TINY
    if not arguments.flag("gpu"):
        raise ScenarioError("which machine? gpu, cpu or tiny")
    prefills = [int(word) for word in arguments.text("prefills", "64,512,4096").split(",")]
    scored = [int(word) for word in arguments.text("scored", "").split(",") if word]
    return gpu_like(rows=rows, prefills=prefills, scored=scored)


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Read `3:64,1:256`."""
    words = [word.partition(":") for word in text.split(",") if word]
    return tuple((int(left), int(right)) for left, _, right in words)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _recipe(arguments: Arguments, rows: int) -> Recipe:
    return Recipe(
        rows=rows,
        prefills=_numbers(arguments.text("prefills", "64,512,4096")),
        ordinary=arguments.flag("ordinary"),
        widths=_numbers(arguments.text("widths", "1,2,4,8")),
        ragged=_pairs(arguments.text("ragged", "")),
        device=arguments.flag("device"),
        copy_depths=_numbers(arguments.text("copy", "")),
        mixed=_pairs(arguments.text("mixed", "")),
        mixed_ordinary=_numbers(arguments.text("mixed_ordinary", "")),
        vision=_numbers(arguments.text("vision", "")),
        states=arguments.flag("states"),
    )


def _speculation(arguments: Arguments) -> SpeculationConfig:
    mode = DecodeMode(arguments.text("mode", "adaptive"))
    return SpeculationConfig(mode=mode, fixed_width=arguments.number("width", 0))


def _preseed(world: World, accepts: int) -> None:
    """Install what an earlier process learned of drafts of which so many were accepted."""
    depth = max(graph.proposal_depth for graph in world.model.catalog.graphs)
    survivals = [float(each < accepts) for each in range(depth)]
    world.scheduler.seed_acceptance(ProposalSource.LEARNED, survivals, weight=64.0)


def _kept(arguments: Arguments) -> tuple[Endpoint, ...]:
    tokens = arguments.number("keep", 0)
    return (Endpoint(tokens, b"kept"),) if tokens else ()


def _acceptance(arguments: Arguments) -> Acceptance:
    chances, script = arguments.text("chance", ""), arguments.text("script", "")
    accepts = arguments.number("accepts", 0)
    if chances:
        return Chance(tuple(float(word) for word in chances.split(",")))
    if script:
        return Scripted(_numbers(script))
    return Always(accepts)


def _rows_of(flight: Flight) -> str:
    """Target rows of a round's lanes: together when they are equal, else by lane."""
    graph = flight.plan.graph
    if graph.token_capacity == 1 or graph.kind not in (GraphKind.SPECULATIVE, GraphKind.MIXED):
        return ""
    steps = zip(flight.lanes, flight.plan.steps, strict=True)
    rows = {name: step.output_ceiling for name, step in steps if not step.prompt_tokens}
    if len(set(rows.values())) <= 1:
        return f" rows={next(iter(rows.values()), 0)}"
    return " rows=" + ",".join(f"{name}:{count}" for name, count in sorted(rows.items()))


def _probe_of(flight: Flight) -> str:
    """The reason of a funded probe; what follows it is not one."""
    reason = flight.plan.reason
    is_probe = reason in (SelectionReason.TIMING_REFRESH, SelectionReason.ACCEPTANCE_LEARNING)
    return reason.value if is_probe else ""


def _phases(world: World, names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        phase = world.scheduler.phase_of(world.streams[name].handle)
        found.append(f"{name}: {phase.name.lower()}")
    return found


def _prompt_of(flight: Flight) -> int:
    return sum(step.prompt_tokens for step in flight.plan.steps)


def _plan_line(world: World, plan: ScheduledPlan) -> str:
    names = folded(tuple(world.by_handle[step.handle].name for step in plan.steps))
    prompt = sum(step.prompt_tokens for step in plan.steps)
    tail = f" prompt={prompt}" if prompt else ""
    wait = " needs-empty-queue" if plan.needs_empty_queue else ""
    estimate = f"{plan.estimated_duration_ns / NS_PER_MS:.3f}ms"
    return f"{plan.graph.name} {names}{tail} {estimate} {plan.reason.value}{wait}"


def folded(names: tuple[str, ...]) -> str:
    """Join names; a run of numbered ones such as s0,s1,s2 becomes s0-2."""
    out: list[str] = []
    ordered = sorted(names, key=lambda n: (n.rstrip("0123456789"), len(n), n))
    keys = [(n.rstrip("0123456789"), n[len(n.rstrip("0123456789")) :]) for n in ordered]
    index = 0
    while index < len(keys):
        stem, number = keys[index]
        end = index
        while (
            number
            and end + 1 < len(keys)
            and keys[end + 1][0] == stem
            and keys[end + 1][1]
            and int(keys[end + 1][1]) == int(keys[end][1]) + 1
        ):
            end += 1
        out.append(f"{stem}{number}-{keys[end][1]}" if end > index else f"{stem}{number}")
        index = end + 1
    return ",".join(out)


def usage_line(world: World) -> str:
    """Rows and pages that somebody owns, and who waits."""
    usage = world.scheduler.usage()
    return (
        f"rows={usage.rows_in_use} pages={usage.pages_in_use} waiting={usage.waiting} "
        f"frames={len(usage.in_flight)}"
    )


def choices_text(world: World, top: int) -> str:
    """The ranked candidates of the decision now, six significant digits."""
    world.plan()
    lines = []
    for score in world.scheduler.explain()[:top]:
        names = folded(tuple(world.by_handle[handle].name for handle in score.handles))
        then = f"+{score.following}" if score.following else ""
        lines.append(
            f"{score.value_rate:.6g} {score.graph}{then} {names} service={score.service_value:.6g} "
            f"delivery={score.delivery_value:.6g} age={score.age_credit:.6g} "
            f"terminal={score.terminal_value:.6g} waiting={score.waiting_cost:.6g}"
        )
    return "\n".join(lines) or "nothing"
