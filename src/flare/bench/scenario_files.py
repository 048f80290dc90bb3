"""Where scenarios come from: names that ship with flare, groups of them, TOML files."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError

from flare.bench.errors import BenchError
from flare.bench.figures import FIGURES
from flare.bench.scenario import Scenario

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "readme": ("streams-1", "streams-4", "streams-16", "first-token", "long-prompt", "copy"),
    "structured": ("free-4", "schema-4"),
    "quick": ("streams-1", "streams-4", "first-token"),
}
"""Names that stand for several scenarios."""
_UNKNOWN: Final = "extra_forbidden"
_MOST_FILE_BYTES: Final = 1 << 20


class NamedScenario(NamedTuple):
    """A scenario and the name that results have it under."""

    name: str
    scenario: Scenario


def shipped_names() -> list[str]:
    """Return the names of the scenarios that come with flare."""
    folder = resources.files("flare.bench").joinpath("scenarios")
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def shipped_text(name: str) -> str:
    """Return the TOML text of a shipped scenario, to begin one's own with. Raises BenchError."""
    if name not in shipped_names():
        raise _unknown(name)
    return resources.files("flare.bench").joinpath("scenarios", f"{name}.toml").read_text()


def scenarios_of(words: Iterable[str]) -> list[NamedScenario]:
    """Return the scenarios of names, groups and files, each once, in order. Raises BenchError."""
    found: dict[str, Scenario] = {}
    for word in words:
        for name in GROUPS.get(word, (word,)):
            if name.endswith(".toml"):
                path = Path(name)
                scenario, label = _read_file(path), path.stem
                if label in found and found[label] != scenario:
                    raise BenchError(f"two scenarios are named {label}; rename the file {path}")
            else:
                label = name
                scenario = parse_scenario(shipped_text(name), f"{name}.toml")
            found[label] = scenario
    if not found:
        raise BenchError("no scenario was named; see flare bench --list")
    return [NamedScenario(*pair) for pair in found.items()]


def _read_file(path: Path) -> Scenario:
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise BenchError(f"{path} is larger than a scenario can be")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BenchError(f"cannot read the scenario {path}: {words}") from error
    return parse_scenario(text, str(path))


def _unknown(name: str) -> BenchError:
    known = [*shipped_names(), *GROUPS]
    near = difflib.get_close_matches(name, known, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return BenchError(
        f"there is no scenario {name!r}{hint}; there are {', '.join(known)}, and files that end in "
        ".toml"
    )


def parse_scenario(text: str, file: str) -> Scenario:
    """Read a scenario. Raises BenchError with file, line and what would be right."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BenchError(f"{file}: this is not TOML: {error}") from error
    try:
        scenario = Scenario.model_validate(tree)
    except ValidationError as error:
        # A key that is misspelt is missing too; the spelling is what helps.
        found = sorted(error.errors(include_url=False), key=lambda one: one["type"] != _UNKNOWN)
        problems = [_problem(one, text, file) for one in found]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BenchError(problems[0] + more) from error
    for name in scenario.headline:
        if name not in FIGURES:
            near = difflib.get_close_matches(name, FIGURES, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            line = _line_of(text, ("headline",))
            raise BenchError(f"{file}{line}: headline: there is no figure {name!r}{hint}")
    return scenario


def _problem(error: Mapping[str, Any], text: str, file: str) -> str:
    """Return one line about one finding of pydantic."""
    is_unknown = error["type"] == _UNKNOWN
    # Branches of unions stand in the place too, where no file has them.
    parts = [part for part in error["loc"] if part in _KEYS]
    place = [str(part) for part in (*parts, *(error["loc"][-1:] if is_unknown else ()))]
    where = f"{file}{_line_of(text, place)}: {'.'.join(place)}".removesuffix(": ")
    if is_unknown:
        known = _known_keys(error["loc"])
        near = difflib.get_close_matches(place[-1], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        return f"{where}: no such key; {hint}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}"


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the tables that a key may hold."""
    members = (annotation, *getattr(annotation, "__args__", ()))
    return [one for one in members if isinstance(one, type) and issubclass(one, BaseModel)]


_KEYS: Final = frozenset(Scenario.model_fields).union(
    *(
        model.model_fields
        for field in Scenario.model_fields.values()
        for model in _models(field.annotation)
    )
)


def _known_keys(location: Sequence[str | int]) -> list[str]:
    """Return the keys that a table of the scenario may have."""
    if len(location) == 1:
        return list(Scenario.model_fields)
    models = _models(Scenario.model_fields[str(location[0])].annotation)
    mine = [one for one in models if len(models) == 1 or one.__name__.lower() == location[1]]
    return list(mine[0].model_fields) if mine else []


def _line_of(text: str, place: Sequence[str]) -> str:
    """Return `:LINE` of the key in the file, or nothing where the file does not have it."""
    for key in reversed(place):
        pattern = re.compile(rf"(^\s*|[\[{{,.]\s*){re.escape(key)}\s*[\]=.]")
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                return f":{number}"
    return ""
