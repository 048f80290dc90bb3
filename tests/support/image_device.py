"""The device's side of image requests: features, kept states and generations of execution state.

Attach with `ImageDevice.watch(world)`. It executes every lane from what its step says alone, and
asserts that the step made sense on the device: state is bound before it is used, features are there
before they are read, an image is never cut, and a restored state is exactly the kept one.
"""

from __future__ import annotations

import dataclasses

from helios.scheduler import (
    CompletionRecord,
    ExecutionTiming,
    GeneratedToken,
    GraphKind,
    RequestHandle,
    ScheduledStep,
)
from tests.support.world import Flight, Observer, Stream, World

GENERATING_KINDS = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)


@dataclasses.dataclass
class Execution:
    """The state on one request row: whose, which generation, how far, and which features."""

    handle: RequestHandle
    incarnation: int
    cached: int = 0
    """Tokens in the cache; the last output token is pending."""
    features: dict[int, int] = dataclasses.field(default_factory=dict)
    """Offset of each image written into this generation's feature storage, by image index."""


class ImageDevice(Observer):
    """What the modelled device holds, checked against every step it is given."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: dict[int, Execution] = {}
        self.kept: dict[int, Execution] = {}
        self.keys: dict[RequestHandle, dict[int, bytes]] = {}
        """The identity of each endpoint of each request."""
        self.encoded: list[tuple[str, int, int]] = []
        """Request name, image index and feature offset of each vision execution, in order."""
        self.restored: list[tuple[str, int]] = []
        """Request name and exact position of each restore, in order."""

    @classmethod
    def watch(cls, world: World) -> ImageDevice:
        """Attach to a world before anything of its images runs."""
        device = cls(world)
        world.observers.append(device)
        return device

    def on_admit(self, stream: Stream) -> None:
        self.keys[stream.handle] = {each.tokens: each.key for each in stream.spec.endpoints}

    def on_complete(
        self,
        flight: Flight,
        records: tuple[CompletionRecord, ...],
        timing: ExecutionTiming,
        tokens: list[GeneratedToken],
    ) -> None:
        kind = flight.plan.graph.kind
        for step, record in zip(flight.plan.steps, records, strict=True):
            if kind is GraphKind.INITIALIZE:
                # A prefix kept in pages is there without any state operation.
                self.rows[step.row] = Execution(step.handle, step.incarnation, step.position)
            elif kind is GraphKind.RESTORE:
                self._restore(step)
            else:
                state = self.rows[step.row]
                assert (state.handle, state.incarnation) == (step.handle, step.incarnation)
                if kind is GraphKind.VISION:
                    self._encode(flight, step, state)
                elif kind is GraphKind.SNAPSHOT and step.snapshot_row >= 0:
                    assert state.cached == step.position, "the exact consumed state"
                    self.kept[step.snapshot_row] = dataclasses.replace(state, features={})
                elif step.prompt_tokens:
                    self._consume(step, state)
                elif kind in GENERATING_KINDS:
                    state.cached += len(record.tokens)
            if kind in (GraphKind.INITIALIZE, GraphKind.RESTORE, GraphKind.VISION):
                assert record == CompletionRecord(step.handle), "setup produces no token"

    def _restore(self, step: ScheduledStep) -> None:
        kept = self.kept[step.snapshot_row]
        assert kept.cached == step.position, "partial pages are preserved, nothing is rounded"
        if kept.handle == step.handle:
            assert step.incarnation > kept.incarnation, "restored into a fresh generation"
        else:
            own, other = (self.keys[handle] for handle in (step.handle, kept.handle))
            assert own[step.position] == other[step.position], "a state of another prefix"
        self.rows[step.row] = Execution(step.handle, step.incarnation, kept.cached)
        self.restored.append((self.world.by_handle[step.handle].name, step.position))

    def _encode(self, flight: Flight, step: ScheduledStep, state: Execution) -> None:
        assert len(flight.plan.steps) == 1, "one image per execution"
        stream = self.world.by_handle[step.handle]
        image = stream.spec.images[step.image_index]
        assert image.features <= flight.plan.graph.token_capacity
        assert step.feature_offset + image.features <= self.world.resources.feature_rows
        written = [stream.spec.images[index].features for index in state.features]
        assert step.feature_offset == sum(written), "compact offsets from zero"
        assert step.image_index not in state.features
        state.features[step.image_index] = step.feature_offset
        self.encoded.append((stream.name, step.image_index, step.feature_offset))

    def _consume(self, step: ScheduledStep, state: Execution) -> None:
        assert step.position == state.cached
        begin, end = state.cached, state.cached + step.prompt_tokens
        images = self.world.by_handle[step.handle].spec.images
        inside = [i for i, image in enumerate(images) if begin <= image.start < end]
        for index in inside:
            assert images[index].end <= end, "an image is never cut"
            assert index in state.features, "its features were written into this generation"
        assert step.image_index == (inside[0] if inside else -1)
        if inside:
            assert step.feature_offset == state.features[inside[0]]
        state.cached = end
