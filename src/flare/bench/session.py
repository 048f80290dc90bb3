"""Opens a session with a server: what it serves, what it understands, how its prompts get length.

Everything that would make a whole run useless is found out here, with one request.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from tokenizers import Tokenizer as TokenizerFile

from flare.bench.errors import BenchError
from flare.bench.http_stream import stream_completion
from flare.bench.load_plan import PlannedRequest
from flare.bench.prompts import (
    ExactPrompts,
    Prompt,
    PromptMaker,
    PromptWish,
    measure_scales,
)
from flare.bench.records import Cause, Failure, RequestRecord
from flare.bench.scenario import Scenario
from flare.bench.target import ROUTES, Endpoint, Target

_CONNECT_S: Final = 10.0
_COUNT_S: Final = 120.0
_HELLO: Final = "Hello, hello."
_IGNORE_EOS: Final = "ignore_eos"
_STREAM_OPTIONS: Final = "stream_options"
_OPTIONAL: Final = ((), (_IGNORE_EOS,), (_STREAM_OPTIONS,), (_IGNORE_EOS, _STREAM_OPTIONS))
"""Fields that some servers refuse, in the order in which they are given up."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Session:
    """A server that answered, and how to ask it."""

    target: Target
    makers: Mapping[Endpoint, PromptMaker]
    left_out: tuple[str, ...] = ()
    """Fields that it refused."""
    extra_body: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Fields added to every request, for servers that want to be told more."""
    notes: list[str] = dataclasses.field(default_factory=list)
    """What a reader of the figures must know."""

    def body(self, scenario: Scenario, request: PlannedRequest) -> bytes:
        """Return the JSON of a request. Raises BenchError for a prompt that cannot be made."""
        prompt = self.makers[scenario.endpoint].prompt(request.wish)
        fields = _fields(self.target, scenario.endpoint, prompt, request.output_tokens)
        fields["temperature"] = scenario.temperature
        if scenario.output.exact:
            fields[_IGNORE_EOS] = True
        if scenario.output.json_schema is not None:
            named = {"name": "answer", "schema": scenario.output.json_schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        for name in self.left_out:
            fields.pop(name, None)
        return msgspec.json.encode(fields | dict(self.extra_body))


def _fields(
    target: Target, endpoint: Endpoint, prompt: Prompt, output_tokens: int
) -> dict[str, object]:
    asked: dict[str, object] = (
        {"prompt": prompt}
        if endpoint == "text"
        else {"messages": [{"role": "user", "content": prompt}]}
    )
    return {
        "model": target.model,
        **asked,
        "max_tokens": output_tokens,
        "stream": True,
        _STREAM_OPTIONS: {"include_usage": True},
    }


async def open_session(
    target: Target,
    scenarios: Sequence[Scenario],
    *,
    tokenizer_file: Path | None = None,
    extra_body: Mapping[str, object] | None = None,
    timeout_s: float = 300.0,
) -> Session:
    """Return a session on a server that streams. Raises BenchError with what to do about it.

    With `tokenizer_file` (a tokenizer.json) prompts have exact lengths; otherwise the server is
    asked how it counts.
    """
    served = await _served_models(target)
    if target.model is None:
        if not served:
            raise BenchError(f"{target.name} lists no model; name one with --model")
        target = dataclasses.replace(target, model=served[0])
    session = Session(target=target, makers={}, extra_body=extra_body or {})
    tokenizer = None if tokenizer_file is None else _tokenizer(tokenizer_file)
    makers: dict[Endpoint, PromptMaker] = {}
    for endpoint in dict.fromkeys(scenario.endpoint for scenario in scenarios):
        mine = [one for one in scenarios if one.endpoint == endpoint]
        # Asked as it will be asked later: some servers take token ids alone.
        as_ids = tokenizer is not None and endpoint == "text"
        prompt: Prompt = tokenizer.encode(_HELLO) if tokenizer and as_ids else _HELLO
        is_exact = any(one.output.exact for one in mine)
        await _probe(
            session, endpoint, prompt, is_exact=is_exact, served=served, timeout_s=timeout_s
        )
        if tokenizer is not None:
            makers[endpoint] = ExactPrompts(tokenizer, as_ids=as_ids)
        else:
            kinds = [one.prompt.kind for one in mine]
            makers[endpoint] = await measure_scales(kinds, _ServerCount(session.target, endpoint))
    session.makers = makers
    return session


def _tokenizer(file: Path) -> _Exact:
    try:
        return _Exact(TokenizerFile.from_file(str(file)))
    # The library raises a bare Exception for a file that it cannot read.
    except Exception as error:
        raise BenchError(f"{file} is no tokenizer.json: {error}") from error


class _Exact:
    """A tokenizer.json without special tokens."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))


