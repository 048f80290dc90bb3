"""Log-probabilities in both shapes: token names, offsets, and what JSON cannot say."""

from __future__ import annotations

from helios.engine.messages import LogprobEntry
from helios.server.logprobs import CompletionLogprobsBuilder, TokenNames, chat_logprobs
from tests.server.scripted import END, ByteText

SMILE = "\N{GRINNING FACE}".encode()


def entry(token_id: int, logprob: float | None = -1.0, *top: tuple[int, float]) -> LogprobEntry:
    return LogprobEntry(
        token_id=token_id,
        logprob=logprob,
        top_ids=tuple(one for one, _ in top),
        top_logprobs=tuple(score for _, score in top),
    )


def test_parts_of_a_character_are_named_by_their_bytes():
    built = chat_logprobs(TokenNames(ByteText()), [entry(byte) for byte in SMILE])
    assert [one.token for one in built.content] == [f"bytes:\\x{byte:02x}" for byte in SMILE]
    assert [one.bytes for one in built.content] == [[byte] for byte in SMILE]


def test_offsets_count_characters_of_the_text():
    """A character of several tokens counts once complete; control tokens show as no text."""
    builder = CompletionLogprobsBuilder(TokenNames(ByteText()))
    tokens = [ord("a"), END, *SMILE, ord("b"), ord("c")]
    first = builder.build([entry(token) for token in tokens[:4]])
    rest = builder.build([entry(token) for token in tokens[4:]])
    assert first.text_offset + rest.text_offset == [0, 1, 1, 1, 1, 1, 2, 3]


def test_impossible_tokens_read_as_a_number():
    lowest = float("-inf")
    names = TokenNames(ByteText())
    built = chat_logprobs(names, [entry(65, lowest, (66, lowest), (67, -0.25))])
    assert built.content[0].logprob == -9999.0
    assert [top.logprob for top in built.content[0].top_logprobs] == [-9999.0, -0.25]
    text = CompletionLogprobsBuilder(names).build([entry(65, lowest, (66, -0.5)), entry(65, None)])
    assert text.token_logprobs == [-9999.0, None]
    assert text.top_logprobs == [{"B": -0.5, "A": -9999.0}, None]
