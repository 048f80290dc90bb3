"""Tool calls: what the engine is asked, and how an answer with calls reaches the client."""

from __future__ import annotations

import itertools
import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.engine.messages import Submit
from helios.server.tool_answers import CallingChoice
from helios.server.tool_parser import CallArguments, CallStart, Content, ToolCallParser
from tests.server.live import live
from tests.server.scripted import ScriptedBackend

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo {\\"\\\\"}}\n</tool_call>'
ARGUMENTS = '{"city": "Oslo {\\"\\\\"}'
SECOND = '<tool_call>{"arguments": {}, "name": "get_time"}</tool_call>'
ANSWERS = {
    CALL: ("", [("get_weather", ARGUMENTS)]),
    f"I look.\n{CALL}\n{SECOND}\n": ("I look.", [("get_weather", ARGUMENTS), ("get_time", "{}")]),
    "Just < text <tool": ("Just < text <tool", []),
    "<tool_call>no json</tool_call>": ("<tool_call>no json</tool_call>", []),
    '<tool_call>{"name": "other", "arguments": {}}</tool_call> x': (
        '<tool_call>{"name": "other", "arguments": {}}</tool_call> x',
        [],
    ),
    '<tool_call>\n{"name": "get_weather", "arguments": {"ci': ("", [("get_weather", '{"ci')]),
    '<tool_call>{"name": "get': ('<tool_call>{"name": "get', []),
    " ": (" ", []),
}


def read(pieces: list[str], *, from_start: bool = False) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser(["get_weather", "get_time"], from_start=from_start)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    content, names, arguments = "", [], []
    for part in parts:
        if isinstance(part, Content):
            content += part.text
        elif isinstance(part, CallStart):
            assert part.call == len(names)
            names.append(part.name)
            arguments.append("")
        else:
            assert isinstance(part, CallArguments)
            assert part.call == len(names) - 1
            arguments[part.call] += part.text
    return content, list(zip(names, arguments, strict=True))


@given(st.sampled_from(list(ANSWERS)), st.lists(st.integers(0, 150), max_size=12))
def test_calls_are_read_alike_however_the_answer_is_cut(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    content, calls = read(pieces)
    assert (content, calls) == ANSWERS[text]


@given(st.text(alphabet='<tool_cal/>{}"\\n: argumentse', max_size=60))
def test_no_text_breaks_the_reader(text):
    content, calls = read(list(text))
    assert (content, calls) == read([text])
    assert calls or content == text


FORMATTED = {
    **{text: ANSWERS[text] for text in (CALL, "<tool_call>no json</tool_call>")},
    f"{CALL}\n{SECOND}": ("", [("get_weather", ARGUMENTS), ("get_time", "{}")]),
    json.dumps({"a": CALL, "b": 1}): (json.dumps({"a": CALL, "b": 1}), []),
    f'["<tool {SECOND}"]': (f'["<tool {SECOND}"]', []),
    "<tool": ("<tool", []),
    "<tools are": ("<tools are", []),
}


@given(st.sampled_from(list(FORMATTED)), st.lists(st.integers(0, 150), max_size=12))
def test_a_text_of_a_format_has_no_calls_in_it(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert read(pieces, from_start=True) == FORMATTED[text]


def test_arguments_come_while_they_are_written():
    parser = ToolCallParser(["f"])
    parser.push('<tool_call>{"name": "f", "arguments": {"a')
    assert parser.push('": 1') == [CallArguments(0, '": 1')]
    assert parser.completed == 0
    assert parser.push("}}") == [CallArguments(0, "}")]
    assert parser.completed == 1


def test_only_whole_calls_are_a_reason_to_end():
    choice = CallingChoice("x", ["get_weather"])
    choice.message(CALL[:60])
    assert choice.reason("length") == "length"
    assert choice.reason("stop") == "stop"


def prompt_of(submit: Submit) -> str:
    return bytes(token for token in submit.prompt_token_ids if token < 256).decode()


def client_of(running: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0)


def ask(running: Any, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "Weather?"}]
    body = {"model": "scripted", "messages": messages, "tools": [WEATHER, TIME], **fields}
    with client_of(running) as client:
        answer = client.chat.completions.create(**body)
        return list(answer) if fields.get("stream") else answer


@pytest.mark.parametrize("stream", [False, True])
def test_calls_in_the_shape_of_the_official_client(stream):
    with live(ScriptedBackend(reply=f"I look.\n{CALL}\n{SECOND}")) as running:
        answer = ask(running, stream=stream, max_tokens=500)
    if not stream:
        (choice,) = answer.choices
        calls = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        assert [(c.function.name, c.function.arguments) for c in calls] == [
            ("get_weather", ARGUMENTS),
            ("get_time", "{}"),
        ]
        assert len({call.id for call in calls}) == 2
        return
    assert answer[-1].choices[0].finish_reason == "tool_calls"
    deltas = [event.choices[0].delta for event in answer]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(c.index, c.function.name) for c in calls if c.id] == [
        (0, "get_weather"),
        (1, "get_time"),
    ]
    assert all(call.type == "function" for call in calls if call.id)
    pieces = [call.function.arguments for call in calls if call.index == 0]
    assert "".join(pieces) == ARGUMENTS
    assert len(pieces) > 5


