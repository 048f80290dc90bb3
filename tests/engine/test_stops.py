"""Stop strings: minimal hold-back, nothing after the stop, and thousands of strings stay cheap."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from helios.engine.stops import (
    MAX_STOP_STRING_CHARACTERS,
    MAX_STOP_STRINGS,
    StopFilter,
    StopSet,
)


def slow_reference(stops: list[str], text: str, *, include_stop: bool) -> tuple[str, str, str]:
    """(visible, held, matched) of a text by looking at every prefix and every suffix."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            matched = max(ended, key=len)
            start = end - len(matched)
            return text[: end if include_stop else start], "", matched
    for size in range(len(text), 0, -1):
        suffix = text[len(text) - size :]
        if any(stop.startswith(suffix) and stop != suffix for stop in stops):
            return text[: len(text) - size], suffix, ""
    return text, "", ""


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=6)
PIECES = st.lists(st.text("ab", max_size=4), max_size=12)


@given(STOPS, PIECES, st.booleans())
@example(["abab", "b"], ["a", "b"], False)
@example(["aab"], ["aa", "ab"], False)
def test_agrees_with_the_reference_after_every_piece(
    stops: list[str], pieces: list[str], include_stop: bool
) -> None:
    """Field report 18: exactly the longest suffix that is a proper prefix is held back."""
    stop_filter = StopFilter(StopSet.of(stops), include_stop=include_stop)
    visible = text = ""
    for piece in pieces:
        visible += stop_filter.push(piece)
        text += piece
        expected = slow_reference(stops, text, include_stop=include_stop)
        assert (visible, stop_filter.held, stop_filter.matched or "") == expected
        if stop_filter.matched:
            break
    after_end = stop_filter.flush()
    if stop_filter.matched:
        assert after_end == ""
    else:
        assert visible + after_end == text


def test_text_after_the_stop_is_discarded() -> None:
    """Field report 19."""
    stop_filter = StopFilter(StopSet.of(["END"]), include_stop=False)
    assert stop_filter.push("one END two END") == "one "
    assert stop_filter.matched == "END"
    assert stop_filter.push("three") == ""
    assert stop_filter.flush() == ""


def test_a_stop_that_forms_across_pieces_never_shows_its_beginning() -> None:
    stop_filter = StopFilter(StopSet.of(["</s>"]), include_stop=False)
    assert [stop_filter.push(piece) for piece in ("a<", "/", "b</", "s", ">c")] == [
        "a",
        "",
        "</b",
        "",
        "",
    ]
    assert stop_filter.matched == "</s>"


def test_include_stop_keeps_the_stop_and_nothing_behind_it() -> None:
    stop_filter = StopFilter(StopSet.of(["."]), include_stop=True)
    assert stop_filter.push("one. two") == "one."


def test_of_two_stops_that_end_together_the_longer_wins() -> None:
    stop_filter = StopFilter(StopSet.of(["c", "bc"]), include_stop=False)
    assert stop_filter.push("abc") == "a"
    assert stop_filter.matched == "bc"


def test_ten_thousand_stops_cost_a_few_lookups_per_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed: at most two bisections per character whatever the number of stops."""
    stops = [f"stop string number {number:05d}" for number in range(MAX_STOP_STRINGS)]
    stop_set = StopSet.of(stops)
    lookups = 0
    original = StopSet.is_prefix

    def counted(self: StopSet, text: str) -> bool:
        nonlocal lookups
        lookups += 1
        return original(self, text)

    monkeypatch.setattr(StopSet, "is_prefix", counted)
    stop_filter = StopFilter(stop_set, include_stop=False)
    text = "stop string number 1234 stop " * 50
    assert stop_filter.push(text) + stop_filter.held == text
    assert lookups <= 2 * len(text)
    stop_filter.push(" stop string number 09999")
    assert stop_filter.matched == "stop string number 09999"


def test_text_without_any_initial_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_filter = StopFilter(StopSet.of(["x"]), include_stop=False)
    monkeypatch.setattr(StopSet, "is_prefix", None)
    assert stop_filter.push("abc" * 100) == "abc" * 100


@pytest.mark.parametrize(
    "stops",
    [
        [],
        [""],
        ["a" * (MAX_STOP_STRING_CHARACTERS + 1)],
        ["a"] * (MAX_STOP_STRINGS + 1),
    ],
)
def test_impossible_lists_are_refused(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="stop string"):
        StopSet.of(stops)


def test_surrogates_and_long_characters_are_ordinary_text() -> None:
    stop_filter = StopFilter(StopSet.of(["\U0001f600!", "é"]), include_stop=False)
    assert stop_filter.push("a\U0001f600") == "a"
    assert stop_filter.push("?bé") == "\U0001f600?b"
