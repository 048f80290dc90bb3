"""What bad input gets: status, OpenAI's shape, the field's name and the limit, and no effect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from helios.server.config import ServerConfig
from tests.server.live import Live, live
from tests.server.scripted import ByteText, ScriptedBackend

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(config=ServerConfig(max_body_bytes=200_000)) as running:
        yield running


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    return body["error"]


TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("body", "status", "fragment"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"hello", 400, "line 1, column 1"),
        (b"[]", 400, "must be a JSON object, not an array"),
        (b"null", 400, "not null"),
        (b"\xff\xfe", 400, "not UTF-8 (byte 0)"),
        (b"\xef\xbb\xbf{}", 400, "not JSON"),
        (b'{"model":"a","model":"b"}', 400, 'the key "model" appears twice'),
        (b'{"temperature":NaN}', 400, "NaN is not a JSON number"),
        (b'{"temperature":-Infinity}', 400, "-Infinity is not a JSON number"),
        (b'{"model":"\\ud800"}', 400, "model: a lone surrogate (U+D800) at character 0"),
        (b'{"x":{"\\udfff":1}}', 400, "a lone surrogate"),
        (b'{"prompt":["a","b\\u0000"]}', 400, "prompt[1]: NUL (U+0000) at character 1"),
        (b'{"prompt":"\x00"}', 400, "not JSON"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"a":' * 30_000, 400, "nested too deeply"),
        (b'{"seed":' + b"9" * 5000 + b"}", 400, "too many digits"),
        (b'{"prompt":"' + b"x" * 200_000 + b'"}', 413, "limit of 200000 bytes"),
    ],
)
def test_bodies_that_are_no_request(server, body, status, fragment):
    for path in (CHAT, TEXT):
        answer = server.http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert fragment in error_of(answer)["message"]
    assert server.backend.submitted == []


@pytest.mark.parametrize(
    ("fields", "param", "fragment"),
    [
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 1, not -1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "not 0"),
        ({"max_tokens": "5"}, "max_tokens", 'valid integer, not "5"'),
        ({"max_tokens": 1.5}, "max_tokens", "valid integer"),
        ({"max_tokens": True}, "max_tokens", "valid integer, not true"),
        ({"max_tokens": 10**40}, "max_tokens", "less than or equal to"),
        ({"n": 0}, "n", "not 0"),
        ({"n": 129}, "n", "less than or equal to 128"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", 'not "hot"'),
        ({"top_p": 1.1}, "top_p", "less than or equal to 1"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"min_p": -0.1}, "min_p", "greater than or equal to 0"),
        ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"seed": 2**64}, "seed", "less than or equal to"),
        ({"stop": ["x"] * 10_000}, "stop", "has 10000 stop strings, more than the limit of 64"),
        ({"stop": "x" * 1025}, "stop", "1025 characters, more than the limit of 1024"),
        ({"stop": [""]}, "stop", 'non-empty strings only, not ""'),
        ({"stop": 5}, "stop", "not 5"),
        ({"stop_token_ids": [1000]}, "stop_token_ids", "ids 0 to 999"),
        ({"stop_token_ids": list(range(17))}, "stop_token_ids", "at most 16"),
        (
            {"stop_token_ids": list(range(16))},
            "stop_token_ids",
            "has 16 tokens, more than the limit of 15",
        ),
        ({"logit_bias": {"5": 101}}, "logit_bias", "from -100 to 100, not 101"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "not a token id"),
        ({"logit_bias": {"05": 1}}, "logit_bias", "not a token id"),
        ({"logit_bias": {"1000": 1}}, "logit_bias", "ids 0 to 999"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "limit of 1024"),
        ({"logit_bias": [1]}, "logit_bias", "not an array"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
        ({"user": "x" * 257}, "user", "at most 256"),
        ({"priority": 0}, "priority", "greater than or equal to 0.01"),
        ({"model": None}, "model", "not null"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "an array"),
        ({"messages": [5]}, "messages[0]", "an object"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role", '"wizard"'),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty"),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content",
            'part 0 is of type "image_url"; only text parts',
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "must hold exactly id, type (function) and function",
        ),
        ({"tools": [{"type": "function"}]}, "tools", "[0] must hold exactly type and function"),
        ({"tools": [{"type": "retrieval"}]}, "tools", 'type function, not "retrieval"'),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools",
            'function.name must be 1 to 64 of a-z A-Z 0-9 _ -, not "a b"',
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "q"}}}
                ]
            },
            "tools",
            "[0].function.parameters at /type: must be one of string",
        ),
        ({"tools": [TOOL, TOOL]}, "tools", 'two functions with the name "f"'),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tool_choice": "some", "tools": [TOOL]}, "tool_choice", 'required or {"type"'),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "g"}},
                "tools": [TOOL],
            },
            "tool_choice",
            'names "g", which is none of the tools',
        ),
        (
            {
                "tools": [TOOL],
                "response_format": {"type": "choice", "choice": ["no", "a <tool_call>"]},
            },
            "response_format",
            "may hold <tool_call>, with which calls of the tools begin",
        ),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [CALL]}]},
            "messages",
            "only an assistant message",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema, regex or choice"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"store": True}, "store", "not supported"),
        ({"store": 0}, "store", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"prompt": "x"}, "prompt", "unknown field"),
    ],
)
def test_chat_fields(server, fields, param, fragment):
    answer = server.post(CHAT, **{"messages": HELLO, **fields})
    error = error_of(answer)
    assert answer.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert fragment in error["message"]
    assert server.backend.submitted == []


@pytest.mark.parametrize(
    ("fields", "param", "fragment"),
    [
        ({}, "prompt", "is required"),
        ({"prompt": None}, "prompt", "must be a string, a list"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "must be a string, a list"),
        ({"prompt": [[]]}, "prompt", "non-empty lists"),
        ({"prompt": ["a", 1]}, "prompt", "only strings"),
        ({"prompt": [1, True]}, "prompt", "only strings"),
        ({"prompt": [1000]}, "prompt", "1000 is not a token id"),
        ({"prompt": [[1], [-1]]}, "prompt", "-1 is not a token id"),
        ({"prompt": [10**30]}, "prompt", "not a token id"),
        ({"prompt": ["a"] * 129}, "prompt", "129 prompts, more than the limit of 128"),
        ({"prompt": ["a"] * 65, "n": 2}, "n", "130, more than the limit of 128"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens", "not -1"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "valid integer"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
        ({"prompt": "a", "messages": HELLO}, "messages", "unknown field"),
    ],
)
def test_completion_fields(server, fields, param, fragment):
    answer = server.post(TEXT, **fields)
    error = error_of(answer)
    assert answer.status_code == 400
    assert error["param"] == param
    assert fragment in error["message"]
    assert server.backend.submitted == []


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1, "suffix": None},
        {"temperature": 0, "top_p": 0, "stop": [], "logit_bias": {}, "n": None},
        {"temperature": None, "stop": None, "logit_bias": None, "seed": None, "user": None},
        {"response_format": {"type": "text"}, "suffix": ""},
    ],
)
def test_neutral_values_are_accepted(fields):
    with live() as running:
        assert running.post(TEXT, prompt="a", **fields).status_code == 200


def test_neutral_chat_values_are_accepted():
    fields = {
        "tools": [],
        "tool_choice": "none",
        "store": False,
        "metadata": {},
        "modalities": ["text"],
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "messages": [
            {"role": "user", "content": "x", "name": "bob"},
            {"role": "assistant", "content": "y", "tool_calls": [], "refusal": None},
            {"role": "user", "content": "z"},
        ],
    }
    with live() as running:
        assert running.post(CHAT, **fields).status_code == 200


def test_prompt_longer_than_the_context_names_both_numbers(server):
    for path, fields, param in [
        (TEXT, {"prompt": "x" * 8192}, "prompt"),
        (TEXT, {"prompt": [1] * 8192}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 8200}]}, "messages"),
    ]:
        answer = server.post(path, **fields)
        error = error_of(answer)
        assert answer.status_code == 400
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "8191" in error["message"]
        assert "82" in error["message"] or "8192" in error["message"]
    assert server.backend.submitted == []


def test_a_prompt_may_fill_the_context_when_it_is_only_scored():
    with live() as running:
        full = {"prompt": [1] * 8192, "max_tokens": 0, "echo": True, "logprobs": 0}
        assert running.post(TEXT, **full).status_code == 200
        over = running.post(TEXT, **{**full, "prompt": [1] * 8193})
        assert "8193 tokens, but at most 8192" in error_of(over)["message"]
        assert running.post(TEXT, prompt=[1] * 8191).json()["usage"]["completion_tokens"] == 1


def test_hopeless_prompts_are_refused_without_tokenising(server):
    server.text.threads.clear()
    answer = server.post(TEXT, prompt="x" * 150_000)
    assert "at least 150000 tokens" in error_of(answer)["message"]
    assert server.text.threads == []


def test_long_prompts_are_tokenised_off_the_loop():
    with live() as running:
        assert running.post(TEXT, prompt="x" * 10).status_code == 200
        assert running.post(TEXT, prompt="x" * 4000).status_code == 200
        short, long = running.text.threads
        assert "flare-tokenizer" not in short
        assert "flare-tokenizer" in long


def test_paths_and_methods(server):
    for method, path, status in [
        ("GET", "/", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/models", 405),
    ]:
        answer = server.http.request(method, path)
        assert answer.status_code == status, path
        assert error_of(answer)["type"] == "invalid_request_error"
        assert ("allow" in answer.headers) == (status == 405)


def test_a_web_page_cannot_send_forms(server):
    body = json.dumps({"model": "scripted", "messages": HELLO})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json;charset=x"):
        answer = server.http.post(CHAT, content=body, headers={"content-type": kind})
        assert answer.status_code == 415
        assert "application/json" in error_of(answer)["message"]
    squeezed = server.http.post(
        CHAT,
        content=body,
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )
    assert squeezed.status_code == 415


def test_api_key():
    with live(config=ServerConfig(api_key="s3cret")) as running:
        assert running.http.get("/health").status_code == 200
        for path in ("/metrics", "/v1/models", "/openapi.json", "/nothing"):
            answer = running.http.get(path)
            assert answer.status_code == 401
            assert error_of(answer)["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        for value in ("Bearer wrong", "Bearer", "Basic s3cret", "s3cret", b"Bearer \xff\xfe"):
            headers = [(b"authorization", value if isinstance(value, bytes) else value.encode())]
            assert running.http.get("/v1/models", headers=headers).status_code == 401
        good = {"authorization": "Bearer s3cret"}
        assert running.http.get("/v1/models", headers=good).status_code == 200
        assert running.http.get("/metrics", headers=good).status_code == 200
        refused = running.http.post(CHAT, json={"model": "scripted", "messages": HELLO})
        assert refused.status_code == 401
        assert running.backend.submitted == []


def test_request_ids():
    with live() as running:
        own = running.http.get("/health", headers={"x-request-id": "abc-1.2_3"})
        assert own.headers["x-request-id"] == "abc-1.2_3"
        for bad in ("a b", "x" * 129, "é"):
            answer = running.http.get("/health", headers={"x-request-id": bad.encode()})
            assert answer.headers["x-request-id"].startswith("req-")


def test_cors_is_off_unless_allowed():
    ask = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,authorization",
    }
    with live() as running:
        answer = running.http.options(CHAT, headers=ask)
        assert answer.status_code == 405
        assert "access-control-allow-origin" not in answer.headers
    config = ServerConfig(allow_origins=("https://page.example",), api_key="k")
    with live(config=config) as running:
        answer = running.http.options(CHAT, headers=ask)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        refused = running.http.get("/v1/models", headers={"origin": "https://page.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
        other = running.http.get("/health", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_our_own_fault_is_500_without_its_trace(caplog):
    class BrokenText(ByteText):
        def encode(self, text: str) -> list[int]:
            raise RuntimeError("secret detail")

    with live() as running:
        running.app.state.service.encoder._text = BrokenText()
        answer = running.post(TEXT, prompt="x")
        error = error_of(answer)
        assert answer.status_code == 500
        assert error["type"] == "server_error"
        assert "secret" not in answer.text
        assert answer.headers["x-request-id"] in error["message"]
        assert running.app.state.service.admission.requests == 0


def test_engine_failure_is_told_without_its_words():
    with live(ScriptedBackend(fail_after_steps=1)) as running:
        answer = running.post(TEXT, prompt="x")
        assert answer.status_code == 503
        assert error_of(answer)["code"] == "engine_failed"
        assert answer.headers["retry-after"]
        streamed = running.post(TEXT, prompt="x", stream=True)
        assert streamed.status_code == 200
        events = [line[6:] for line in streamed.text.split("\n\n") if line]
        assert json.loads(events[0])["choices"][0]["text"] == "Hell"
        assert json.loads(events[-1])["error"]["code"] == "engine_failed"
        assert "secret" not in answer.text + streamed.text


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"write_timeout_s": -1.0}, "write_timeout_s"),
        ({"body_timeout_s": float("nan")}, "body_timeout_s"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "ü"}, "api_key"),
        ({"allow_origins": ("page.example",)}, "allow_origins"),
        ({"model_names": ("",)}, "model_names"),
    ],
)
def test_settings_name_the_wrong_field(fields, name):
    with pytest.raises(ValueError, match=name):
        ServerConfig(**fields)
