"""Opens a session with a server: which model it serves, and how prompts get their exact length."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from flare.load.http_stream import LoadError, Target
from flare.load.prompts import MeasuredTextPrompts, PromptSource, TokenIdPrompts
from flare.load.scenarios import Session


async def open_session(target: Target, tokenizer_file: Path | None, first_seed: int) -> Session:
    """Return a session on a server that answers. Raises LoadError.

    With `tokenizer_file` (a tokenizer.json) prompts go as token ids; otherwise as text that the
    server counts.
    """
    target = dataclasses.replace(target, model=target.model or await _served_model(target))
    prompts: PromptSource
    if tokenizer_file is None:
        prompts = MeasuredTextPrompts(_ServerCount(target))
    else:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        prompts = TokenIdPrompts(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    return Session(target=target, prompts=prompts, next_seed=first_seed)


def _headers(target: Target) -> dict[str, str]:
    return {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}


async def _served_model(target: Target) -> str | None:
    base = f"http://{target.host}:{target.port}{target.path}"
    try:
        async with httpx.AsyncClient(
            headers=_headers(target), timeout=10, trust_env=False
        ) as client:
            answer = await client.get(f"{base}/v1/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
        raise LoadError(f"no list of models from {target.url}: {error}") from error


class _ServerCount:
    """Counts the tokens of a text as the server does, by a completion of one token."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def __call__(self, text: str) -> int:
        base = f"http://{self._target.host}:{self._target.port}{self._target.path}"
        body = {"model": self._target.model, "prompt": text, "max_tokens": 1}
        try:
            async with httpx.AsyncClient(
                headers=_headers(self._target), timeout=120, trust_env=False
            ) as client:
                answer = await client.post(f"{base}/v1/completions", json=body)
                answer.raise_for_status()
                return int(answer.json()["usage"]["prompt_tokens"])
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise LoadError(f"{self._target.url} counts no prompt tokens: {error}") from error
