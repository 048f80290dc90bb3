"""The baselines by name: `NAME` on the prepared catalog, `NAME-free` with steps of any shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from scheduling_sim.baselines.chunked import Chunked
from scheduling_sim.baselines.core import BaselineCore
from scheduling_sim.baselines.fcfs import Fcfs
from scheduling_sim.baselines.mlfq import SkipJoinMlfq
from scheduling_sim.baselines.policy import Observer, Policy
from scheduling_sim.baselines.prefill_first import PrefillFirst
from scheduling_sim.baselines.profile import decode_ns, prefill_time, step_time
from scheduling_sim.baselines.shapes import FreeShapes, PreparedShapes, Shapes
from scheduling_sim.baselines.srpt import ShortestRemaining
from scheduling_sim.baselines.vtc import Vtc
from scheduling_sim.baselines.widths import FixedWidth, TurboSpec
from scheduling_sim.platform import Platform
from scheduling_sim.registry import PolicyEntry

SARATHI_BUDGET_TOKENS = 512
"""A budget of the paper's evaluation for its stricter objective."""
VLLM_BUDGET_TOKENS = 2048
"""max_num_batched_tokens that the recorded runs of vLLM set (their meta.json), and the default of
its server where the device has less than 70 GiB of memory. From there on (an H200, an RTX PRO 6000
with 96 GB) the server's default is 8,192; `budget_tokens` and `max_batched_tokens` state others."""
PROFILED_PROMPT_TOKENS = 256


class _Made(NamedTuple):
    """A policy and, for one that learns, the same object as an observer."""

    policy: Policy
    observer: Observer | None = None


Maker = Callable[..., _Made]
"""`make(platform, shapes, **options)`."""


def _fcfs(platform: Platform, shapes: Shapes) -> _Made:
    del platform, shapes
    return _Made(Fcfs())


def _prefill_first(platform: Platform, shapes: Shapes) -> _Made:
    del platform, shapes
    return _Made(PrefillFirst())


def _chunked(
    platform: Platform, shapes: Shapes, *, budget_tokens: int = SARATHI_BUDGET_TOKENS
) -> _Made:
    del platform
    return _Made(Chunked(budget_tokens=max(budget_tokens, 2 * shapes.lanes)))


def _vllm(platform: Platform, shapes: Shapes, *, budget_tokens: int = VLLM_BUDGET_TOKENS) -> _Made:
    del platform, shapes
    return _Made(Chunked(budget_tokens=budget_tokens))


def _vtc(
    platform: Platform, shapes: Shapes, *, prompt_weight: float = 1.0, output_weight: float = 2.0
) -> _Made:
    del platform, shapes
    policy = Vtc(prompt_weight=prompt_weight, output_weight=output_weight)
    return _Made(policy, policy)


def _mlfq(
    platform: Platform,
    shapes: Shapes,
    *,
    quantum_ns: int = 0,
    levels: int = 12,
    starvation_ns: int = 30_000_000_000,
    batch_lanes: int = 0,
) -> _Made:
    """The first quantum is one step of one decoder unless it is given, as in the paper."""
    policy = SkipJoinMlfq(
        prefill_ns=prefill_time(platform.costs, shapes),
        quantum_ns=quantum_ns or decode_ns(platform.costs, shapes),
        levels=levels,
        starvation_ns=starvation_ns,
        batch_lanes=batch_lanes,
    )
    return _Made(policy, policy)


def _srpt(platform: Platform, shapes: Shapes, *, batch_lanes: int = 0) -> _Made:
    prompt = min(PROFILED_PROMPT_TOKENS, shapes.prompt_room(0))
    policy = ShortestRemaining(
        prompt_ns=prefill_time(platform.costs, shapes)(prompt) / prompt,
        output_ns=decode_ns(platform.costs, shapes),
        batch_lanes=batch_lanes,
    )
    return _Made(policy)


def _plain(platform: Platform, shapes: Shapes, *, budget_tokens: int = VLLM_BUDGET_TOKENS) -> _Made:
    return _vllm(platform, shapes, budget_tokens=budget_tokens)


def _fixed_width(
    platform: Platform,
    shapes: Shapes,
    *,
    width: int = 0,
    budget_tokens: int = VLLM_BUDGET_TOKENS,
) -> _Made:
    """Width 0 takes the widest there is; the best one is found by running them all."""
    base = Chunked(budget_tokens=budget_tokens)
    widths = shapes.widths()
    if width and width not in widths:
        raise ValueError(f"width is {width}; this catalog has rounds of widths {list(widths)}")
    return _Made(
        FixedWidth(base, width=width or widths[-1], step_ns=step_time(platform.costs, shapes))
    )


