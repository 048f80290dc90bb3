"""Hold a served model to random JSON schemas and count the answers that end and that are valid.

The schemas are those of the tests, the prompt says nothing of them, and an answer that ended by
itself must be valid. Needs `jsonschema`, and the repository's root in PYTHONPATH. Usage:

    PYTHONPATH=. python benchmarks/random_schemas.py URL [--schemas 500] [--temperatures 0,1]
        [--max-tokens 1024] [--streams 8]
"""

from __future__ import annotations

import argparse
import functools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
from tests.support.schemas import random_schema

PROMPT = "Make up an example of a record and answer with it as JSON."


def verdict(
    client: httpx.Client, seed: int, temperature: float, max_tokens: int
) -> tuple[str, int]:
    """Return what became of one answer, and how many tokens it took."""
    schema = random_schema(seed)
    body = {
        "model": client.headers["model"],
        "messages": [{"role": "user", "content": PROMPT}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "temperature": temperature,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    answer = client.post("/v1/chat/completions", json=body)
    if answer.status_code != httpx.codes.OK:
        return f"status {answer.status_code}: {answer.text[:200]}", 0
    (choice,), tokens = answer.json()["choices"], answer.json()["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        return choice["finish_reason"], tokens
    try:
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    except (ValueError, jsonschema.ValidationError) as fault:
        return f"ended, invalid, schema {seed}: {str(fault)[:200]}", tokens
    return "ended, valid", tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--streams", type=int, default=8)
    arguments = parser.parse_args()
    with httpx.Client(base_url=arguments.url, timeout=600) as client:
        client.headers["model"] = client.get("/v1/models").json()["data"][0]["id"]
        for temperature in map(float, arguments.temperatures.split(",")):
            ask = functools.partial(
                verdict, client, temperature=temperature, max_tokens=arguments.max_tokens
            )
            with ThreadPoolExecutor(arguments.streams) as pool:
                found = list(pool.map(ask, range(arguments.schemas)))
            counts = Counter(outcome for outcome, _ in found)
            tokens = sum(tokens for _, tokens in found)
            print(f"temperature {temperature}: {dict(counts)}, {tokens} tokens", flush=True)


if __name__ == "__main__":
    main()
