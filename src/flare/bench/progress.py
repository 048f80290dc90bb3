"""How far a measurement is, for the person who waits: a bar with the time left, or plain lines."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flare.console import notices

_TRUSTED_SHARE: Final = 0.02
"""Of the work; before that an estimate of the time left would jump about."""


class TerminalWatcher:
    """Shows sentences above a bar; without a terminal, sentences with the time left alone."""

    def __init__(self) -> None:
        self._console = notices()
        self._work = self._done = 0.0
        self._begin = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("measuring", total=None, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, work: float) -> None:
        """Take the whole work; the time counts from here."""
        self._work, self._begin = work, time.monotonic()
        self._bar.update(self._task, total=work)

    def advance(self, work: float) -> None:
        """Take work that has been done."""
        self._done = min(self._work, self._done + work)
        self._bar.update(self._task, completed=self._done, left=self.time_left())

    def say(self, text: str) -> None:
        """Print a sentence, with the time left where nobody sees the bar."""
        left = "" if self._console.is_terminal else self.time_left()
        self._console.print(escape(f"{text} ({left})" if left else text), soft_wrap=True)

    def time_left(self) -> str:
        """Return the estimate in words, empty while there is none."""
        if self._done <= _TRUSTED_SHARE * self._work:
            return ""
        elapsed_s = time.monotonic() - self._begin
        return left_text(elapsed_s / self._done * (self._work - self._done))


def left_text(seconds: float) -> str:
    """Return `about 3 min left` and the like."""
    if seconds < 90:
        return f"about {max(0, round(seconds))} s left"
    return f"about {round(seconds / 60)} min left"
