"""Arbitrary bodies: every one gets an answer in OpenAI's shape, and none a fault of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from helios.server.body import parse_object
from helios.server.errors import ApiError, ErrorBody, ErrorDetail
from helios.server.fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL
from helios.server.parse import parse_chat, parse_completion
from helios.server.schema import ChatRequest, CompletionRequest
from tests.server.live import Live, live
from tests.server.scripted import ScriptedBackend

JSON_HEADER = {"content-type": "application/json"}
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "1", "x"]), inner)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *CHAT_NEUTRAL})
)
BASE = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "x"}],
    "prompt": "x",
    "max_tokens": 3,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(ScriptedBackend(reply="ok")) as running:
        yield running


def check_answer(server: Live, path: str, body: bytes) -> None:
    answer = server.http.post(path, content=body, headers=JSON_HEADER)
    assert answer.status_code in {200, 400, 404}, answer.text
    if answer.status_code != 200:
        error = msgspec.json.decode(answer.content, type=ErrorBody).error
        assert len(error.message) <= 1000
        assert error.type == "invalid_request_error"


def refusal_of(work: Callable[[], object]) -> ErrorDetail | None:
    """Return how a request is refused, in the form that a client decodes."""
    try:
        work()
    except ApiError as error:
        return msgspec.json.decode(error.body(), type=ErrorBody).error
    return None


@hypothesis.given(st.binary(max_size=200))
def test_any_bytes(data):
    refused = refusal_of(lambda: parse_object(data))
    assert refused is None or refused.message


@pytest.mark.slow
@hypothesis.given(st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_any_object_is_read_as_json_reads_it(value):
    data = json.dumps(value).encode()
    refused = refusal_of(lambda: parse_object(data))
    if refused is None:
        assert parse_object(data) == value
    else:
        assert refused.code == "invalid_character"


@pytest.mark.slow
@hypothesis.settings(max_examples=400)
@hypothesis.given(fields=st.dictionaries(names, values, max_size=4), drop=names)
def test_chat_with_any_fields(server, fields, drop):
    base = {name: BASE[name] for name in ("model", "messages", "max_tokens") if name != drop}
    check_answer(server, "/v1/chat/completions", json.dumps({**base, **fields}).encode())


@pytest.mark.slow
@hypothesis.settings(max_examples=400)
@hypothesis.given(fields=st.dictionaries(names, values, max_size=4), drop=names)
def test_completion_with_any_fields(server, fields, drop):
    base = {name: BASE[name] for name in ("model", "prompt", "max_tokens") if name != drop}
    check_answer(server, "/v1/completions", json.dumps({**base, **fields}).encode())


@hypothesis.given(name=names, value=values)
def test_a_single_field_is_accepted_or_named(name, value):
    """A refusal names the field that it is about."""
    for parse, base, neutral in (
        (parse_chat, {"model": "m", "messages": BASE["messages"]}, CHAT_NEUTRAL),
        (parse_completion, {"model": "m", "prompt": "x"}, COMPLETION_NEUTRAL),
    ):
        refused = refusal_of(lambda: parse({**base, name: value}))  # noqa: B023 - called at once
        if refused is not None:
            assert refused.param is not None
            assert refused.param.startswith((name, "stream_options"))
            assert name in refused.message
        assert base.keys() & neutral.keys() == set()
