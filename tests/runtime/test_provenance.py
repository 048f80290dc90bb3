"""MarkedText answers like the plain string, and what it gives keeps its marks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.runtime.provenance import (
    MarkedText,
    code_points,
    fold,
    is_marked,
    mark,
    mark_tree,
    unmark,
)

# Characters above the basic plane become placeholders, which case does not know.
basic = st.text(
    st.one_of(st.sampled_from(" \n\t<>|aAé'\"\\"), st.characters(max_codepoint=0xD7FF)), max_size=12
)
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)

OPERATIONS: dict[str, Callable[[str], object]] = {
    "strip": lambda s: [s.strip(), s.lstrip(), s.rstrip(), s.strip("<a")],
    "split": lambda s: [s.split(), s.split("a"), s.split("a", 1), s.split(None, 1)],
    "rsplit": lambda s: [s.rsplit(), s.rsplit("a", 1), s.rsplit(None, 1)],
    "lines": lambda s: [s.splitlines(), s.splitlines(True)],
    "partition": lambda s: [s.partition("a"), s.rpartition("a")],
    "slices": lambda s: [s[1:], s[:2], s[::-1], list(s), s * 2],
    "prefixes": lambda s: [s.removeprefix("<"), s.removesuffix(">"), s.removesuffix("")],
    "replace": lambda s: [s.replace("a", "bc"), s.replace("<", "", 1), s.replace("", "-")],
    "case": lambda s: [s.lower(), s.upper()],
    "questions": lambda s: [s.startswith(("<", "a")), s.endswith(">"), s.find("a"), s.count("|")],
    "comparison": lambda s: ["a" in s, s == "a", s != "a", s < "b", s >= "A", hash(s) == hash("a")],
    "kinds": lambda s: [s.isspace(), s.isalpha(), s.isdigit(), s.isupper(), len(s), bool(s)],
    "joins": lambda s: ["<" + s + ">", s.join(["x", "y"]), "".join([s, "-", s])],
    "keys": lambda s: [{s: 1}.get("a"), {"a": 1}.get(s), s in {"a": 1}, s in ["a", "<"]],
}


def plain(value: object) -> object:
    """A result with its marks removed."""
    if isinstance(value, str):
        points = unmark(code_points(str.__str__(value)))
        return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


@pytest.mark.parametrize("name", sorted(OPERATIONS))
@given(text=basic)
def test_operations_answer_as_on_the_plain_text(name: str, text: str) -> None:
    if name == "replace" and not text.isascii():
        text = text.encode("ascii", "ignore").decode()
    operation = OPERATIONS[name]
    expected = operation(text)
    if name == "replace":
        # Nothing to search for: templates do not insert between characters.
        expected = [*expected[:-1], text]  # type: ignore[misc]

    assert plain(operation(mark(text))) == plain(expected)


@given(any_text)
def test_every_typed_character_is_marked_and_none_survives_as_itself(text: str) -> None:
    marked = mark(text)

    points = code_points(str.__str__(marked))
    assert is_marked(points).all()
    assert unmark(points).tolist() == fold(code_points(text)).tolist()
    assert len(marked) == len(text)


@given(basic, basic)
def test_joining_keeps_what_is_whose(typed: str, written: str) -> None:
    joined = written + mark(typed) + written

    marks = is_marked(code_points(str.__str__(joined))).tolist()
    assert marks == [False] * len(written) + [True] * len(typed) + [False] * len(written)
    assert isinstance(joined, MarkedText) or not typed


@given(basic)
def test_json_escapes_stay_the_users(text: str) -> None:
    escaped = mark(text).json()

    assert plain(escaped) == json.dumps(text, ensure_ascii=False)[1:-1]
    assert is_marked(code_points(str.__str__(escaped))).all()


def test_trees_are_marked_to_the_leaves_and_keys() -> None:
    tree = {"key": ["a", {"b": "c"}, 1, None, True]}

    marked = mark_tree(tree)

    assert marked == tree
    assert isinstance(marked, dict)
    assert all(isinstance(key, MarkedText) for key in marked)
    assert isinstance(marked["key"][0], MarkedText)
    assert isinstance(marked["key"][1]["b"], MarkedText)
    assert marked["key"][2:] == [1, None, True]
