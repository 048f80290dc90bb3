"""A separate draft model: what programs need of it, and whether it speaks its target's language.

Proposals are token ids, so both models must mean the same by every id (docs/design/drafts.md 7.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy.typing as npt

from ignition.checkpoint import TextAssets
from ignition.draft.errors import DraftError
from ignition.geometry import ModelGeometry

PRIOR_ACCEPTANCE: Final = 0.6
"""Share of proposals, given that all before were right, that a pair nobody has measured is expected
to get accepted (docs/decisions/0034)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A draft model for the programs of one backend."""

    geometry: ModelGeometry
    arrays: Mapping[str, npt.NDArray[Any]]
    """Packed by `ignition.native.pack` for native programs, else float32 by canonical name."""
    library: Path | None = None
    """Compiled for the draft's geometry; native programs alone need one."""


class Speaker(NamedTuple):
    """What a model is called, how many tokens it knows, and what they are."""

    name: str
    vocabulary_size: int
    text: TextAssets


def check_pair(target: Speaker, draft: Speaker) -> None:
    """Raise DraftError, naming both models and the first difference, unless every token is the same
    in both, and what begins and ends a text is.
    """
    if target.vocabulary_size != draft.vocabulary_size:
        sizes = [f"{speaker.vocabulary_size} tokens" for speaker in (draft, target)]
        raise _differs(target, draft, "vocabulary", *sizes)
    texts = [_token_texts(speaker) for speaker in (draft, target)]
    for token in sorted(texts[0].keys() | texts[1].keys()):
        own, other = (found.get(token) for found in texts)
        if own != other:
            raise _differs(target, draft, f"token {token}", _shown(own), _shown(other))
    begins = [speaker.text.bos_token_id for speaker in (draft, target)]
    if begins[0] != begins[1]:
        raise _differs(target, draft, "the token that begins a text", *map(_named, begins))
    ends = [sorted(speaker.text.eos_token_ids) for speaker in (draft, target)]
    if ends[0] != ends[1]:
        raise _differs(target, draft, "the tokens that end a text", *map(str, ends))


def expected_pair_survivals(depth: int) -> tuple[float, ...]:
    """Return how often the first 1, 2, ... proposals are expected to be all accepted before anybody
    has seen the pair at work.
    """
    return tuple(round(PRIOR_ACCEPTANCE**place, 6) for place in range(1, depth + 1))


def _differs(target: Speaker, draft: Speaker, what: str, own: str, other: str) -> DraftError:
    return DraftError(
        f"the draft model {draft.name} has another tokenizer than its target {target.name}: "
        f"{what}: the draft has {own}, the target {other}; both must have the same tokens"
    )


def _token_texts(speaker: Speaker) -> dict[int, str]:
    """Return the text of every token by id. Raises DraftError for a tokenizer without ids."""
    try:
        document = msgspec.json.decode(speaker.text.tokenizer_json, type=_Tokenizer)
    except msgspec.MsgspecError as error:
        raise DraftError(f"the tokenizer of {speaker.name} cannot be read: {error}") from error
    vocabulary = document.model.vocab
    if isinstance(vocabulary, dict):
        texts = {index: text for text, index in vocabulary.items()}
    else:
        # Unigram tokenizers list their pieces, with a score each, in the order of ids.
        texts = {index: str(piece[0]) for index, piece in enumerate(vocabulary)}
    return texts | {token.id: token.content for token in document.added_tokens}


class _Added(msgspec.Struct):
    id: int
    content: str


class _Pieces(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = msgspec.field(default_factory=dict)


class _Tokenizer(msgspec.Struct):
    """As much of a tokenizer.json as says which text each id stands for."""

    model: _Pieces = msgspec.field(default_factory=_Pieces)
    added_tokens: list[_Added] = []


def _shown(text: str | None) -> str:
    return "none" if text is None else repr(text)


def _named(token: int | None) -> str:
    return "none" if token is None else f"token {token}"
