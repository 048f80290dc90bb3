"""Constrained answers of a real server: valid whatever the model would rather say.

The tiny model is random and its tokens are bytes, so nothing but the masks makes a text valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import prepare_tried_first
from tests.support.schemas import random_schema

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def chat(self, **fields: Any) -> Any:
        body: dict[str, Any] = {"model": "tiny", "max_tokens": 300, **fields}
        body.setdefault("messages", [{"role": "user", "content": "Say it."}])
        return self.client.chat.completions.create(**body)

    def text_of(self, **fields: Any) -> tuple[str, str]:
        (choice,) = self.chat(**fields).choices
        return choice.message.content, choice.finish_reason

    def raw(self, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)

    def gauges(self) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics").text
        lines = re.findall(r"^(flare_\S+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in lines}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A server without speculation and one with it, of the same model."""
    base = tmp_path_factory.mktemp("structured")
    model = write_tiny_directory(base / "tiny", context=1536)
    options = ["--concurrency", "4", "--prefill-capacities", "16,64", "--threads", "1"]
    package = str(prepare_tried_first(model, options, base / "package"))
    with (
        running([package, "--speculation", "off"], base / "plain.log") as (plain, _),
        running([package, "--speculation", "copy"], base / "copy.log") as (copy, _),
    ):
        pair = (Server(plain), Server(copy))
        yield pair
        for server in pair:
            server.client.close()


@pytest.fixture(params=["plain", "copying"])
def server(request: pytest.FixtureRequest, servers: tuple[Server, Server]) -> Server:
    return servers[request.param == "copying"]


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def test_json_schema_streamed_and_whole(server):
    fields: dict[str, Any] = {"response_format": schema_format(PERSON), "seed": 5}
    text, reason = server.text_of(**fields)
    assert reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)
    events = list(server.chat(stream=True, **fields))
    assert "".join(e.choices[0].delta.content or "" for e in events) == text
    assert events[-1].choices[0].finish_reason == "stop"


def test_json_object_regex_and_choice_in_every_shape(server):
    text, _ = server.text_of(response_format={"type": "json_object"}, max_tokens=400, seed=2)
    assert text.startswith("{")
    for more in (
        {"response_format": {"type": "regex", "regex": "[a-f]{3}-\\d+!"}},
        {"extra_body": {"guided_regex": "[a-f]{3}-\\d+!"}},
        {"extra_body": {"structured_outputs": {"regex": "[a-f]{3}-\\d+!"}}},
    ):
        text, reason = server.text_of(seed=3, **more)
        assert reason == "stop"
        assert re.fullmatch(r"[a-f]{3}-[0-9]+!", text)
    options = ["yes", "no (really?)", "perhaps/maybe", "ja\nnein", "é"]
    for more in (
        {"response_format": {"type": "choice", "choice": options}},
        {"extra_body": {"guided_choice": options}},
        {"extra_body": {"structured_outputs": {"choice": options}}},
    ):
        texts = {server.text_of(seed=seed, **more)[0] for seed in range(12)}
        assert texts <= set(options)
        assert len(texts) > 1
    for more in ({"guided_json": json.dumps(PERSON)}, {"structured_outputs": {"json": PERSON}}):
        text, _ = server.text_of(extra_body=more, seed=1)
        jsonschema.validate(json.loads(text), PERSON)


def test_text_completions_take_a_format_too(server):
    answer = server.client.completions.create(
        model="tiny", prompt="x", max_tokens=300, seed=4, extra_body={"guided_json": PERSON}
    )
    jsonschema.validate(json.loads(answer.choices[0].text), PERSON)


def test_500_random_schemas_give_valid_texts(servers):
    """Every answer that ended by itself is valid, and so are nearly all of them."""

    def ask(seed: int) -> tuple[int, str, str]:
        schema = random_schema(seed)
        # Most of them in rounds; the two servers take turns so that both are held to it.
        text, reason = servers[seed % 4 != 0].text_of(
            response_format=schema_format(schema), seed=seed, temperature=(seed % 3) / 2
        )
        return seed, text, reason

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(500)))
    ended = [(seed, text) for seed, text, reason in answers if reason == "stop"]
    for seed, text in ended:
        jsonschema.validate(json.loads(text), random_schema(seed))
    assert len(ended) > 450


