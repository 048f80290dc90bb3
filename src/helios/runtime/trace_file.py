"""TraceFile: trace records as buffered JSON lines; a full disk ends the trace, not the engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

_BUFFER_BYTES: Final = 256 * 1024


class TraceFile:
    """Writes each record as one line. Flushed when the engine idles and when it ends."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream: BinaryIO | None = stream
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def create(cls, path: Path) -> TraceFile:
        """Open an empty file, `path` or the first free of `path.2`, `path.3` ... Raises OSError.

        A restarted engine must not wipe what its predecessor decided before it died: that is what
        somebody will want to read. Times and fences start anew, so it is a file of its own.
        """
        free, number = path, 1
        while free.exists() and free.stat().st_size > 0:
            number += 1
            free = path.with_name(f"{path.name}.{number}")
        if free != path:
            print(f"flare: {path.name} is kept; the trace goes on in {free.name}", file=sys.stderr)
        return cls(free, free.open("wb", buffering=_BUFFER_BYTES))

    def write(self, record: Mapping[str, object]) -> None:
        """Append one record; after a failed write this and every later one are dropped."""
        if self._stream is None:
            return
        try:
            self._stream.write(self._encoder.encode(record) + b"\n")
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Hand buffered lines to the operating system."""
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _give_up(self, error: OSError) -> None:
        """Say once that the trace ends here, and drop what follows."""
        print(f"flare: the trace {self._path.name} ends here: {error}", file=sys.stderr)
        self._stream = None
