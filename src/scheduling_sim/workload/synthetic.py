"""The generated workloads that have names: one function each, its keywords being the options.

Lengths are texts as `lengths.length_rule` reads them, so that a command line can give them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scheduling_sim.workload import arrivals
from scheduling_sim.workload.arrivals import NS_PER_S, TimesNs
from scheduling_sim.workload.assembly import Shape, assembled, single_requests
from scheduling_sim.workload.azure import read_azure
from scheduling_sim.workload.content import content_identity
from scheduling_sim.workload.conversations import ConversationRules, closed_loop
from scheduling_sim.workload.conversations import conversations as conversation_requests
from scheduling_sim.workload.errors import WorkloadError, require
from scheduling_sim.workload.lengths import MAX_TOKENS, length_rule, output_limit
from scheduling_sim.workload.mixes import with_acceptance, with_cancellations, with_images
from scheduling_sim.workload.records import Segment, Workload, WorkloadRequest
from scheduling_sim.workload.tenants import TenantRate, backlogged, by_rate

CHAT_PROMPT: Final = "lognormal:800:1.0"
CHAT_OUTPUT: Final = "pareto:64:1.6"
"""Heavy-tailed: mean 171 tokens, one answer in 86 longer than 1,000."""


def _shape(
    prompt: str, output: str, *, limit: str, context_tokens: int, lengths_from: str = ""
) -> Shape:
    """Return the shape of these texts; `lengths_from` is an Azure CSV whose pairs replace both."""
    shape = Shape(
        prompt=length_rule(prompt),
        output=length_rule(output),
        context_tokens=context_tokens,
        limit=output_limit(limit),
    )
    if not lengths_from:
        return shape
    trace = read_azure(Path(lengths_from))
    pairs = tuple((r.prompt_tokens, r.output.tokens) for r in trace.requests)
    return dataclasses.replace(shape, pairs=pairs, skipped=trace.skipped)


def poisson(
    *,
    seed: int = 0,
    rate_per_s: float = 4.0,
    duration_s: float = 60.0,
    prompt: str = CHAT_PROMPT,
    output: str = CHAT_OUTPUT,
    lengths_from: str = "",
    limit: str = "exact",
    context_tokens: int = 32_768,
    cancelled: float = 0.0,
    cancel_after_s: float = 5.0,
) -> Workload:
    """Independent requests at a constant mean rate."""
    times_ns = arrivals.poisson(rate_per_s, seed=seed, duration_s=duration_s)
    shape = _shape(
        prompt, output, limit=limit, context_tokens=context_tokens, lengths_from=lengths_from
    )
    return _independent(
        "poisson",
        times_ns,
        shape,
        seed=seed,
        what=f"Poisson {rate_per_s:g}/s",
        cancelled=cancelled,
        cancel_after_s=cancel_after_s,
    )


def bursty(
    *,
    seed: int = 0,
    rate_per_s: float = 4.0,
    duration_s: float = 60.0,
    cv: float = 4.0,
    on_s: float | None = None,
    off_s: float | None = None,
    prompt: str = CHAT_PROMPT,
    output: str = CHAT_OUTPUT,
    lengths_from: str = "",
    limit: str = "exact",
    context_tokens: int = 32_768,
    cancelled: float = 0.0,
    cancel_after_s: float = 5.0,
) -> Workload:
    """Independent requests in bursts: gamma gaps of a set variation, or on and off periods."""
    if (on_s is None) is not (off_s is None):
        raise WorkloadError(f"bursty: on_s is {on_s} and off_s {off_s}; both or neither is right")
    if on_s is not None and off_s is not None:
        times_ns = arrivals.on_off(
            rate_per_s, on_s=on_s, off_s=off_s, seed=seed, duration_s=duration_s
        )
        what = f"on/off {on_s:g}/{off_s:g} s, {rate_per_s:g}/s"
    else:
        times_ns = arrivals.bursty(rate_per_s, cv=cv, seed=seed, duration_s=duration_s)
        what = f"gamma gaps, variation {cv:g}, {rate_per_s:g}/s"
    shape = _shape(
        prompt, output, limit=limit, context_tokens=context_tokens, lengths_from=lengths_from
    )
    return _independent(
        "bursty",
        times_ns,
        shape,
        seed=seed,
        what=what,
        cancelled=cancelled,
        cancel_after_s=cancel_after_s,
    )


def uniform(
    *,
    seed: int = 0,
    rate_per_s: float = 4.0,
    duration_s: float = 60.0,
    prompt: str = CHAT_PROMPT,
    output: str = CHAT_OUTPUT,
    limit: str = "exact",
    context_tokens: int = 32_768,
) -> Workload:
    """Independent requests at equal distances."""
    times_ns = arrivals.evenly(rate_per_s, duration_s=duration_s)
    shape = _shape(prompt, output, limit=limit, context_tokens=context_tokens)
    return _independent("uniform", times_ns, shape, seed=seed, what=f"every {1 / rate_per_s:g} s")


def _independent(
    name: str,
    times_ns: TimesNs,
    shape: Shape,
    *,
    seed: int,
    what: str,
    cancelled: float = 0.0,
    cancel_after_s: float = 1.0,
) -> Workload:
    requests = single_requests(name, times_ns, shape, seed=seed)
    if cancelled > 0.0:
        requests = with_cancellations(requests, share=cancelled, after_s=cancel_after_s, seed=seed)
        what += f", {cancelled:.0%} leave after {cancel_after_s:g} s on average"
    return assembled(name, requests, source=f"generated: {what}", seed=seed, skipped=shape.skipped)


def closed(
    *,
    seed: int = 0,
    users: int = 16,
    requests_per_user: int = 8,
    think_s: float = 2.0,
    ramp_s: float = 2.0,
    prompt: str = CHAT_PROMPT,
    output: str = CHAT_OUTPUT,
    limit: str = "exact",
    context_tokens: int = 32_768,
) -> Workload:
    """Users who send their next request a think time after the last one's end."""
    requests = closed_loop(
        "user",
        users=users,
        requests_per_user=requests_per_user,
        think_s=think_s,
        shape=_shape(prompt, output, limit=limit, context_tokens=context_tokens),
        seed=seed,
        ramp_s=ramp_s,
    )
    source = f"generated: {users} users, think time {think_s:g} s"
    return assembled("closed-loop", requests, source=source, seed=seed)


