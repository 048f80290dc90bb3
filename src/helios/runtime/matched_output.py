"""Where one request's output stands in its grammar: one matcher of llguidance, and its guide."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import llguidance
import numpy as np

from helios.engine.grammar import GrammarError, TokenMasks
from helios.runtime.json_guide import JsonGuide

_MESSAGE_LENGTH = 400


class MatchedOutput:
    """Implements helios.engine.grammar.OutputGrammar over one matcher.

    The guide knows more of what comes next than the matcher; an output that it cannot follow loses
    it. One lock per request: it is held for a mask or a burst, some tenths of a millisecond.
    """

    __slots__ = (
        "_dead_end",
        "_end_bits",
        "_ends",
        "_fault",
        "_guide",
        "_ignores_end",
        "_lock",
        "_matcher",
        "_taken",
        "_usual_tokens",
        "_words",
    )

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        guide: JsonGuide | None,
        *,
        usual_tokens: Callable[[bytes], Sequence[int]],
        vocabulary_size: int,
        end_tokens: Sequence[int],
        ignores_end: bool,
    ) -> None:
        """`usual_tokens` says in which tokens the model usually writes a text that goes on."""
        self._matcher = matcher
        self._guide = guide
        self._usual_tokens = usual_tokens
        self._words = -(-vocabulary_size // 32)
        self._ends = frozenset(end_tokens)
        self._ignores_end = ignores_end
        self._end_bits = np.zeros(self._words, np.uint32)
        for token in end_tokens:
            self._end_bits[token // 32] |= np.uint32(1 << token % 32)
        self._lock = threading.Lock()
        self._taken = 0
        self._fault: GrammarError | None = None
        """Why there was no mask behind tokens that nobody has committed yet."""
        self._dead_end: tuple[tuple[int, ...], GrammarError] | None = None
        """The next tokens behind which there was none, if they are taken, and why."""

    @property
    def is_complete(self) -> bool:
        """Nothing may follow what was taken, and nothing need."""
        # The library refuses even to be read while another thread makes a mask.
        with self._lock:
            return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def take(self, tokens: Sequence[int], *, at: int) -> int:
        """Take committed tokens; return how many there were until the text was complete.

        Or until one that the grammar refuses: raises where that is the first one.
        """
        with self._lock:
            return self._take(tokens, at)

    def admitted(self, proposals: Sequence[int]) -> int:
        """Return how many of the proposals may follow one another, none of them an end token."""
        text = list(proposals)
        for place, token in enumerate(text):
            if token in self._ends:
                text = text[:place]
                break
        with self._lock:
            if not text or self._fault is not None:
                return 0
            return int(self._matcher.validate_tokens(text))

    def forced(self, limit: int) -> Sequence[int]:
        """Return up to `limit` tokens in which text that must come next is usually written."""
        with self._lock:
            if self._fault is not None:
                return ()
            text = self._guide.forced() if self._guide is not None else b""
            text = text or self._matcher.compute_ff_bytes()
            if not text:
                return ()
            run = list(self._usual_tokens(bytes(text))[:limit])
            return run[: self._matcher.validate_tokens(run)] if run else ()

    def masks(self, proposals: Sequence[int]) -> TokenMasks:
        """Return the mask of the next token, and of the one behind each admitted proposal.

        Where nothing may follow a proposal, it alone is allowed behind itself: only what `take`
        then refuses can be drawn there.
        """
        masks = np.zeros((len(proposals) + 1, self._words), np.uint32)
        with self._lock:
            self._fill(masks[0], self._matcher)
            self._dead_end = None
            # A matcher that admits nothing more cannot go back, and a copy takes a microsecond.
            ahead = self._matcher.deep_copy() if proposals else self._matcher
            for row, token in enumerate(proposals, 1):
                if not ahead.consume_token(token):
                    raise GrammarError(f"proposal {token} is not what the grammar allows here")
                try:
                    self._fill(masks[row], ahead)
                except GrammarError as fault:
                    masks[row:] = 0
                    masks[row:, token // 32] = np.uint32(1 << token % 32)
                    self._dead_end = tuple(proposals[:row]), fault
                    break
        return masks

    def mask_after(self, tokens: Sequence[int], *, at: int) -> TokenMasks | None:
        """Take tokens and return the mask behind them; None at the end and for a fault."""
        with self._lock:
            try:
                self._take(tokens, at)
                if self._fault is not None or self._matcher.is_stopped():
                    return None
                masks = np.zeros((1, self._words), np.uint32)
                self._fill(masks[0], self._matcher)
            except Exception as fault:  # noqa: BLE001 - it ends one request, not its whole frame.
                self._fault = GrammarError(str(fault))
                return None
            return masks

    def _take(self, tokens: Sequence[int], at: int) -> int:
        """Take those of the tokens behind the first `at` that nobody has taken yet."""
        if self._fault is None:
            self._consume(tokens[max(0, self._taken - at) :])
        used = min(len(tokens), self._taken - at)
        if self._fault is not None and used <= 0:
            raise self._fault
        return used

    def _consume(self, tokens: Sequence[int]) -> None:
        """Take tokens up to the end of the text or to one that is refused, which is a fault."""
        before, dead_end = self._taken, self._dead_end
        if tokens:
            self._dead_end = None
        for place, token in enumerate(tokens):
            if self._matcher.is_stopped():
                break
            if dead_end is not None and tuple(tokens[:place]) == dead_end[0]:
                # The mask that this token was drawn under stood for one that could not be made.
                self._fault = dead_end[1]
                break
            if not self._matcher.consume_token(token):
                self._fault = GrammarError(f"token {token} is not what the grammar allows here")
                break
            self._taken += 1
        if self._guide is not None and not self._guide.take(tokens[: self._taken - before]):
            self._guide = None

    def _fill(self, mask: TokenMasks, matcher: llguidance.LLMatcher) -> None:
        """Write the mask behind what a matcher has taken."""
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error() or not mask.any():
            check_matcher(matcher, "admits nothing more")
            raise GrammarError("the grammar admits no token here")
        if self._ignores_end:
            open_ended = mask & ~self._end_bits
            if open_ended.any():
                mask[:] = open_ended


def check_matcher(matcher: llguidance.LLMatcher, failed: str) -> None:
    """Raise GrammarError with the library's reason when a matcher has given up."""
    if matcher.is_error():
        raise GrammarError(f"{failed}: {first_lines(matcher.get_error())}")


def first_lines(message: str) -> str:
    """Return a message of the library without its dump of the grammar."""
    text = message.partition("<non-verbose/>")[0].partition("<state>")[0].strip()
    text = text or "nothing can follow"
    return text if len(text) <= _MESSAGE_LENGTH else text[: _MESSAGE_LENGTH - 3] + "..."
