"""Every kind of program under the simulation, with faults, few pages and kept states."""

from __future__ import annotations

import dataclasses
import random

import pytest

from helios.scheduler import GraphKind
from scheduling_sim.faults import Faults
from scheduling_sim.platforms import platform
from scheduling_sim.run_log import RunLog
from scheduling_sim.simulation import Setup, simulate
from scheduling_sim.workload.records import ImageInput, Segment, Workload, WorkloadRequest
from tests.sim.worlds import MS, Chances, ask, asked, poisson, reasons

SMALL = {"rows": 4, "prefills": (64, 512), "context": 4096}
ROUNDS = {**SMALL, "decode": False, "widths": (1, 2, 4), "reports_survival": True}
DEVICE = {**ROUNDS, "device_depths": (5,)}
MIXED = {**SMALL, "mixed": (64, 128)}
MIXED_ROUNDS = {**ROUNDS, "mixed": (64,), "widths": (1, 4)}
GROWING = {
    **SMALL,
    "page_growth": True,
    "states": True,
    "snapshot_rows": 4,
    "pages": 24,
}
GROWING_ROUNDS = {**GROWING, **MIXED_ROUNDS, "pages": 24}
PREFIXES = {**SMALL, "page_prefixes": True, "pages": 200}
FAULTY = Faults(
    late_probability=0.1,
    missing_probability=0.1,
    failed_probability=0.004,
    cancel_probability=0.02,
    outlier_probability=0.02,
)
ALL = {
    "rounds": ROUNDS,
    "device": DEVICE,
    "mixed": MIXED,
    "mixed-rounds": MIXED_ROUNDS,
    "growing": GROWING,
    "growing-rounds": GROWING_ROUNDS,
    "prefixes": PREFIXES,
}


def run(
    workload: Workload,
    options: dict[str, object],
    faults: Faults | None = None,
    seed: int = 0,
    **policy: object,
) -> RunLog:
    return simulate(
        Setup(
            platform=platform("synthetic", **options),
            workload=workload,
            options=policy,
            acceptance=Chances(),
            faults=faults or Faults(),
            seed=seed,
        )
    )


def kinds_used(log: RunLog) -> set[str]:
    """Return the kinds of programs that ran."""
    return {log.graph_names[index].rsplit("-b", 1)[0] for index in log.steps.graph_index}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_histories_of_every_kind_keep_every_invariant(name: str, seed: int) -> None:
    """The checker looks at every frame, token and delivery, the device at every lane."""
    log = run(conversations(seed, users=6), ALL[name], FAULTY, seed)
    ended = reasons(log)
    assert "unfinished" not in ended
    assert sum(ended.values()) == 18
    assert ended["stop"] > 0


def conversations(seed: int, *, users: int, turns: int = 3) -> Workload:
    """Return users whose every turn repeats what was said before."""
    draw, requests = random.Random(seed), []
    for user in range(users):
        said: tuple[Segment, ...] = (Segment(7, 128),)
        before, ends = None, (128,)
        for turn in range(turns):
            name = f"u{user}t{turn}"
            identity = 1000 * user + 2 * turn
            prompt = (*said, Segment(identity, draw.randrange(20, 400)))
            output = Segment(identity + 1, draw.randrange(2, 60))
            length = sum(segment.tokens for segment in prompt)
            ends = (*ends, length)
            requests.append(
                WorkloadRequest(
                    request_id=name,
                    arrival_ns=draw.randrange(300) * MS,
                    prompt=prompt,
                    output=output,
                    max_output_tokens=draw.choice((output.tokens, 100)),
                    endpoints=ends,
                    keep_terminal=turn + 1 < turns,
                    follows=before,
                )
            )
            said, before, ends = (*prompt, output), name, (*ends, length + output.tokens)
    return asked(*requests)


