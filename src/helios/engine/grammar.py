"""Ports of constrained output: what the engine asks of a grammar, whoever implements it.

A mask says of every token whether it may come next: bit t % 32 of word t // 32 stands for token t.
Masks belong to one request and travel in its own lane, so no neighbour's can ever be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from helios.engine.messages import GrammarMessage

TokenMasks = npt.NDArray[np.uint32]
"""[rows, words] allowed tokens, one row per target row of a lane."""


class GrammarError(ValueError):
    """A grammar that cannot be used, or that admits nothing more; the message is for its author."""


class OutputGrammar(Protocol):
    """Where one request's output stands in its grammar.

    Two threads move it: the engine's takes what a completion committed, the executor's asks for
    the mask of a frame that was queued behind a running one. `at` counts the output tokens before
    those that are passed, so what one of them has taken is not taken again by the other.
    """

    @property
    def is_complete(self) -> bool:
        """Nothing may follow what was taken."""
        ...

    def take(self, tokens: Sequence[int], *, at: int) -> int:
        """Take committed tokens; return how many there were until the text was complete.

        Fewer where the grammar refuses one. Raises GrammarError where that is the first one, or
        where `mask_after` has met a fault in front of it.
        """
        ...

    def admitted(self, proposals: Sequence[int]) -> int:
        """Return how many of the proposals may follow one another, none of them an end token."""
        ...

    def forced(self, limit: int) -> Sequence[int]:
        """Return up to `limit` tokens in which text that must come next is usually written."""
        ...

    def masks(self, proposals: Sequence[int]) -> TokenMasks:
        """Return the mask of the next token, and of the one behind each admitted proposal.

        Raises GrammarError when nothing at all may come next. Where nothing may follow a proposal,
        a token is allowed that `take` refuses.
        """
        ...

    def mask_after(self, tokens: Sequence[int], *, at: int) -> TokenMasks | None:
        """Take tokens and return the mask [1, words] of the one behind them.

        None where the text is complete, and for a fault, which the `take` of what is drawn behind
        these tokens raises: it is never shown.
        """
        ...


class QueuedMask(NamedTuple):
    """The mask of a lane whose frame is queued behind one of the same request."""

    grammar: OutputGrammar
    at: int
    """Output tokens before those that the frame in front draws."""

    def after(self, tokens: Sequence[int], *, terminated: bool) -> TokenMasks | None:
        """Return the mask behind what the frame in front drew; None: any token will do.

        A row that an end token has finished draws nothing more.
        """
        return None if terminated else self.grammar.mask_after(tokens, at=self.at)


class GrammarFactory(Protocol):
    """Opens grammars for requests."""

    def __call__(self, grammar: GrammarMessage, *, ignores_end: bool) -> OutputGrammar:
        """Return a grammar at its start. Raises GrammarError.

        `ignores_end` keeps the end token out of every mask that allows something else.
        """
        ...