def test_rounds_change_no_constrained_answer(servers):
    plain, copying = servers

    def ask(server: Server, seed: int) -> tuple[str, str]:
        fields = {"response_format": schema_format(random_schema(seed))} if seed % 3 else {}
        return server.text_of(seed=seed, max_tokens=120, temperature=seed % 2, **fields)

    with ThreadPoolExecutor(4) as pool:
        expected = list(pool.map(lambda seed: ask(plain, seed), range(60)))
        found = list(pool.map(lambda seed: ask(copying, seed), range(60)))
    assert found == expected
    assert copying.gauges()["flare_speculative_accepted_tokens_total"] > 0


def test_a_document_cut_by_max_tokens_says_length(server):
    answer = server.chat(response_format=schema_format(PERSON), seed=5, max_tokens=7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.choices[0].message.content)


def test_a_stop_string_ends_inside_a_document(server):
    fields: dict[str, Any] = {"response_format": schema_format(PERSON), "seed": 5}
    whole, _ = server.text_of(**fields)
    text, reason = server.text_of(stop=['"age"'], **fields)
    assert (text, reason) == (whole[: whole.index('"age"')], "stop")


def test_the_end_of_a_text_comes_only_where_it_may(server):
    """An end token that the model wants at once waits for the end of the text."""
    fields: dict[str, Any] = {"response_format": {"type": "regex", "regex": "ab{20}c?"}}
    for more in ({"logit_bias": {"256": 100}}, {"extra_body": {"ignore_eos": True}}):
        text, reason = server.text_of(seed=1, **fields, **more)
        assert reason == "stop"
        assert text.startswith("a" + "b" * 20)


