"""Spellings of JSON: any one is read as the usual one, and what comes next is written as before."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.runtime.json_spelling import JsonSpelling

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def text_of(value: Any, **style: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, **style).encode("utf-8", "surrogatepass")


def split(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from([None, 1, 2, 4]), st.booleans(), st.lists(st.integers(0, 500)))
def test_every_spelling_is_read_as_the_usual_one(value, indent, is_tight, cuts):
    separators = (",", ":") if is_tight else None
    text = text_of(value, indent=indent, separators=separators)
    spelling = JsonSpelling()
    assert b"".join(spelling.usual(part) for part in split(text, cuts)) == text_of(value)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from([None, 1, 2, 4]), st.integers(0, 500))
def test_what_comes_next_is_written_as_what_was(value, indent, cut):
    """From anywhere behind an indented text's first line, and from anywhere in the usual one."""
    text = text_of(value, indent=indent)
    first = text.find(b"\n") + 2 + (indent or 0) if indent else 0
    place = first + cut % max(1, len(text) - first)
    if first > len(text):
        return
    spelling = JsonSpelling()
    left = text_of(value)[len(spelling.usual(text[:place])) :]
    assert spelling.own(left) == text[place:]


@pytest.mark.parametrize(
    ("before", "usual", "own"),
    [
        (b"", b'{"a": [1, 2]}', b'{"a": [1, 2]}'),
        (b'{"a":1,"b":', b'[1, 2], "c": 3}', b'[1,2],"c":3}'),
        # Behind a comma or a colon white space comes next, whatever follows it.
        (b'{\n    "a": 1,', b"", b"\n    "),
        (b'{\n    "a": 1,\n ', b"", b"   "),
        (b'{"a":1,"b"', b": ", b":"),
        # Behind an opening bracket only with what follows: it may close at once.
        (b'{\n "a": {', b"", b""),
        (b'{\n "a": {', b'"b": 1}', b'\n  "b": 1\n }'),
        (b'{\n "a": {', b'}, "b": 1', b'},\n "b": 1'),
        # Lists have their own way once they have shown one.
        (b'{\n  "a": [1, 2],\n  "b": ', b"[3, 4]}", b"[3, 4]\n}"),
        (b'{\n  "a": ', b"[3, 4]}", b"[\n    3,\n    4\n  ]\n}"),
        # Brackets, commas and quotes inside strings are text.
        (b'{\n  "a": "[{,: \\"', b'\\", "}', b'\\", "\n}'),
        # Other white space than expected is left as it is.
        (b'{"a" ', b": 1}", b": 1}"),
        (b'{\n  "a": 1, ', b'"b": 2}', b'"b": 2\n}'),
    ],
)
def test_own_spelling(before, usual, own):
    spelling = JsonSpelling()
    spelling.usual(before)
    assert spelling.own(usual) == own
    assert spelling.own(usual) == own, "looking ahead must not change anything"


def test_a_copy_goes_on_by_itself():
    spelling = JsonSpelling()
    spelling.usual(b"[")
    other = spelling.copy()
    other.usual(b"\n    [\n        1")
    assert spelling.own(b"[1]]") == b"[1]]"
    assert other.own(b"]]") == b"\n    ]\n]"
