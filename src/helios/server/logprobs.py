"""Log-probabilities in the two shapes of the API.

A token that is no complete UTF-8 by itself is named by its bytes ("bytes:\\xe2\\x80"), so that
different tokens have different names. JSON has no infinity: what is impossible reads -9999.
"""

from __future__ import annotations

import codecs
import functools
import math
from collections.abc import Iterable

from helios.engine.messages import LogprobEntry
from helios.server.ports import TextModel
from helios.server.wire import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

LOWEST_LOGPROB = -9999.0


class TokenNames:
    """Names and bytes of tokens, remembered: the same few alternatives come again and again."""

    def __init__(self, text: TextModel) -> None:
        self.control = text.control_token_ids
        self.of = functools.lru_cache(maxsize=65536)(functools.partial(_name_and_bytes, text))


def _name_and_bytes(text: TextModel, token_id: int) -> tuple[str, bytes]:
    data = text.token_bytes(token_id)
    try:
        return data.decode("utf-8"), data
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can carry."""
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def chat_logprobs(names: TokenNames, entries: Iterable[LogprobEntry]) -> ChatLogprobs:
    """Return the chat shape."""
    return ChatLogprobs(content=[_chat_entry(names, entry) for entry in entries])


def _chat_entry(names: TokenNames, entry: LogprobEntry) -> TokenLogprob:
    name, data = names.of(entry.token_id)
    top = []
    for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
        top_name, top_data = names.of(token_id)
        top.append(TopLogprob(token=top_name, logprob=finite(logprob), bytes=list(top_data)))
    logprob = LOWEST_LOGPROB if entry.logprob is None else finite(entry.logprob)
    return TokenLogprob(token=name, logprob=logprob, bytes=list(data), top_logprobs=top)


class CompletionLogprobsBuilder:
    """Builds the text shape piece by piece; offsets count characters of the choice's text."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def build(self, entries: Iterable[LogprobEntry]) -> CompletionLogprobs:
        """Return the lists of the next tokens of the choice."""
        built = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for entry in entries:
            name, data = self._names.of(entry.token_id)
            built.tokens.append(name)
            built.text_offset.append(self._offset)
            if entry.token_id not in self._names.control:
                self._offset += len(self._decoder.decode(data))
            if entry.logprob is None:
                built.token_logprobs.append(None)
                built.top_logprobs.append(None)
                continue
            top = {
                self._names.of(token_id)[0]: finite(logprob)
                for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
            }
            top.setdefault(name, finite(entry.logprob))
            built.token_logprobs.append(finite(entry.logprob))
            built.top_logprobs.append(top)
        return built