def test_a_conversation_resumes_from_kept_states() -> None:
    """Following turns find what their predecessors left, by the engine's own hashing."""
    log = run(conversations(1, users=2), {**SMALL, "states": True, "snapshot_rows": 8})
    assert "snapshot" in kinds_used(log)
    assert "restore" in kinds_used(log)
    assert log.checkpoints is not None
    cached = sum(entry.cached_prompt_tokens for entry in log.requests)
    assert cached == log.checkpoints.restored_tokens > 0
    for entry in log.requests:
        assert entry.cached_prompt_tokens + sum(entry.prompt_tokens) == entry.request.prompt_tokens


def test_a_shared_prefix_is_found_in_pages() -> None:
    """With page prefixes no copy is needed: a later request starts behind whole shared pages."""
    log = run(conversations(1, users=3), PREFIXES)
    assert any(entry.cached_prompt_tokens for entry in log.requests)
    assert all(entry.cached_prompt_tokens % 64 == 0 for entry in log.requests)


def test_preempted_requests_come_back_and_say_the_same() -> None:
    """Pages run out, requests are sent away and resume; the checker compares every token."""
    requests = [ask(f"r{index}", index, 100, 500) for index in range(4)]
    log = run(asked(*requests), {**GROWING, "pages": 24})
    assert log.preemptions > 0
    assert reasons(log) == {"stop": 4}
    assert all(sum(entry.delivery_tokens) == 500 for entry in log.requests)


def test_an_exhausted_pool_is_no_livelock() -> None:
    """One request fills all pages alone, and others wait for it (field report 22)."""
    requests = [ask(f"r{index}", index, 400, 600) for index in range(4)]
    log = run(asked(*requests), {**GROWING, "pages": 17, "states": False, "snapshot_rows": 0})
    assert reasons(log) == {"stop": 4}


def test_rounds_accept_what_the_model_says() -> None:
    """At a fixed width the mean accepted length is that of the probabilities."""
    requests = [ask(f"r{index}", 0, 60, 800) for index in range(4)]
    log = run(asked(*requests), {**ROUNDS, "widths": (4,)}, mode="fixed", width=4)
    steps = log.steps
    spoken = [i for i, offered in enumerate(steps.offered) if offered]
    offered = sum(steps.offered[i] for i in spoken)
    accepted = sum(steps.accepted[i] for i in spoken)
    expected = 0.8 + 0.8 * 0.7 + 0.8 * 0.7 * 0.6
    assert accepted / (offered / 3) == pytest.approx(expected, rel=0.06)
    assert sum(steps.useful_rows) == 4 * (60 + 801)
    tokens = [n for entry in log.requests for n in entry.delivery_tokens]
    assert max(tokens) == 4


def test_copies_of_an_image_prompt_pass_the_vision_program() -> None:
    """An image is encoded before the chunk that holds it."""
    request = dataclasses.replace(
        ask("seen", 0, 200, 10), images=(ImageInput(position=20, tokens=40, content=9),)
    )
    options: dict[str, object] = {
        **SMALL,
        "vision": (64,),
        "feature_rows": 128,
        "states": True,
        "snapshot_rows": 2,
    }
    log = run(asked(request), options)
    assert any(name.startswith("vision") for name in kinds_used(log))
    assert reasons(log) == {"stop": 1}


def test_mixed_graphs_carry_a_prompt_beside_decoders() -> None:
    """Both kinds of lanes advance in one frame."""
    log = run(asked(ask("old", 0, 50, 200), ask("new", 150, 1000, 5)), MIXED)
    assert GraphKind.MIXED.name.lower() in kinds_used(log)
    assert reasons(log) == {"stop": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_histories_of_every_kind(name: str, seed: int) -> None:
    """More seeds, more users."""
    log = run(conversations(seed, users=15), ALL[name], FAULTY, seed)
    assert "unfinished" not in reasons(log)
    log = run(poisson(30, 20.0, seed), ALL[name], FAULTY, seed)
    assert "unfinished" not in reasons(log)
