"""Fields that clients of other servers send and that nothing here acts on.

Each is accepted at the values that ask for nothing (`Neutral.accepted`) and refused by name at any
other, so that no wish is ever ignored silently. Names that nobody knows are refused with the
nearest name that is known.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from helios.server.errors import ApiError, invalid, shown


@dataclasses.dataclass(frozen=True, slots=True)
class Neutral:
    """A field without effect: its harmless values, and why others are refused."""

    accepted: tuple[Any, ...]
    reason: str


def _none(reason: str, *more: Any) -> Neutral:
    return Neutral((None, *more), reason)


_BOTH: Final[dict[str, Neutral]] = {
    "best_of": _none("ask for several choices with n", 1),
    "use_beam_search": _none("there is no beam search", False),
    "length_penalty": _none("there is no beam search", 1.0),
    "min_tokens": _none("there is no minimum length; ignore_eos exists", 0),
    "skip_special_tokens": _none("control tokens never appear in text", True),
    "truncate_prompt_tokens": _none("prompts are never cut silently"),
    "guided_grammar": _none("use a JSON schema, a regular expression or choices"),
    "guided_decoding_backend": _none("there is one way to constrain output", "guidance", "auto"),
    "guided_whitespace_pattern": _none("white space between JSON tokens is bounded already"),
}

CHAT_NEUTRAL: Final[dict[str, Neutral]] = {
    **_BOTH,
    "audio": _none("the model has no audio"),
    "echo": _none("echo belongs to /v1/completions", False),
    "function_call": _none("use tool_choice", "none", "auto"),
    "functions": _none("use tools", []),
    "metadata": _none("nothing is stored", {}),
    "modalities": _none("the model only writes text", ["text"]),
    "moderation": _none("nothing is moderated"),
    "prediction": _none("predicted outputs are not supported"),
    "prompt_cache_key": _none("there is no prompt cache to steer"),
    "prompt_cache_options": _none("there is no prompt cache to steer"),
    "prompt_cache_retention": _none("there is no prompt cache to steer"),
    "reasoning_effort": _none("the model does not reason apart from its answer", "none"),
    "safety_identifier": _none("requests are told apart by user"),
    "service_tier": _none("there is one tier; priority weighs requests", "auto", "default"),
    "store": _none("nothing is stored", False),
    "verbosity": _none("the model has no such setting", "medium"),
    "web_search_options": _none("there is no web search"),
    "add_generation_prompt": _none("an answer is always begun", True),
    "continue_final_message": _none("an answer is always begun", False),
    "chat_template": _none("the template is the model's own"),
    "chat_template_kwargs": _none("the template takes no options", {}),
}

COMPLETION_NEUTRAL: Final[dict[str, Neutral]] = {
    **_BOTH,
    "suffix": _none("the model cannot fill in the middle", ""),
}

MESSAGE_NEUTRAL: Final[dict[str, Neutral]] = {
    "function_call": _none("use tool_calls"),
    "refusal": _none("a refusal is written as content"),
    "audio": _none("the model has no audio"),
    "annotations": _none("the model takes no annotations", []),
    "reasoning_content": _none("the model takes no reasoning", ""),
}

STREAM_NEUTRAL: Final[dict[str, Neutral]] = {
    "include_obfuscation": _none("streams are not obfuscated", False),
    "continuous_usage_stats": _none("usage comes once, at the end", False),
}


def without_neutral(
    raw: Mapping[str, Any], neutral: Mapping[str, Neutral], known: Iterable[str], prefix: str = ""
) -> dict[str, Any]:
    """Return the fields that are acted on. Raises ApiError (400) naming the first other one."""
    known = frozenset(known)
    kept = {}
    for name, value in raw.items():
        if name in known:
            kept[name] = value
        elif name in neutral:
            if not any(_same(value, accepted) for accepted in neutral[name].accepted):
                raise _unsupported(prefix + name, value, neutral[name])
        else:
            raise _unknown(prefix, name, sorted(known | neutral.keys()))
    return kept


def _same(value: Any, accepted: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    if isinstance(value, bool) or isinstance(accepted, bool):
        return value is accepted
    return bool(value == accepted)


def _unsupported(param: str, value: Any, neutral: Neutral) -> ApiError:
    harmless = [shown(accepted) for accepted in neutral.accepted if accepted is not None]
    accepted = " or ".join(["null", *harmless])
    return invalid(
        f"{param} is not supported here ({neutral.reason}): leave it out or send {accepted}, "
        f"not {shown(value)}",
        param,
        code="unsupported_parameter",
    )


def _unknown(prefix: str, name: str, names: list[str]) -> ApiError:
    near = difflib.get_close_matches(name[:64], names, n=2, cutoff=0.7)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return invalid(
        f"unknown field {shown(prefix + name)}{hint}", prefix + name, code="unknown_parameter"
    )