def conversations(
    *,
    seed: int = 0,
    rate_per_s: float = 0.5,
    duration_s: float = 120.0,
    turns: str = "uniform:2:8",
    message: str = "lognormal:120:1.0",
    answer: str = "pareto:64:1.6",
    system: str = "uniform:500:1500",
    groups: int = 4,
    think_s: float = 10.0,
    tenants: str = "",
    limit: str = "exact",
    context_tokens: int = 32_768,
) -> Workload:
    """Conversations of several turns whose prompts repeat all earlier ones."""
    rules = ConversationRules(
        turns=length_rule(turns),
        message=length_rule(message),
        answer=length_rule(answer),
        system=length_rule(system),
        groups=groups,
        think_s=think_s,
        context_tokens=context_tokens,
        limit=output_limit(limit),
        tenants=tuple(tenants.split(",")),
    )
    starts_ns = arrivals.poisson(rate_per_s, seed=seed, duration_s=duration_s)
    requests = conversation_requests("conversation", starts_ns, rules, seed=seed)
    source = f"generated: conversations {rate_per_s:g}/s, {groups} system prompts"
    return assembled("conversations", requests, source=source, seed=seed)


def tenants(
    *,
    seed: int = 0,
    sizes: str = "1,5,30",
    requests_per_tenant: int = 60,
    rates_per_s: str = "",
    duration_s: float = 60.0,
    prompt: str = "uniform:200:400",
    output: str = "uniform:100:300",
    limit: str = "exact",
    context_tokens: int = 32_768,
) -> Workload:
    """Tenants with 1, 5 and 30 requests outstanding each, or with rates of their own."""
    shape = _shape(prompt, output, limit=limit, context_tokens=context_tokens)
    if rates_per_s:
        rates = _numbers("rates_per_s", rates_per_s)
        loads = [
            TenantRate(name=f"tenant{index}", rate_per_s=rate, shape=shape)
            for index, rate in enumerate(rates)
        ]
        requests = by_rate(loads, seed=seed, duration_s=duration_s)
        source = f"generated: tenants with {rates_per_s} requests/s"
    else:
        counts = [round(number) for number in _numbers("sizes", sizes)]
        requests = backlogged(counts, shape, requests_per_tenant=requests_per_tenant, seed=seed)
        source = f"generated: tenants with {sizes} requests outstanding"
    return assembled("tenants", requests, source=source, seed=seed)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise WorkloadError(f"tenants: {option} is {text!r}; numbers with commas, 1,5,30") from None