async def _served_models(target: Target) -> list[str]:
    """Return the ids that the server lists; empty where it has no list."""
    try:
        answer = await _get(target, "/v1/models", _CONNECT_S)
    except httpx.HTTPError as error:
        words = str(error) or type(error).__name__
        raise BenchError(
            f"no server answers at {target.base} ({words}); is it running, and is this its address?"
        ) from error
    if answer.status_code in (401, 403):
        raise BenchError(
            f"{target.base} wants another API key (status {answer.status_code}); give it with "
            "--api-key or FLARE_API_KEY"
        )
    try:
        return [str(model["id"]) for model in answer.json()["data"]]
    except (KeyError, TypeError, ValueError):
        return []


def _client(target: Target, timeout_s: float) -> httpx.AsyncClient:
    # Certificates take tens of milliseconds to load; plain http has no use for them.
    return httpx.AsyncClient(
        headers=target.headers, timeout=timeout_s, trust_env=False, verify=target.is_tls
    )


async def _get(target: Target, route: str, timeout_s: float) -> httpx.Response:
    async with _client(target, timeout_s) as client:
        return await client.get(f"{target.base}{route}")


async def _probe(
    session: Session,
    endpoint: Endpoint,
    prompt: Prompt,
    *,
    is_exact: bool,
    served: Sequence[str],
    timeout_s: float,
) -> None:
    """Ask for two tokens, giving up optional fields that the server refuses. Raises BenchError."""
    target, failure = session.target, None
    for left_out in _OPTIONAL:
        fields = _fields(target, endpoint, prompt, 2) | {_IGNORE_EOS: True}
        if not is_exact:
            del fields[_IGNORE_EOS]
        fields = {name: value for name, value in fields.items() if name not in left_out}
        record = RequestRecord()
        body = msgspec.json.encode(fields | dict(session.extra_body))
        await stream_completion(target, endpoint, body, record, timeout_s=timeout_s)
        failure = record.failure
        if failure is None or failure.cause is Cause.EMPTY:
            _note(session, left_out, record)
            return
        if failure.status not in (400, 422):
            break
    assert failure is not None
    raise BenchError(_advice(target, endpoint, failure, served))


def _note(session: Session, left_out: tuple[str, ...], record: RequestRecord) -> None:
    session.left_out = tuple(dict.fromkeys((*session.left_out, *left_out)))
    if _IGNORE_EOS in left_out:
        session.notes.append(
            "refuses ignore_eos: answers may end before the ordered length, so compare rates with "
            "care"
        )
    if record.usage is None:
        session.notes.append("reports no usage: output tokens are counted by chunks")


def _advice(target: Target, endpoint: Endpoint, failure: Failure, served: Sequence[str]) -> str:
    """Return what went wrong with the first request, and what to try."""
    said = f"{target.name} ({target.base}{ROUTES[endpoint]}): {failure.message}"
    if failure.status in (401, 403):
        return f"{said}; give the key with --api-key or FLARE_API_KEY"
    if failure.status == 404 and served and target.model not in served:
        return f"{said}; it serves {', '.join(served)}: choose with --model"
    if failure.status in (404, 405):
        other = "chat" if endpoint == "text" else "text"
        return f"{said}; if it has no such route, try --endpoint {other}"
    if failure.cause is Cause.NOT_STREAMED:
        return f"{said}; gaps and first tokens need a server that streams"
    return said


class _ServerCount:
    """Counts the tokens of a text as the server does, by an answer of one token."""

    def __init__(self, target: Target, endpoint: Endpoint) -> None:
        self._target, self._endpoint = target, endpoint

    async def __call__(self, text: str) -> int:
        target = self._target
        body: dict[str, Any] = _fields(target, self._endpoint, text, 1) | {"stream": False}
        del body[_STREAM_OPTIONS]
        try:
            async with _client(target, _COUNT_S) as client:
                answer = await client.post(f"{target.base}{ROUTES[self._endpoint]}", json=body)
                answer.raise_for_status()
                return int(answer.json()["usage"]["prompt_tokens"])
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise BenchError(
                f"{target.name} does not say how many tokens a prompt has ({error}); give "
                "--tokenizer, so that prompts get their length"
            ) from error


async def program_ns(target: Target) -> float | None:
    """Return how long a server of ours has been inside programs; None for one that does not say."""
    try:
        answer = await _get(target, "/metrics", _CONNECT_S)
    except httpx.HTTPError:
        return None
    name = "flare_replay_nanoseconds_total"
    lines = answer.text.splitlines() if answer.status_code == 200 else []
    values = [
        line.rpartition(" ")[2] for line in lines if line.startswith((f"{name} ", name + "{"))
    ]
    try:
        return sum(map(float, values)) if values else None
    except ValueError:
        return None


def wishes_fit(session: Session, scenario: Scenario, wishes: Sequence[PromptWish]) -> None:
    """Make every prompt once, so that one that cannot be made is refused before anything runs."""
    for wish in itertools.islice(wishes, 4096):
        session.makers[scenario.endpoint].prompt(wish)