def test_a_call_that_max_tokens_cuts_ends_with_length():
    with live(ScriptedBackend(reply=CALL)) as running:
        (choice,) = ask(running, max_tokens=60).choices
    assert choice.finish_reason == "length"


def test_what_the_model_is_told_and_held_to():
    with live(ScriptedBackend(reply=CALL)) as running:
        for choice in (
            "auto",
            "none",
            "required",
            {"type": "function", "function": {"name": "get_time"}},
        ):
            ask(running, tool_choice=choice)
        ask(running, tool_choice="required", parallel_tool_calls=False)
        told = [
            bytes(t for t in s.prompt_token_ids if t < 256).decode()
            for s in running.backend.submitted
        ]
        grammars = [submit.grammar for submit in running.backend.submitted]
    assert "<tools>" in told[0]
    assert json.dumps("get_weather") in told[0]
    assert "<tools>" not in told[1]
    assert "get_weather" not in told[3]
    assert grammars[:2] == [None, None]
    assert all(grammar.kind == "lark" for grammar in grammars[2:])
    assert 'start: call ("\\n" call)*\ncall: c0 | c1' in grammars[2].text
    assert "get_weather" not in grammars[3].text
    assert grammars[4].text.startswith("start: call\n")


def test_results_go_back_to_the_model():
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    with live(ScriptedBackend(reply="It rains.")) as running:
        (choice,) = ask(running, messages=messages).choices
        told = prompt_of(running.backend.submitted[0])
    assert (choice.message.content, choice.message.tool_calls) == ("It rains.", None)
    assert (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in told
    )
    assert "<tool_response>\nrain\n</tool_response>" in told


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def test_with_a_format_an_answer_is_a_text_of_it_or_calls():
    text = json.dumps({"a": CALL})
    with live(ScriptedBackend(reply=text)) as running:
        (whole,) = ask(running, response_format=FORMAT, max_tokens=500).choices
        events = ask(running, response_format=FORMAT, max_tokens=500, stream=True)
        ask(running, response_format=FORMAT, tool_choice="required")
        ask(running, response_format=FORMAT, tool_choice="none")
        grammars = [submit.grammar for submit in running.backend.submitted]
    assert (whole.message.content, whole.message.tool_calls) == (text, None)
    assert whole.finish_reason == "stop"
    assert "".join(event.choices[0].delta.content or "" for event in events) == text
    either = json.loads(grammars[0].text)
    assert (grammars[0].kind, grammars[0].param) == ("either", "response_format")
    assert (either["kind"], json.loads(either["text"])) == ("json_schema", SCHEMA)
    assert either["calls"].startswith('calls: call ("\\n" call)*\ncall: c0 | c1')
    assert [grammar.kind for grammar in grammars[2:]] == ["lark", "json_schema"]


def test_calls_of_an_answer_with_a_format_are_calls():
    with live(ScriptedBackend(reply=CALL)) as running:
        (choice,) = ask(running, response_format=FORMAT, max_tokens=500).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls[0].function.arguments == ARGUMENTS
