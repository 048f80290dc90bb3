"""The official client against a real port: what it sends is understood, and it understands us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from helios.server.submits import derived_seed
from tests.server.live import Live, live
from tests.server.scripted import ScriptedBackend

HELLO = [{"role": "user", "content": "hi"}]
REPLY = "Hello from the script."


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


@pytest.fixture
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_chat(client):
    answer = client.chat.completions.create(model="scripted", messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "scripted"
    (choice,) = answer.choices
    assert choice.message.content == REPLY
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    usage = answer.usage
    assert usage.completion_tokens == len(REPLY)
    assert usage.prompt_tokens == len("user\nhi") + 2 + len("assistant\n") + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_chat_stream_is_role_then_content_then_one_finish(client):
    chunks = list(client.chat.completions.create(model="scripted", messages=HELLO, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert deltas[0].content == ""
    assert [delta.role for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == REPLY
    assert deltas[-1].content is None
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


def test_stream_usage_comes_last_and_alone(client):
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(REPLY)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all("usage" in chunk.model_fields_set for chunk in chunks)


def test_chat_choices_differ_by_derived_seeds(client, server):
    before = len(server.backend.submitted)
    answer = client.chat.completions.create(model="scripted", messages=HELLO, n=3, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    seeds = [submit.sampling.seed for submit in server.backend.submitted[before:]]
    assert sorted(seeds) == sorted(derived_seed(7, choice) for choice in range(3))
    assert 7 in seeds
    assert len(set(seeds)) == 3
    assert answer.usage.completion_tokens == 3 * len(REPLY)
    assert answer.usage.prompt_tokens == len(server.backend.submitted[-1].prompt_token_ids)


def test_stream_of_several_choices(client):
    texts = {0: "", 1: ""}
    finished = []
    for chunk in client.chat.completions.create(model="scripted", messages=HELLO, n=2, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finished.append(choice.index)
    assert texts == {0: REPLY, 1: REPLY}
    assert sorted(finished) == [0, 1]


def test_seeds_are_fresh_when_absent(client, server):
    before = len(server.backend.submitted)
    for _ in range(2):
        client.chat.completions.create(model="scripted", messages=HELLO)
    first, second = server.backend.submitted[before:]
    assert first.sampling.seed != second.sampling.seed


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model="scripted", messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=3
    )
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == list("Hel")
    assert content[0].bytes == [ord("H")]
    assert [top.token for top in content[0].top_logprobs] == ["H", "I"]
    assert content[0].top_logprobs[1].logprob == -1.5
    assert answer.choices[0].finish_reason == "length"


def test_chat_stream_logprobs_cover_every_token(client):
    chunks = client.chat.completions.create(
        model="scripted", messages=HELLO, logprobs=True, stream=True
    )
    entries = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert "".join(entry.token for entry in entries) == REPLY
    assert all(entry.top_logprobs == [] for entry in entries)


def test_every_sampling_field_reaches_the_engine(client, server):
    client.chat.completions.create(
        model="scripted",
        messages=HELLO,
        max_completion_tokens=5,
        max_tokens=6,
        temperature=0.25,
        top_p=0.5,
        presence_penalty=1.5,
        frequency_penalty=-1.5,
        logit_bias={"7": -100, "3": 5},
        stop=["\n\n", "END"],
        seed=-1,
        user="alice",
        extra_body={
            "top_k": 12,
            "min_p": 0.125,
            "repetition_penalty": 1.25,
            "ignore_eos": True,
            "stop_token_ids": [9, 9, 8],
            "include_stop_str_in_output": True,
            "priority": 3,
        },
    )
    submit = server.backend.submitted[-1]
    sampling = submit.sampling
    assert submit.max_output_tokens == 5
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 12)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.125, 1.25)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.5, -1.5)
    assert sampling.logit_bias == ((3, 5.0), (7, -100.0))
    assert sampling.stop_token_ids == (9, 8)
    assert sampling.seed == 2**64 - 1
    assert sampling.top_logprobs == -1
    assert submit.stop == ("\n\n", "END")
    assert (submit.ignore_eos, submit.include_stop) == (True, True)
    assert (submit.weight, submit.tenant) == (3.0, "alice")


def test_defaults_reach_the_engine(client, server):
    client.chat.completions.create(model="scripted", messages=HELLO)
    submit = server.backend.submitted[-1]
    assert submit.max_output_tokens == 8192 - len(submit.prompt_token_ids)
    assert submit.sampling.temperature == 1.0
    assert (submit.weight, submit.tenant, submit.stop, submit.scored) == (1.0, "", (), False)
    client.completions.create(model="scripted", prompt="x")
    assert server.backend.submitted[-1].max_output_tokens == 16


def test_completion_forms_of_prompt(client, server):
    for prompt, expected in [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ]:
        before = len(server.backend.submitted)
        answer = client.completions.create(model="scripted", prompt=prompt, max_tokens=100)
        sent = [submit.prompt_token_ids for submit in server.backend.submitted[before:]]
        assert sorted(sent) == sorted(expected)
        assert [choice.text for choice in answer.choices] == [REPLY] * len(expected)
        assert [choice.index for choice in answer.choices] == list(range(len(expected)))
        assert answer.usage.prompt_tokens == sum(map(len, expected))


def test_completion_choices_are_ordered_by_prompt(server):
    backend = ScriptedBackend(reply=lambda submit: bytes(submit.prompt_token_ids).decode() * 2)
    with live(backend) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0)
        with client:
            answer = client.completions.create(model="scripted", prompt=["a", "b"], n=2)
    assert [choice.text for choice in answer.choices] == ["aa", "aa", "bb", "bb"]


def test_completion_stream(client):
    chunks = list(client.completions.create(model="scripted", prompt="x", stream=True, echo=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "x" + REPLY[:16]
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"
    assert {chunk.object for chunk in chunks} == {"text_completion"}


def test_echo_with_logprobs_scores_the_prompt(client, server):
    answer = client.completions.create(
        model="scripted", prompt="ab", echo=True, logprobs=1, max_tokens=2
    )
    (choice,) = answer.choices
    assert choice.text == "abHe"
    assert choice.logprobs.tokens == ["a", "b", "H", "e"]
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.top_logprobs[1] == {"b": -0.5}
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    assert server.backend.submitted[-1].scored


def test_echo_with_logprobs_and_no_output(client, server):
    answer = client.completions.create(
        model="scripted", prompt=[97, 98], echo=True, logprobs=0, max_tokens=0
    )
    assert answer.choices[0].text == "ab"
    assert answer.choices[0].logprobs.tokens == ["a", "b"]
    assert answer.usage.completion_tokens == 0
    submit = server.backend.submitted[-1]
    assert (submit.scored, submit.max_output_tokens) == (True, 0)


def test_echo_with_logprobs_streams_the_prompt_first(client):
    chunks = list(
        client.completions.create(
            model="scripted", prompt="ab", echo=True, logprobs=0, max_tokens=2, stream=True
        )
    )
    tokens = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens]
    offsets = [
        t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.text_offset
    ]
    assert tokens == ["a", "b", "H", "e"]
    assert offsets == [0, 1, 2, 3]
    assert chunks[0].choices[0].text == "ab"


def test_no_output_and_no_scores_need_no_engine(client, server):
    before = len(server.backend.submitted)
    answer = client.completions.create(model="scripted", prompt="ab", echo=True, max_tokens=0)
    assert answer.choices[0].text == "ab"
    assert answer.choices[0].finish_reason == "length"
    assert len(server.backend.submitted) == before


def test_stop_string_is_reported(client):
    answer = client.completions.create(model="scripted", prompt="x", stop=" from", max_tokens=50)
    assert answer.choices[0].text == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == " from"


def test_text_parts_are_joined_and_developer_is_system(client, server):
    client.chat.completions.create(
        model="scripted",
        messages=[
            {"role": "developer", "content": "s"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
    )
    prompt = server.backend.submitted[-1].prompt_token_ids
    text = bytes(token for token in prompt if token < 256)
    assert text == b"system\nsuser\na\nbassistant\n"


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "scripted"
    assert client.models.retrieve("scripted").model_extra["context_length"] == 8192
    with pytest.raises(openai.NotFoundError, match="served: scripted"):
        client.models.retrieve("org/other")


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "served: scripted" in caught.value.message


def test_many_async_streams_at_once(server):
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=0
        ) as client:
            return await asyncio.gather(*(one(client) for _ in range(32)))

    assert asyncio.run(main()) == [REPLY] * 32


def test_leaving_a_stream_early_cancels_it():
    with live(ScriptedBackend(reply="x" * 4000, delay_s=0.005)) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0)
        with (
            client,
            client.completions.create(
                model="scripted", prompt="x", max_tokens=4000, stream=True
            ) as stream,
        ):
            next(iter(stream))
        from tests.server.live import until

        until(lambda: len(running.backend.cancelled) == 1)
        assert running.backend.live == 0