def images(
    *,
    seed: int = 0,
    rate_per_s: float = 2.0,
    duration_s: float = 60.0,
    share: float = 0.5,
    count: str = "uniform:1:3",
    image_tokens: str = "uniform:256:1024",
    prompt: str = "lognormal:300:0.8",
    output: str = CHAT_OUTPUT,
    limit: str = "exact",
    context_tokens: int = 32_768,
) -> Workload:
    """Requests, a share of which has images between parts of the text."""
    times_ns = arrivals.poisson(rate_per_s, seed=seed, duration_s=duration_s)
    shape = _shape(prompt, output, limit=limit, context_tokens=context_tokens)
    requests = with_images(
        single_requests("images", times_ns, shape, seed=seed),
        share=share,
        images=length_rule(count),
        image_tokens=length_rule(image_tokens),
        seed=seed,
        context_tokens=context_tokens,
    )
    source = f"generated: Poisson {rate_per_s:g}/s, {share:.0%} with images"
    return assembled("images", requests, source=source, seed=seed)


def copy_heavy(
    *,
    seed: int = 0,
    rate_per_s: float = 2.0,
    duration_s: float = 60.0,
    share: float = 0.8,
    acceptance: str = "copy-heavy",
    prompt: str = "lognormal:2000:0.6",
    output: str = "lognormal:600:0.7",
    limit: str = "exact",
    context_tokens: int = 32_768,
) -> Workload:
    """Requests, most of whose answers repeat long pieces of their prompts (edits, extraction)."""
    times_ns = arrivals.poisson(rate_per_s, seed=seed, duration_s=duration_s)
    shape = _shape(prompt, output, limit=limit, context_tokens=context_tokens)
    requests = with_acceptance(
        single_requests("copy-heavy", times_ns, shape, seed=seed),
        share=share,
        acceptance=acceptance,
        seed=seed,
    )
    source = f"generated: Poisson {rate_per_s:g}/s, {share:.0%} copy from their prompts"
    return assembled("copy-heavy", requests, source=source, seed=seed)


def long_meets_decodes(
    *,
    seed: int = 0,
    decodes: int = 8,
    decode_prompt: int = 128,
    decode_output: int = 4000,
    prompt_tokens: int = 65_000,
    output_tokens: int = 16,
    at_s: float = 2.0,
) -> Workload:
    """One 65,000-token prompt arrives while 8 requests decode."""
    require(0 <= decodes <= 10_000, f"decodes is {decodes}; 0 to 10,000 is right")
    requests = [
        _one(f"decode-{index}", 0.0, decode_prompt, decode_output, seed) for index in range(decodes)
    ]
    requests.append(_one("long-prompt", at_s, prompt_tokens, output_tokens, seed))
    source = f"generated: {prompt_tokens} prompt tokens at {at_s:g} s meet {decodes} decodes"
    return assembled("long-meets-decodes", requests, source=source, seed=seed)


def _one(name: str, at_s: float, prompt: int, output: int, seed: int) -> WorkloadRequest:
    require(0.0 <= at_s < 1e6, f"at_s is {at_s}; 0 to a million seconds is right")
    require(
        1 <= prompt <= MAX_TOKENS and 1 <= output <= MAX_TOKENS,
        f"{name} has {prompt} prompt and {output} output tokens; 1 to {MAX_TOKENS} is right",
    )
    return WorkloadRequest(
        request_id=name,
        arrival_ns=round(at_s * NS_PER_S),
        prompt=(Segment(content_identity(seed, name, "prompt"), prompt),),
        output=Segment(content_identity(seed, name, "answer"), output),
        max_output_tokens=output,
    )


def prompt_heavy(
    *,
    seed: int = 0,
    rate_per_s: float = 1.0,
    duration_s: float = 900.0,
    prompt: str = "lognormal:6000:0.9",
    output: str = "lognormal:120:0.8",
    limit: str = "exact",
    context_tokens: int = 65_536,
) -> Workload:
    """Fifteen minutes of long prompts with short answers."""
    times_ns = arrivals.poisson(rate_per_s, seed=seed, duration_s=duration_s)
    shape = _shape(prompt, output, limit=limit, context_tokens=context_tokens)
    what = f"prompt-heavy Poisson {rate_per_s:g}/s"
    return _independent("prompt-heavy", times_ns, shape, seed=seed, what=what)


SYNTHETIC: Final[dict[str, Callable[..., Workload]]] = {
    "poisson": poisson,
    "bursty": bursty,
    "uniform": uniform,
    "closed-loop": closed,
    "conversations": conversations,
    "tenants": tenants,
    "images": images,
    "copy-heavy": copy_heavy,
    "long-meets-decodes": long_meets_decodes,
    "prompt-heavy": prompt_heavy,
}
