"""The link between the HTTP process and the engine process: batches of messages over a socket.

A batch is a four-byte big-endian length and that many bytes of msgpack: an array of messages.
Nothing grows without bound: a longer batch than BATCH_BYTES_LIMIT is refused, and a sender whose
peer does not read waits.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from helios.engine.messages import EngineCommand, EngineEvent

BATCH_BYTES_LIMIT: Final = 64 * 1024 * 1024
"""Longest batch that is accepted."""
SEND_BUFFER_LIMIT: Final = 16 * 1024 * 1024
"""Unsent bytes above which the engine waits for its reader."""
_HEADER_BYTES: Final = 4
_RECEIVE_BYTES: Final = 256 * 1024


class LinkError(Exception):
    """The peer broke the framing, or is gone."""


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="start_failed"):
    """Sent instead of Ready, last before the engine process exits."""

    message: str


WireEvent = EngineEvent | StartFailed

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(list[EngineCommand])
_event_decoder = msgspec.msgpack.Decoder(list[WireEvent])


def encode_batch(messages: Sequence[EngineCommand | WireEvent]) -> bytes:
    """Return the bytes of one batch. Raises LinkError when it is too long to be accepted."""
    buffer = bytearray(_HEADER_BYTES)
    _encoder.encode_into(list(messages), buffer, _HEADER_BYTES)
    length = len(buffer) - _HEADER_BYTES
    if length > BATCH_BYTES_LIMIT:
        raise LinkError(f"a batch of {length} bytes exceeds the limit of {BATCH_BYTES_LIMIT}")
    buffer[:_HEADER_BYTES] = length.to_bytes(_HEADER_BYTES, "big")
    return bytes(buffer)


def decode_commands(payload: bytes) -> list[EngineCommand]:
    """Return the commands of one batch. Raises LinkError for anything else."""
    try:
        return _command_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise LinkError(f"not a batch of commands: {error}") from error


def decode_events(payload: bytes) -> list[WireEvent]:
    """Return the events of one batch. Raises LinkError for anything else."""
    try:
        return _event_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise LinkError(f"not a batch of events: {error}") from error


class BatchSplitter:
    """Cuts a byte stream into the payloads of its batches; does no input or output itself."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes; return every payload that they completed.

        Raises LinkError when a batch announces more than BATCH_BYTES_LIMIT bytes.
        """
        self._buffer += data
        payloads: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _HEADER_BYTES:
            body = start + _HEADER_BYTES
            length = int.from_bytes(self._buffer[start:body], "big")
            if length > BATCH_BYTES_LIMIT:
                raise LinkError(f"a batch of {length} bytes exceeds {BATCH_BYTES_LIMIT}")
            if len(self._buffer) - body < length:
                break
            payloads.append(bytes(self._buffer[body : body + length]))
            start = body + length
        del self._buffer[:start]
        return payloads


class EngineLink:
    """The engine's end: commands in, events out, never blocking unless the peer stops reading."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._splitter = BatchSplitter()
        self._commands: deque[EngineCommand] = deque()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the descriptor to poll for readability."""
        return self._socket.fileno()

    @property
    def has_commands(self) -> bool:
        """Commands were received and not taken yet."""
        return bool(self._commands)

    @property
    def has_unsent(self) -> bool:
        """Events wait until the socket is writable."""
        return bool(self._unsent)

    def receive(self, limit: int) -> list[EngineCommand]:
        """Return at most `limit` received commands without waiting.

        Raises LinkError when the peer is gone or sent garbage.
        """
        if not self._commands:
            self._read()
        count = min(limit, len(self._commands))
        return [self._commands.popleft() for _ in range(count)]

    def send(self, events: Sequence[WireEvent]) -> None:
        """Send a batch, or buffer it while the socket is full.

        Waits for the peer when more than SEND_BUFFER_LIMIT bytes are unsent: an engine whose
        clients do not read must not fill the memory. Raises LinkError when the peer is gone.
        """
        self._unsent += encode_batch(events)
        self.flush()
        if len(self._unsent) > SEND_BUFFER_LIMIT:
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            while self._unsent:
                poller.poll()
                self.flush()

    def flush(self) -> None:
        """Send what the socket takes now. Raises LinkError when the peer is gone."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkError(f"the peer is gone: {error}") from error
            del self._unsent[:sent]

    def close(self) -> None:
        """Close the socket; unsent events are lost."""
        self._socket.close()

    def _read(self) -> None:
        """Take one readable chunk from the socket."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkError(f"the peer is gone: {error}") from error
        if not data:
            raise LinkError("the peer closed the link")
        for payload in self._splitter.feed(data):
            self._commands.extend(decode_commands(payload))


class LinkSink:
    """The TokenSink port over the engine's end of the link."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link

    def emit(self, events: Sequence[EngineEvent]) -> None:
        """Hand the events to the socket in one batch."""
        self._link.send(events)
