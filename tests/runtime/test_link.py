"""The link: framing is exact for every way to cut the stream, and nothing grows without bound."""

from __future__ import annotations

import socket
import threading

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from helios.engine.messages import (
    Cancel,
    Delta,
    Drain,
    Finished,
    HistogramState,
    LogprobEntry,
    PromptLogprobs,
    Ready,
    Rejected,
    SamplingMessage,
    Stats,
    StatsRequest,
    Submit,
)
from helios.runtime import link
from helios.runtime.link import (
    BATCH_BYTES_LIMIT,
    BatchSplitter,
    EngineLink,
    LinkError,
    LinkSink,
    StartFailed,
    decode_commands,
    decode_events,
    encode_batch,
)

COMMANDS = [
    Submit(
        request_id="a",
        prompt_token_ids=[1, 2, 3],
        max_output_tokens=4,
        sampling=SamplingMessage(
            seed=2**64 - 1, logit_bias=((1, -2.5),), stop_token_ids=(7,), top_logprobs=3
        ),
        stop=("x", "\U0001f600"),
        tenant="t",
    ),
    Cancel(request_id="a"),
    Drain(),
    StatsRequest(),
]
ENTRY = LogprobEntry(token_id=1, logprob=-0.5, top_ids=(1, 2), top_logprobs=(-0.5, -1.0))
EVENTS = [
    Delta(request_id="a", text="é", token_ids=(1,), logprobs=(ENTRY,)),
    PromptLogprobs(request_id="a", entries=(LogprobEntry(token_id=9, logprob=None), ENTRY)),
    Finished(request_id="a", reason="stop", prompt_tokens=1, output_tokens=2, stop_matched="x"),
    Finished(request_id="a", reason="stop", prompt_tokens=1, output_tokens=2, stop_matched=7),
    Rejected(request_id="b", code="queue_full", message="later"),
    Stats(
        gauges={"g": 1.0},
        counters={"c": 2.0},
        labelled_counters={"l": {'a="b"': 3.0}},
        histograms={"h": HistogramState(bounds=(1.0,), counts=(1, 0), total=0.5)},
    ),
    Ready(
        protocol_version=1,
        model="m",
        context_length_tokens=1,
        row_count=1,
        page_count=1,
        page_size_tokens=1,
        vocabulary_size=1,
        graphs=("decode-b1",),
        backend="b",
        precision="p",
    ),
    StartFailed(message="no"),
]


def test_every_message_survives_the_link() -> None:
    (commands,) = BatchSplitter().feed(encode_batch(COMMANDS))
    assert decode_commands(commands) == COMMANDS
    (events,) = BatchSplitter().feed(encode_batch(EVENTS))
    assert decode_events(events) == EVENTS


@given(st.lists(st.binary(max_size=9), max_size=5), st.lists(st.integers(0, 12), max_size=30))
def test_payloads_come_out_however_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
    splitter = BatchSplitter()
    received: list[bytes] = []
    position = 0
    for cut in [*cuts, len(stream)]:
        received += splitter.feed(stream[position : position + cut])
        position += cut
    received += splitter.feed(stream[position:])
    assert received == payloads


def test_a_batch_that_announces_too_much_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(LinkError, match="exceeds"):
        BatchSplitter().feed((BATCH_BYTES_LIMIT + 1).to_bytes(4, "big"))


def test_a_batch_that_would_be_refused_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BATCH_BYTES_LIMIT", 10)
    with pytest.raises(LinkError, match="limit"):
        encode_batch([Cancel(request_id="much longer than that")])


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode([{"type": "unknown"}]), b"\x01"]
)
def test_garbage_is_a_link_error(payload: bytes) -> None:
    with pytest.raises(LinkError):
        decode_commands(payload)
    with pytest.raises(LinkError):
        decode_events(payload)


def test_commands_are_taken_in_order_and_in_portions() -> None:
    ours, theirs = socket.socketpair()
    engine = EngineLink(theirs)
    assert engine.receive(10) == []
    ours.sendall(encode_batch(COMMANDS) + encode_batch([Cancel(request_id="z")]))
    assert engine.receive(3) == COMMANDS[:3]
    assert engine.has_commands
    assert engine.receive(10) == [COMMANDS[3], Cancel(request_id="z")]
    assert not engine.has_commands
    ours.close()
    with pytest.raises(LinkError, match="closed"):
        engine.receive(1)
    engine.close()


def test_a_peer_that_is_gone_is_a_link_error_for_the_sender_too() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    engine = EngineLink(theirs)
    with pytest.raises(LinkError, match="gone"):
        LinkSink(engine).emit([EVENTS[0]])  # type: ignore[list-item]
    engine.close()


def test_a_full_socket_buffers_and_a_full_buffer_waits_for_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's memory stays bounded when its clients do not read, and nothing is lost."""
    monkeypatch.setattr(link, "SEND_BUFFER_LIMIT", 300_000)
    ours, theirs = socket.socketpair()
    engine = EngineLink(theirs)
    sink = LinkSink(engine)
    event = Delta(request_id="a", text="x" * 100_000, token_ids=())
    while not engine.has_unsent:
        sink.emit([event])
    assert len(engine._unsent) <= 300_000
    sent = 40
    splitter = BatchSplitter()
    payloads: list[bytes] = []

    def read_everything() -> None:
        while data := ours.recv(65536):
            payloads.extend(splitter.feed(data))

    reader = threading.Thread(target=read_everything)
    reader.start()
    for _ in range(sent):
        sink.emit([event])
        assert len(engine._unsent) <= 300_000
    while engine.has_unsent:
        engine.flush()
    engine.close()
    reader.join()
    ours.close()
    assert len(payloads) > sent
    assert all(decode_events(payload) == [event] for payload in payloads)
