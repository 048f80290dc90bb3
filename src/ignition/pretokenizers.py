"""How text is cut into words before byte-level BPE, by the name that GGUF files give it.

Every pattern is written for the `tokenizers` library. Successive splits cut the pieces of the
previous one further.
"""

from __future__ import annotations

from typing import Final

_Json = dict[str, object]

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> _Json:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_level(*, use_regex: bool) -> _Json:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _sequence(*steps: _Json) -> _Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_SINGLE_DIGITS: Final = _sequence(
    {"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)
)
_LLAMA3: Final = _sequence(_split(_CASELESS % 3), _byte_level(use_regex=False))
_QWEN2: Final = _sequence(_split(_CASELESS % 1), _byte_level(use_regex=False))
_DEFAULT: Final = _sequence(
    _split(r"[\p{P}\$\+<=>\^~\|`]+"),
    _split(_GPT2),
    _split(r"\p{N}+"),
    _split(r"[0-9][0-9][0-9]"),
    _byte_level(use_regex=False),
)

PRETOKENIZERS: Final[dict[str, _Json]] = {
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _byte_level(use_regex=True),
    "default": _DEFAULT,
}
IGNORES_MERGES: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""A word that is a token as it stands becomes that token, whatever the merges say."""
STARTS_WITH_BOS: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""Prompts start with the beginning-of-sequence token unless the file says otherwise."""
