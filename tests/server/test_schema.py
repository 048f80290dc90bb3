"""The served OpenAPI document is true: schemathesis sends what it allows and what it forbids."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator

import hypothesis
import msgspec
import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as completion_params
import pytest
import schemathesis
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode, Response
from schemathesis.specs.openapi.checks import positive_data_acceptance

from helios.server.config import ServerConfig
from helios.server.fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL
from helios.server.schema import ChatRequest, CompletionRequest
from helios.server.wire import ChatCompletionChunk, CompletionChunk
from tests.server.live import Live, live, until
from tests.server.scripted import ScriptedBackend


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(ScriptedBackend(reply="ok")) as running:
        # Which roles a template takes is the model's affair and stands in no schema.
        running.text.roles = {"system", "user", "assistant", "tool"}
        yield running


@pytest.fixture(scope="module")
def api_schema(server):
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_schema_is_true(server, api_schema, mode):
    """Allowed requests are answered, forbidden ones refused, and every answer is as described."""
    operations = [result.ok() for result in api_schema.get_all_operations()]
    assert len(operations) == len(server.app.routes) - 1  # The document itself is left out.
    for operation in operations:
        # A request without parameters and body has nothing that could be wrong.
        if mode is GenerationMode.POSITIVE or operation.method == "post":
            check_operation(server, operation.as_strategy(generation_mode=mode))


def beyond_schemas(response: Response) -> bool:
    """Whether a limit on several fields together, which no schema can state, refused the case."""
    if response.status_code != 400:
        return False
    code = json.loads(response.content)["error"]["code"]
    return code in {
        "context_length_exceeded",
        "too_many_choices",
        # What a schema or a list of choices must be to constrain an answer.
        "invalid_grammar",
        "two_formats",
    }


def check_operation(server: Live, strategy: SearchStrategy) -> None:
    @hypothesis.given(case=strategy)
    @hypothesis.settings(max_examples=100, suppress_health_check=list(hypothesis.HealthCheck))
    def check(case) -> None:
        response = case.call()
        excluded = [positive_data_acceptance] if beyond_schemas(response) else []
        case.validate_response(response, excluded_checks=excluded)
        until(lambda: server.app.state.service.admission.requests == 0)
        assert server.backend.live == 0
        assert server.backend.cancelled == []

    check()


@pytest.mark.parametrize(
    ("params", "model", "neutral"),
    [
        (chat_params.CompletionCreateParamsBase, ChatRequest, CHAT_NEUTRAL),
        (completion_params.CompletionCreateParamsBase, CompletionRequest, COMPLETION_NEUTRAL),
    ],
)
def test_every_field_of_the_official_client_is_known(params, model, neutral):
    names = set(typing.get_type_hints(params)) | {"stream"}
    assert names - set(model.model_fields) - set(neutral) == set()
    assert set(model.model_fields) & set(neutral) == set()


def test_document_describes_every_route(server):
    document = server.http.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    paths = {route.path.replace(":path", "") for route in server.app.routes}
    assert set(document["paths"]) == paths
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == [
        "scripted"
    ]


@pytest.mark.parametrize("usage", [None, {"include_usage": True}])
@pytest.mark.parametrize("logprobs", [False, True])
def test_chunks_are_as_described(server, usage, logprobs):
    chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": logprobs}
    text = {"prompt": "x", "logprobs": 2 if logprobs else None, "echo": True}
    for path, fields, kind in [
        ("/v1/chat/completions", chat, ChatCompletionChunk),
        ("/v1/completions", text, CompletionChunk),
    ]:
        answer = server.post(path, stream=True, n=2, stream_options=usage, **fields)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        *events, done, end = answer.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        chunks = [msgspec.json.decode(event.removeprefix("data: "), type=kind) for event in events]
        assert [len(chunk.choices) for chunk in chunks].count(0) == (usage is not None)
        assert all((chunk.usage is msgspec.UNSET) == (usage is None) for chunk in chunks)
        finished = [c for chunk in chunks for c in chunk.choices if c.finish_reason]
        assert sorted(choice.index for choice in finished) == [0, 1]
        assert all(choice.stop_reason is None for choice in finished)


def test_document_before_the_model_is_known_and_with_a_key():
    """Design 5.1: the model's names and limits come in when they are known."""
    starting = ScriptedBackend(greeting=None)
    with live(starting, ServerConfig(api_key="k")) as running:
        document = running.http.get("/openapi.json", headers={"authorization": "Bearer k"}).json()
    assert "enum" not in document["components"]["schemas"]["ChatRequest"]["properties"]["model"]
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