@pytest.mark.parametrize(
    ("fields", "param", "fragment"),
    [
        ({"response_format": schema_format({"type": "strin"})}, "response_format", "at /type"),
        (
            {"response_format": schema_format({"properties": {"a": {"not": {}}}})},
            "response_format",
            "at /properties/a/not: this keyword cannot be enforced",
        ),
        ({"response_format": schema_format({"$ref": "#"})}, "response_format", "admits nothing"),
        (
            {"response_format": schema_format({"type": "integer", "minimum": 5, "maximum": 1})},
            "response_format",
            "minimum (5) is greater than maximum (1)",
        ),
        (
            {"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}},
            "guided_json",
            "incompatible types",
        ),
        ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
        ({"guided_regex": "[^\\s\\S]"}, "guided_regex", "admits nothing"),
        ({"guided_regex": "$^"}, "guided_regex", ""),
        ({"guided_choice": []}, "guided_choice", "non-empty"),
        (
            {"guided_choice": ["a"], "guided_regex": "b"},
            "response_format",
            "guided_regex and guided_choice",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_place(server, fields, param, fragment):
    for stream in (False, True):
        answer = server.raw(stream=stream, **fields)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert fragment in error["message"]


def bombs() -> dict[str, Any]:
    deep: Any = {"type": "integer"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    wide = {f"p{i}": {"type": "string"} for i in range(5000)}
    forks: Any = {"type": "string"}
    for level in range(6):
        forks = {
            "anyOf": [{"type": "object", "properties": {f"k{level}{i}": forks}} for i in range(4)]
        }
    return {
        "deep": deep,
        "wide": {"type": "object", "properties": wide},
        "enum": {"enum": [f"value {i}" for i in range(100_000)]},
        "forks": forks,
        "crossed": {
            "allOf": [
                {"anyOf": [{"properties": {f"k{i}_{j}": {"type": "null"}}} for j in range(8)]}
                for i in range(8)
            ]
        },
        "pattern": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
        "loop": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    }


def test_schema_bombs_are_refused_or_served_while_others_go_on(server):
    """Nobody waits for a compiler: a stream beside it has its tokens, and nothing stays behind."""
    with ThreadPoolExecutor(8) as pool:
        beside = pool.submit(
            server.text_of, max_tokens=200, seed=1, extra_body={"ignore_eos": True}
        )
        asked = {
            name: pool.submit(server.raw, guided_json=schema, max_tokens=20)
            for name, schema in bombs().items()
        }
        codes = {name: future.result().status_code for name, future in asked.items()}
        assert beside.result()[1] == "length"
    assert set(codes.values()) <= {200, 400}, codes
    assert {codes[name] for name in ("deep", "wide", "enum", "loop")} == {400}
    assert_nothing_is_left(server)


def test_infinite_grammars_end_at_their_limits(server):
    """A schema that no finite text fulfils fills max_tokens, or the context, and says length."""
    endless = {
        "$defs": {
            "n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}
        },
        "$ref": "#/$defs/n",
    }
    for limit in (50, 10_000):
        answer = server.chat(response_format=schema_format(endless), max_tokens=limit, seed=1)
        assert answer.choices[0].finish_reason == "length"
    assert_nothing_is_left(server)


def test_cancelled_constrained_streams_leave_nothing(server):
    endless = {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1000}
    for seed in range(6):
        stream = server.chat(
            stream=True, response_format=schema_format(endless), seed=seed, max_tokens=400
        )
        for _, _event in zip(range(3 + seed), stream, strict=False):
            pass
        stream.close()
    assert_nothing_is_left(server)


def assert_nothing_is_left(server: Server) -> None:
    for _ in range(100):
        gauges = server.gauges()
        if not gauges["flare_rows_used"] and not gauges["flare_pages_used"]:
            break
    assert (gauges["flare_rows_used"], gauges["flare_pages_used"]) == (0, 0)
    assert gauges["flare_requests_waiting"] == 0


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize("stream", [False, True])
def test_required_and_named_calls_are_calls_with_valid_arguments(server, stream):
    parameters = WEATHER["function"]["parameters"]
    named = {"type": "function", "function": {"name": "get_weather"}}
    for seed in range(4):
        choice: Any = named if seed % 2 else "required"
        fields: dict[str, Any] = {"tools": [WEATHER, CLOCK], "tool_choice": choice, "seed": seed}
        answer = server.chat(stream=stream, parallel_tool_calls=False, **fields)
        if stream:
            *_, last = events = list(answer)
            calls = [c for e in events for c in e.choices[0].delta.tool_calls or ()]
            name = calls[0].function.name
            arguments = "".join(call.function.arguments for call in calls)
            reason = last.choices[0].finish_reason
        else:
            (choice,) = answer.choices
            (call,) = choice.message.tool_calls
            name, arguments, reason = call.function.name, call.function.arguments, "tool_calls"
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert reason == "tool_calls"
        assert name == "get_weather" or not seed % 2
        if name == "get_weather":
            jsonschema.validate(json.loads(arguments), parameters)
        else:
            assert json.loads(arguments) == {}


def test_with_a_format_an_answer_is_a_valid_text_or_valid_calls(server):
    """A random model begins with either; what it begins is what it keeps to."""
    kinds = set()
    for seed in range(10):
        answer = server.chat(
            tools=[WEATHER], response_format=schema_format(PERSON), seed=seed, temperature=2.0
        )
        (choice,) = answer.choices
        kinds.add(choice.finish_reason)
        if choice.finish_reason == "tool_calls":
            assert choice.message.content is None
            for call in choice.message.tool_calls:
                arguments = json.loads(call.function.arguments)
                jsonschema.validate(arguments, WEATHER["function"]["parameters"])
        elif choice.finish_reason == "stop":
            assert choice.message.tool_calls is None
            jsonschema.validate(json.loads(choice.message.content), PERSON)
    assert {"tool_calls", "stop"} <= kinds


def test_a_call_that_the_token_limit_cuts_says_length(server):
    answer = server.chat(tools=[WEATHER], tool_choice="required", max_tokens=60, seed=1)
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 60


GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/structured-output.md"


def test_the_guide_runs_as_printed(servers, capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    code = "\n".join(blocks).replace("http://127.0.0.1:8000", servers[1].url)
    scope: dict[str, Any] = {}
    exec(code.replace("smollm2-135m", "tiny"), scope)
    scope["client"].close()
    printed = capsys.readouterr().out.splitlines()
    assert "'age': " in printed[0]
    assert printed[1].startswith("get_weather {'city': ")
