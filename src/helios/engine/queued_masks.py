"""Masks of frames that were queued behind a running one: bound when that one's tokens are known.

A mask needs the token before it, so a constrained request could not run ahead if its masks had to
be there when a frame is submitted. The executor binds them instead, between two replays: it holds
the outputs of the frame in front before anybody else does (decision 0031).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from helios.engine.ports import Frame, FrameLane, LaneOutput


def bind_masks(frame: Frame, front: Frame | None, outputs: Sequence[LaneOutput]) -> Frame:
    """Return a frame whose queued masks follow the outputs of the frame in front of it.

    `outputs` are those of `front`, lane by lane; empty for a frame that failed, whose requests end
    with it, so that it does not matter what this frame draws for them.
    """
    if all(lane.queued_mask is None for lane in frame.lanes):
        return frame
    before = front.lanes if front is not None and outputs else ()
    drawn = {lane.handle: output for lane, output in zip(before, outputs, strict=bool(before))}
    lanes = tuple([_bound(lane, drawn.get(lane.handle)) for lane in frame.lanes])
    return dataclasses.replace(frame, lanes=lanes)


def _bound(lane: FrameLane, front: LaneOutput | None) -> FrameLane:
    if lane.queued_mask is None or front is None:
        return lane
    masks = lane.queued_mask.after(front.tokens, terminated=front.terminated)
    return lane._replace(masks=masks)
