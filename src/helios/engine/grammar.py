"""Ports of constrained output: what the engine asks of a grammar, whoever implements it.

A mask says of every token whether it may come next: bit t % 32 of word t // 32 stands for token t.
Masks belong to one request and travel in its own lane, so no neighbour's can ever be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from helios.engine.messages import GrammarMessage

TokenMasks = npt.NDArray[np.uint32]
"""[rows, words] allowed tokens, one row per target row of a lane."""


class GrammarError(ValueError):
    """A grammar that cannot be used, or that admits nothing more; the message is for its author."""


class OutputGrammar(Protocol):
    """Where one request's output stands in its grammar."""

    @property
    def is_complete(self) -> bool:
        """Nothing may follow what was taken."""
        ...

    def take(self, tokens: Sequence[int]) -> int:
        """Take committed tokens; return how many there were until the text was complete.

        Raises GrammarError for a token that the masks did not allow.
        """
        ...

    def admitted(self, proposals: Sequence[int]) -> int:
        """Return how many of the proposals may follow one another, none of them an end token."""
        ...

    def masks(self, proposals: Sequence[int]) -> TokenMasks:
        """Return the mask of the next token, and of the one behind each admitted proposal.

        Raises GrammarError when nothing at all may come next.
        """
        ...


class GrammarFactory(Protocol):
    """Opens grammars for requests."""

    def __call__(self, grammar: GrammarMessage, *, ignores_end: bool) -> OutputGrammar:
        """Return a grammar at its start. Raises GrammarError.

        `ignores_end` keeps the end token out of every mask that allows something else.
        """
        ...
