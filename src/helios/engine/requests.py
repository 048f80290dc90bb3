"""LiveRequest: what the engine keeps of one request between its admission and its end.

It turns committed tokens into visible text. Tokens are counted when they are committed; text is
visible when neither the detokenizer nor a forming stop string holds it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from helios.engine.admission import Accepted
from helios.engine.grammar import GrammarError, OutputGrammar, QueuedMask, TokenMasks
from helios.engine.messages import Delta, Finished, LogprobEntry, PromptLogprobs, Submit
from helios.engine.ports import (
    Copying,
    CopySource,
    Detokenizer,
    DetokenizerFactory,
    TokenLogprobs,
)
from helios.engine.stops import StopFilter
from helios.scheduler import RequestHandle

SILENT_TOKENS_LIMIT = 4
"""Tokens without text after which nothing can be held back by an incomplete UTF-8 character."""


class TokenView(Sequence[int]):
    """Token ids as Python integers, made one by one: a long prompt is seldom read to its start."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: npt.NDArray[np.int32]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        found: int | list[int] = self._tokens[index].tolist()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens.tolist())


class LiveRequest:
    """One accepted request. Only its own methods change it, apart from the timestamps."""

    __slots__ = (
        "_copying",
        "_detokenizer",
        "_detokenizers",
        "_filter",
        "_grammar",
        "_grammar_fault",
        "_grammar_tokens",
        "_include_stop",
        "_outputs",
        "_prompt_entries",
        "_scored_tokens",
        "_silent_tokens",
        "_source",
        "_undelivered_logprobs",
        "_undelivered_tokens",
        "accepted",
        "arrival_ns",
        "cached_prompt_tokens",
        "dispatched_ns",
        "finish_reason",
        "handle",
        "host_ended",
        "is_constrained",
        "is_plain",
        "last_delivery_ns",
        "output_tokens",
        "proposal",
        "request_id",
        "stop_matched",
    )

    def __init__(
        self,
        request: Submit,
        accepted: Accepted,
        handle: RequestHandle,
        detokenizers: DetokenizerFactory,
        *,
        arrival_ns: int,
        copying: Copying | None = None,
        grammar: OutputGrammar | None = None,
    ) -> None:
        self.request_id = request.request_id
        self.accepted = accepted
        self.handle = handle
        self.arrival_ns = arrival_ns
        self.dispatched_ns: int | None = None
        self.last_delivery_ns: int | None = None
        self.cached_prompt_tokens = 0
        """Prompt tokens that a kept state had when it was first given a row."""
        self.output_tokens = 0
        self.finish_reason: str | None = None
        """Set once the output is complete; the response ends at the terminal retirement."""
        self.stop_matched: str | int | None = None
        self._detokenizers = detokenizers
        self._detokenizer: Detokenizer | None = None
        self._include_stop = request.include_stop
        self._filter: StopFilter | None = None
        if accepted.stops is not None:
            self._filter = StopFilter(accepted.stops, include_stop=request.include_stop)
        self._outputs: list[int] | None = [] if accepted.keeps_output else None
        self._prompt_entries: list[LogprobEntry] = []
        self._scored_tokens = 1
        """Prompt tokens whose scores were taken; nothing predicts the first one."""
        if accepted.spec.scored:
            first = int(accepted.prompt[0])
            self._prompt_entries.append(LogprobEntry(token_id=first, logprob=None))
        self._undelivered_tokens: list[int] = []
        self._undelivered_logprobs: list[LogprobEntry] = []
        self._silent_tokens = 0
        self._copying = copying
        self._source: CopySource | None = None
        self.proposal: tuple[int, ...] = ()
        """Proposals behind the pending token, of its own: copied or forced by its grammar."""
        self.host_ended = False
        """A stop string or the end of its grammar ended the output, which no program can know."""
        self._grammar = grammar
        self.is_plain = copying is None and grammar is None and accepted.stops is None
        """Its tokens become text and nothing else: `take_single` may take them."""
        self.is_constrained = grammar is not None
        """It needs a mask for every row that it samples from."""
        self._grammar_tokens = 0
        """Output tokens that the grammar has taken."""
        self._grammar_fault: Exception | None = None
        """Why there was no mask for a frame that is in flight."""

    def masks(self, rows: int) -> TokenMasks | None:
        """Return the masks of its next target rows, which follow 0, 1, ... of its proposals.

        None for a grammar that fails, which ends the request at its next commit: the frame that is
        being made belongs to others too.
        """
        assert self._grammar is not None
        try:
            return self._grammar.masks(self.proposal[: rows - 1])
        except Exception as fault:  # noqa: BLE001 - one request's fault must not end the loop.
            self._grammar_fault = fault
            return None

    def raise_grammar_fault(self) -> None:
        """Raise what ends the request behind the tokens that its grammar took."""
        if self._grammar_fault is not None and self.finish_reason is None:
            raise self._grammar_fault

    def queued_mask(self) -> QueuedMask:
        """Return what makes the mask behind the tokens that its frame in flight draws."""
        assert self._grammar is not None
        return QueuedMask(self._grammar, self._grammar_tokens)

    @property
    def replayed_tokens(self) -> int:
        """Output tokens that stand behind the prompt once the request is bound to a row again.

        Zero before a first token, and without page growth, where nothing is ever replayed.
        """
        return len(self._outputs) if self._outputs else 0

    def tokens_between(self, start: int, end: int) -> npt.NDArray[np.int32]:
        """Return the tokens of those positions: of the prompt, then of the output so far."""
        prompt = self.accepted.prompt
        if end <= len(prompt):
            return prompt[start:end]
        assert self._outputs is not None, "positions behind the prompt are replayed output"
        first = max(0, start - len(prompt))
        replayed = np.array(self._outputs[first : end - len(prompt)], dtype=np.int32)
        assert len(replayed) == end - max(start, len(prompt)), "nothing is replayed before it is"
        return np.concatenate((prompt[start:], replayed))

    def token_at(self, position: int) -> int:
        """Return the token of a position that `tokens_between` would cover; -1 behind the end."""
        prompt = self.accepted.prompt
        if position < len(prompt):
            return int(prompt[position])
        place = position - len(prompt)
        return self._outputs[place] if self._outputs and place < len(self._outputs) else -1

    def terminal_key(self) -> bytes | None:
        """Return the key of the state at the answer's end; None when it is not to be kept.

        The state is that of all committed tokens but the last, which was never fed to the model.
        """
        prefix, outputs = self.accepted.prefix, self._outputs
        if prefix is None or not outputs:
            return None
        return prefix.key_after(np.array(outputs[:-1], dtype=np.int32))

    def commit(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        *,
        terminated: bool,
        is_last: bool,
    ) -> str:
        """Take the output tokens that one lane committed; return the text they made visible.

        `terminated` says that the last of them is one of the row's stop tokens, `is_last` that no
        other follows. A stop string that they complete sets `finish_reason`; tokens behind it are
        neither shown nor counted, as if they had come one by one.
        """
        if self._outputs is not None:
            # What the row's state holds, shown or not.
            self._outputs += tokens
        if self._grammar is not None:
            tokens, is_last = self._take_in_grammar(self._grammar, tokens, terminated, is_last)
            terminated = terminated and not self.host_ended and self._grammar_fault is None
        if self._copying is not None:
            source = self._copy_source(self._copying)
            source.extend(tokens)
            self.proposal = () if is_last else self._proposed(source, self._copying.depth)
        # The text of a stop token belongs to the answer no more than a stop string does.
        shown = tokens[:-1] if terminated and not self._include_stop else tokens
        visible = ""
        if shown:
            visible, used = self._show_tokens(shown)
            if used < len(shown):
                tokens = tokens[:used]
        self.output_tokens += len(tokens)
        self._undelivered_tokens += tokens
        if logprobs:
            self._undelivered_logprobs += map(_entry_of, tokens, logprobs)
        if is_last:
            visible += self._finish_text()
            if self.finish_reason is None:
                ended = terminated or self.host_ended
                self.finish_reason = "stop" if ended else "length"
                self.stop_matched = tokens[-1] if terminated else None
        # Counted up to the next Delta, which every visible text brings about.
        self._silent_tokens += len(tokens)
        return visible

    def take_single(self, token: int) -> Delta | None:
        """Take the one token of a lane, which ends nothing; return the Delta that is due, if any.

        Only for a plain request, and without log-probabilities: it does what `commit`,
        `is_deliverable` and `take_delta` do then.
        """
        if self._outputs is not None:
            self._outputs.append(token)
        text = self._text_side().push(token)
        self.output_tokens += 1
        if text and not self._undelivered_tokens:
            self._silent_tokens = 0
            return Delta(request_id=self.request_id, text=text, token_ids=(token,))
        self._undelivered_tokens.append(token)
        self._silent_tokens += 1
        return self.take_delta(text) if self.is_deliverable(text) else None

    def is_deliverable(self, text: str) -> bool:
        """Return whether a Delta is due, given the text that the last commit made visible.

        Tokens that only wait for the rest of a character or of a stop string are not visible yet.
        A run of tokens that have no text at all is visible to a client that counts tokens.
        """
        assert self._undelivered_tokens, "asked after a commit, with the committed token at hand"
        if text:
            return True
        if self.finish_reason is not None:
            return True
        holds_text = self._filter is not None and bool(self._filter.held)
        return self._silent_tokens >= SILENT_TOKENS_LIMIT and not holds_text

    def take_delta(self, text: str) -> Delta:
        """Return the Delta with this text and every token committed since the last one."""
        delta = Delta(
            request_id=self.request_id,
            text=text,
            token_ids=tuple(self._undelivered_tokens),
            logprobs=tuple(self._undelivered_logprobs),
        )
        self._undelivered_tokens.clear()
        self._undelivered_logprobs.clear()
        self._silent_tokens = 0
        return delta

    def add_prompt_logprobs(self, position: int, scores: Sequence[TokenLogprobs]) -> None:
        """Take the scores of one scored chunk that started at `position`.

        Entry i scores prompt token `position + i + 1`; an entry past the prompt's end is void, and
        so is one that was taken before the request was preempted and began again. Raises
        ValueError when the scores leave a gap behind those already taken.
        """
        prompt, taken = self.accepted.prompt, self._scored_tokens
        if taken == len(prompt):
            return
        if position + 1 > taken:
            raise ValueError(
                f"{self.request_id}: scores start at prompt token {position + 1}, expected {taken}"
            )
        new = scores[taken - position - 1 :]
        for token, score in zip(prompt[taken:].tolist(), new, strict=False):
            self._prompt_entries.append(_entry_of(token, score))
            self._scored_tokens += 1

    def take_prompt_logprobs(self) -> PromptLogprobs | None:
        """Return the scores of the whole prompt once they are complete, and only once."""
        if len(self._prompt_entries) != len(self.accepted.prompt) or not self.accepted.spec.scored:
            return None
        entries, self._prompt_entries = tuple(self._prompt_entries), []
        return PromptLogprobs(request_id=self.request_id, entries=entries)

    def finished(self, reason: str, error: str | None = None) -> Finished:
        """Return the closing event."""
        return Finished(
            request_id=self.request_id,
            reason=reason,
            prompt_tokens=self.accepted.spec.prompt_tokens,
            output_tokens=self.output_tokens,
            stop_matched=self.stop_matched if reason == "stop" else None,
            error=error,
            cached_prompt_tokens=self.cached_prompt_tokens,
        )

    def _take_in_grammar(
        self, grammar: OutputGrammar, tokens: Sequence[int], terminated: bool, is_last: bool
    ) -> tuple[Sequence[int], bool]:
        """Return the tokens up to where the text is complete, and whether they are the last."""
        if self._grammar_fault is not None:
            raise self._grammar_fault
        text = tokens[:-1] if terminated else tokens
        used = grammar.take(text, at=self._grammar_tokens)
        self._grammar_tokens += used
        if used < len(text) and not grammar.is_complete:
            # What it has taken is shown, as if the tokens had come one by one.
            self._grammar_fault = GrammarError("the grammar admits nothing more")
            return tokens[:used], False
        if not grammar.is_complete:
            return tokens, is_last
        # The end of its grammar is the end of the output: no step is spent on an end token.
        self.host_ended = True
        return tokens[:used], True

    def _proposed(self, source: CopySource, depth: int) -> tuple[int, ...]:
        """Return the proposals behind the pending token: copied, or forced by the grammar.

        Copies are cut at what the grammar forbids; the longer run of the two is proposed.
        """
        copied = tuple(source.propose())
        grammar = self._grammar
        if grammar is None:
            return copied
        copied = copied[: grammar.admitted(copied)]
        forced = tuple(grammar.forced(depth))
        return forced if len(forced) > len(copied) else copied

    def _copy_source(self, copying: Copying) -> CopySource:
        """Return the source of proposals, made for the first token like the detokenizer."""
        if self._source is None:
            self._source = copying.open_source(self.request_id, self.accepted.prompt)
        return self._source

    def _text_side(self) -> Detokenizer:
        """Return the detokenizer, made for the first token: a queued request may never need it."""
        if self._detokenizer is None:
            self._detokenizer = self._detokenizers(TokenView(self.accepted.prompt))
        return self._detokenizer

    def _show_tokens(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Return the text that tokens made visible, and how many until a stop string was whole."""
        push = self._text_side().push
        if len(tokens) == 1:
            return self._show(push(tokens[0])), 1
        if self._filter is None:
            return "".join([push(token) for token in tokens]), len(tokens)
        visible = ""
        for used, token in enumerate(tokens, 1):
            visible += self._show(push(token))
            if self._filter.matched is not None:
                return visible, used
        return visible, len(tokens)

    def _show(self, text: str) -> str:
        """Pass text through the stop strings; a match completes the output."""
        if self._filter is None or not text:
            return text
        visible = self._filter.push(text)
        if self._filter.matched is not None:
            self.finish_reason = "stop"
            self.stop_matched = self._filter.matched
            self.host_ended = True
        return visible

    def _finish_text(self) -> str:
        """Return what the detokenizer and the stop strings still hold at the end of the output."""
        visible = self._show(self._text_side().finish())
        if self._filter is not None and self.finish_reason is None:
            visible += self._filter.flush()
        return visible


def _entry_of(token: int, score: TokenLogprobs) -> LogprobEntry:
    """Return the wire form of one position's scores."""
    return LogprobEntry(
        token_id=token,
        logprob=score.logprob,
        top_ids=score.top_ids,
        top_logprobs=score.top_logprobs,
    )