def _turbospec(
    platform: Platform,
    shapes: Shapes,
    *,
    acceptance: float = 0.7,
    memory: float = 0.95,
    budget_tokens: int = VLLM_BUDGET_TOKENS,
) -> _Made:
    policy = TurboSpec(
        Chunked(budget_tokens=budget_tokens),
        step_ns=step_time(platform.costs, shapes),
        acceptance=acceptance,
        memory=memory,
    )
    return _Made(policy, policy)


def _prepared(name: str, make: Maker, *, speculates: bool = False) -> Callable[..., BaselineCore]:
    """Return the builder on the prepared catalog; rounds run one frame at a time by default."""

    def build(
        platform: Platform, *, frames: int = 1 if speculates else 2, **options: object
    ) -> BaselineCore:
        resources = platform.resources
        shapes = PreparedShapes(platform.catalog, rows=resources.row_count, speculates=speculates)
        made = _make(name, make, platform, shapes, options)
        return BaselineCore(
            made.policy,
            shapes=shapes,
            resources=resources,
            observer=made.observer,
            frames=frames,
        )

    return build


def _free(name: str, make: Maker, *, grows: bool | None = None) -> Callable[..., BaselineCore]:
    """Return the builder for steps of any shape."""

    def build(
        platform: Platform,
        *,
        frames: int = 2,
        max_sequences: int = 256,
        max_batched_tokens: int = VLLM_BUDGET_TOKENS,
        page_growth: bool | None = grows,
        prefix_cache: bool = False,
        **options: object,
    ) -> BaselineCore:
        if prefix_cache and not platform.resources.page_prefixes:
            raise ValueError(
                f"{name}-free: prefix_cache finds nothing on {platform.name}, which has no "
                "page_prefixes; a platform with page_prefixes=True is right"
            )
        shapes = FreeShapes(max_sequences=max_sequences, max_batched_tokens=max_batched_tokens)
        made = _make(f"{name}-free", make, platform, shapes, options)
        return BaselineCore(
            made.policy,
            shapes=shapes,
            resources=platform.resources,
            observer=made.observer,
            frames=frames,
            grows=page_growth,
            prefix_cache=prefix_cache,
        )

    return build


def _make(
    name: str, make: Maker, platform: Platform, shapes: Shapes, options: Mapping[str, object]
) -> _Made:
    """Make a policy. Raises ValueError for an option that it does not have."""
    known = [*(make.__kwdefaults__ or {})]
    for option in options:
        if option not in known:
            more = f" and {', '.join(known)}" if known else ""
            raise ValueError(
                f"{name} has no option {option!r}; it has those of its shape (frames; in free "
                f"shape max_sequences, max_batched_tokens, page_growth, prefix_cache){more}"
            )
    return make(platform, shapes, **options)


def _entries() -> dict[str, PolicyEntry]:
    """Return every baseline in both shapes; whole reservations are Orca's, growth is vLLM's."""
    both: tuple[tuple[str, str, Maker, bool], ...] = (
        ("fcfs", "FCFS continuous batching (Orca)", _fcfs, False),
        (
            "prefill-first",
            "prompts before everything else (vLLM's first engine)",
            _prefill_first,
            True,
        ),
        ("chunked", "decoders first, chunks in a token budget (Sarathi-Serve)", _chunked, True),
        ("vllm", "the same with vLLM V1's budget", _vllm, True),
        ("vtc", "admission by virtual token counters of tenants (VTC)", _vtc, True),
        ("mlfq", "skip-join multi-level feedback queue (FastServe)", _mlfq, True),
        ("srpt", "clairvoyant: shortest remaining work first", _srpt, True),
    )
    entries = {}
    for name, summary, make, grows in both:
        entries[name] = PolicyEntry(summary, _prepared(name, make))
        entries[f"{name}-free"] = PolicyEntry(
            f"{summary}, steps of any shape", _free(name, make, grows=grows)
        )
    entries["plain"] = PolicyEntry("decoders first, no speculation", _prepared("plain", _plain))
    for name, summary, make in (
        ("fixed-width", "decoders first, rounds of one width", _fixed_width),
        ("turbospec", "decoders first, a width for the batch by goodput", _turbospec),
    ):
        entries[name] = PolicyEntry(summary, _prepared(name, make, speculates=True))
    return entries


ENTRIES: Mapping[str, PolicyEntry] = _entries()
