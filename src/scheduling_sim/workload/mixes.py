"""What can be laid over requests: images in their prompts, clients that leave, copied text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from scheduling_sim.workload.content import content_identity, generator
from scheduling_sim.workload.errors import require
from scheduling_sim.workload.lengths import LengthRule
from scheduling_sim.workload.records import ImageInput, Segment, WorkloadRequest

_WHOLE_DRAW = 2.0**64


def chance(seed: int, *purpose: int | str) -> float:
    """Return a number in [0, 1) that depends on the arguments alone, not on any order of draws."""
    return content_identity("chance", seed, *purpose) / _WHOLE_DRAW


def with_images(
    requests: Iterable[WorkloadRequest],
    *,
    share: float,
    images: LengthRule,
    image_tokens: LengthRule,
    seed: int,
    context_tokens: int = 32_768,
) -> list[WorkloadRequest]:
    """Return the requests with images put into the prompts of a share of them.

    Images stand between parts of the text, which always keeps a first and a last token; as many are
    put in as there are gaps and room in the context. Requests that are part of a conversation or
    have endpoints are left alone, because their prefixes are someone else's too.
    """
    _check_share(share)
    found: list[WorkloadRequest] = []
    for request in requests:
        is_alone = request.follows is None and not request.endpoints and len(request.prompt) == 1
        if is_alone and chance(seed, "image", request.request_id) < share:
            found.append(_illustrated(request, images, image_tokens, seed, context_tokens))
        else:
            found.append(request)
    return found


def _illustrated(
    request: WorkloadRequest,
    images: LengthRule,
    image_tokens: LengthRule,
    seed: int,
    context_tokens: int,
) -> WorkloadRequest:
    random = generator(seed, "images", request.request_id)
    text = request.prompt[0]
    wanted = min(int(images.draw(random, 1)[0]), text.tokens - 1)
    room = context_tokens - request.prompt_tokens - request.output.tokens
    prompt: list[Segment] = []
    placed: list[ImageInput] = []
    position = used = 0
    for index, tokens in enumerate(image_tokens.draw(random, max(0, wanted)).tolist()):
        if tokens > room:
            break
        room -= tokens
        part = text.tokens * (index + 1) // (wanted + 1) - used
        identity = content_identity(seed, "image", request.request_id, index)
        # Each part of the text has an identity of its own: a segment starts at its content's start.
        prompt.append(Segment(content_identity(text.content, "part", index), part))
        placed.append(ImageInput(position + part, tokens, identity))
        prompt.append(Segment(identity, tokens))
        position += part + tokens
        used += part
    if not placed:
        return request
    prompt.append(Segment(content_identity(text.content, "rest"), text.tokens - used))
    room = context_tokens - position - (text.tokens - used)
    limit = max(request.output.tokens, min(request.max_output_tokens, room))
    return dataclasses.replace(
        request, prompt=tuple(prompt), images=tuple(placed), max_output_tokens=limit
    )


def with_cancellations(
    requests: Iterable[WorkloadRequest], *, share: float, after_s: float, seed: int
) -> list[WorkloadRequest]:
    """Return the requests, a share of whose clients leave an exponential time after arriving.

    `after_s` is the mean of that time. Those whose answer comes sooner are not affected.
    """
    _check_share(share)
    require(0.0 < after_s < 1e6, f"after_s is {after_s}; above 0 and below a million is right")
    found: list[WorkloadRequest] = []
    for request in requests:
        if chance(seed, "leaves", request.request_id) < share:
            random = generator(seed, "leaving", request.request_id)
            after_ns = max(1, round(random.exponential(after_s) * 1e9))
            found.append(dataclasses.replace(request, cancel_after_ns=after_ns))
        else:
            found.append(request)
    return found


def with_acceptance(
    requests: Iterable[WorkloadRequest], *, share: float, acceptance: str, seed: int
) -> list[WorkloadRequest]:
    """Return the requests, a share of which has that acceptance profile instead of its own."""
    _check_share(share)
    return [
        dataclasses.replace(request, acceptance=acceptance)
        if chance(seed, "acceptance", request.request_id) < share
        else request
        for request in requests
    ]


def _check_share(share: float) -> None:
    require(0.0 <= share <= 1.0, f"share is {share}; from 0 to 1 is right")
