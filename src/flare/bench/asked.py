"""What was asked on the command line, checked and put together."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from flare.bench.errors import BenchError
from flare.bench.rounds import Contender, Settings
from flare.bench.scenario import Scenario
from flare.bench.scenario_files import NamedScenario, scenarios_of
from flare.bench.starting import parse_command
from flare.bench.target import Endpoint, Target, split_pair

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S: Final = 300.0
_SECRET: Final = "KEY"


class Asked(NamedTuple):
    """The options of `flare bench` as they were typed."""

    url: str | None
    servers: Sequence[str]
    commands: Sequence[str]
    scenarios: Sequence[str]
    models: Sequence[str]
    api_keys: Sequence[str]
    rounds: int
    seed: int | None
    warm_up: bool
    timeout_s: float
    ready_s: float
    tokenizer_file: Path | None
    endpoint: Endpoint | None
    extra_body: str | None


def settings_of(asked: Asked) -> Settings:
    """Return what is to be measured. Raises BenchError for anything that cannot be."""
    words = [word.strip() for text in asked.scenarios for word in text.split(",")]
    scenarios = scenarios_of(word for word in words if word)
    if asked.endpoint is not None:
        changed = {"endpoint": asked.endpoint}
        scenarios = [one._replace(scenario=_with(one.scenario, changed)) for one in scenarios]
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    return Settings(
        contenders=tuple(_contenders(asked)),
        scenarios=tuple(scenarios),
        rounds=asked.rounds,
        seed=seed,
        warm_up=asked.warm_up,
        timeout_s=asked.timeout_s,
        ready_s=asked.ready_s,
        tokenizer_file=asked.tokenizer_file,
        extra_body=_extra_body(asked.extra_body),
    )


def _with(scenario: Scenario, changed: dict[str, Any]) -> Scenario:
    return scenario.model_copy(update=changed)


def _contenders(asked: Asked) -> list[Contender]:
    pairs = [split_pair(text, "NAME=URL") for text in asked.servers]
    commands = [parse_command(text) for text in asked.commands]
    if asked.url is not None or not (pairs or commands):
        pairs.insert(0, (_name_of(asked.url, pairs, commands), asked.url or DEFAULT_URL))
    names = [name for name, _ in (*pairs, *commands)]
    for name in names:
        if names.count(name) > 1:
            raise BenchError(f"two servers are named {name}; give each a name of its own")
    models, keys = _by_name(asked.models, names), _by_name(asked.api_keys, names)
    started = [
        Contender(
            name=one.name, command=one, model=models.get(one.name), api_key=keys.get(one.name)
        )
        for one in commands
    ]
    reached = []
    for name, url in pairs:
        model, key = models.get(name), keys.get(name)
        target = Target(name=name, url=url, model=model, api_key=key)
        reached.append(Contender(name=name, target=target, model=model, api_key=key))
    return [*started, *reached]


def _name_of(url: str | None, pairs: Sequence[object], commands: Sequence[object]) -> str:
    """Return the name of a server that was given by its URL alone."""
    return "server" if not pairs and not commands else (url or "server")


def _by_name(texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Read values that are for every server, or for one as NAME=VALUE; the latter win.

    A value may itself contain `=`, so only the name of a server makes it a pair.
    """
    for_all: dict[str, str] = {}
    own: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if separator and name in names:
            own[name] = value
        else:
            for_all = dict.fromkeys(names, text)
    return for_all | own


def _extra_body(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise BenchError(f"--extra-body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BenchError("--extra-body is a JSON object, such as '{\"top_k\": 1}'")
    return fields


def command_of(asked: Asked, settings: Settings) -> str:
    """Return the command that measures the same again: with its seed, without keys."""
    words = ["flare", "bench", *([asked.url] if asked.url else [])]
    for option, values in (
        ("--server", asked.servers),
        ("--start", asked.commands),
        ("--scenario", asked.scenarios),
        ("--model", asked.models),
        ("--api-key", [_SECRET for _ in asked.api_keys]),
    ):
        for value in values:
            words += [option, value]
    words += ["--rounds", str(settings.rounds), "--seed", str(settings.seed)]
    if not settings.warm_up:
        words.append("--no-warm-up")
    for option, given in (
        ("--timeout", None if asked.timeout_s == DEFAULT_TIMEOUT_S else asked.timeout_s),
        ("--endpoint", asked.endpoint),
        # A path says something about somebody's machine; its last part is enough to find it.
        ("--tokenizer", asked.tokenizer_file and asked.tokenizer_file.name),
        ("--extra-body", asked.extra_body),
    ):
        if given is not None:
            words += [option, str(given)]
    return shlex.join(words)


def lines_of_scenarios(scenarios: Sequence[NamedScenario]) -> list[tuple[str, str]]:
    """Return name and description of each."""
    return [(one.name, f"{one.scenario.title}. {one.scenario.about}") for one in scenarios]
