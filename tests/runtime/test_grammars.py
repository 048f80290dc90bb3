"""Grammars over a vocabulary of bytes: masks, drafts, ends, and the thread that compiles them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from helios.engine.grammar import GrammarError
from helios.engine.messages import Cancel, GrammarMessage, SamplingMessage, Submit
from helios.runtime.grammar_thread import GrammarThread
from helios.runtime.grammars import KEPT_GRAMMARS, GrammarCompiler, MatchedOutput
from helios.runtime.vocabulary import Vocabulary

END, CONTROL, EMPTY, SIZE = 256, 257, 258, 260


def compiler() -> GrammarCompiler:
    """Token t is byte t; then an end token, a control token and two ids that stand for nothing."""
    table = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<control>", b"", b""]
    vocabulary = Vocabulary(
        bytes_of=tuple(table),
        control_ids={"<end>": END, "<control>": CONTROL},
        strips_first_space=False,
    )
    return GrammarCompiler.of(vocabulary, _Bytes([]), (END,))  # type: ignore[arg-type]


class _Bytes:
    """A tokenizer whose ids are the bytes themselves."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def encode(self, text: str, add_special_tokens: bool) -> _Bytes:
        return _Bytes(list(text.encode()))


COMPILER = compiler()


def opened(text: str, kind: str = "regex", *, ignores_end: bool = False) -> MatchedOutput:
    message = GrammarMessage(kind=kind, text=text, param="x")
    return COMPILER(message, ignores_end=ignores_end)


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def test_masks_allow_what_may_follow_and_the_end_only_where_the_text_may_end():
    output = opened("ab?c*")
    assert allowed(output.masks(())[0]) == {ord("a")}
    assert output.take(b"a") == 1
    assert allowed(output.masks(())[0]) == {ord("b"), ord("c"), END}
    assert not output.is_complete


def test_no_control_token_and_no_empty_one_is_ever_allowed():
    any_text = opened("(?s:.*)")
    masks = allowed(any_text.masks(())[0])
    assert END in masks
    assert not masks & {CONTROL, EMPTY, SIZE - 1}
    assert {ord("<"), ord("x")} <= masks


def test_a_draft_is_cut_at_the_first_token_that_is_forbidden():
    output = opened("abcd|abx")
    assert output.admitted(list(b"abq")) == 2
    assert output.admitted(list(b"q")) == 0
    assert output.admitted([*b"ab", END]) == 2
    assert output.admitted(list(b"abcdabc")) == 4
    assert output.admitted(()) == 0


def test_each_row_has_the_mask_behind_its_proposals_and_the_state_stays():
    output = opened("abcd|abx")
    masks = output.masks(list(b"abcd"))
    rows = [{ord("a")}, {ord("b")}, {ord("c"), ord("x")}, {ord("d")}, {END}]
    assert [allowed(mask) for mask in masks] == rows
    for _ in range(3):
        assert np.array_equal(output.masks(list(b"abcd")), masks)
    assert output.take(b"ab") == 2
    assert np.array_equal(output.masks(list(b"cd")), masks[2:])


def test_the_end_is_where_nothing_may_follow():
    output = opened("abcd|abx")
    assert output.take([*b"abx", END]) == 3
    assert output.is_complete
    assert output.take(b"more") == 0


def test_ignoring_the_end_token_leaves_it_only_where_nothing_else_may_come():
    output = opened("ab*", ignores_end=True)
    output.take(b"a")
    assert allowed(output.masks(())[0]) == {ord("b")}
    ended = opened("ab", ignores_end=True)
    assert allowed(ended.masks(list(b"ab"))[2]) == {END}


def test_a_token_that_no_mask_allowed_is_a_fault():
    with pytest.raises(GrammarError, match="not what the grammar allows"):
        opened("abc").take(b"ax")


def test_requests_with_one_grammar_do_not_share_their_place_in_it():
    first, second = opened("abc"), opened("abc")
    first.take(b"ab")
    assert allowed(second.masks(())[0]) == {ord("a")}
    assert allowed(first.masks(())[0]) == {ord("c")}


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "(a", "unclosed group"),
        ("regex", "[^\\s\\S]", "admits nothing"),
        ("json_schema", '{"type":"wrong"}', "Invalid type"),
        ("json_schema", '{"$ref":"#"}', "admits nothing"),
        ("json_schema", "[" * 3000, "no usable JSON schema"),
        ("lark", "start: nothing", "cannot be compiled"),
        ("other", "", "unknown kind"),
    ],
)
def test_grammars_that_cannot_be_used_say_why(kind, text, message):
    with pytest.raises(GrammarError, match=message):
        opened(text, kind)


def test_white_space_of_json_is_bounded():
    output = opened(json.dumps({"type": "object"}), "json_schema")
    assert output.admitted(b'{\n    "a": [\n        1, 2]\n}') > 20
    assert output.admitted(b'{      "a": 1}') == 2
    assert output.admitted(b"{\n\n}") == 2


def test_kept_grammars_are_bounded():
    for index in range(KEPT_GRAMMARS + 9):
        opened(f"a{{{index}}}b")
    kept = [
        COMPILER.has(GrammarMessage(kind="regex", text=f"a{{{i}}}b", param="x")) for i in (0, 72)
    ]
    assert kept == [False, True]


def submit_of(name: str, text: str | None) -> Submit:
    grammar = None if text is None else GrammarMessage(kind="regex", text=text, param="x")
    return Submit(
        request_id=name,
        prompt_token_ids=[1],
        max_output_tokens=1,
        sampling=SamplingMessage(),
        grammar=grammar,
    )


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def released(thread: GrammarThread, count: int) -> list[str]:
    names: list[str] = []
    for _ in range(500):
        names += [submit.request_id for submit in thread.released()]
        if len(names) >= count and not thread.is_holding:
            return names
        time.sleep(0.01)
    raise AssertionError(f"only {names} came back")


def test_only_requests_whose_grammar_is_missing_are_held_back(gate):
    woken: list[int] = []

    def open_late() -> GrammarCompiler:
        gate.wait()
        return compiler()

    thread = GrammarThread(open_late, on_finished=lambda: woken.append(1))
    assert not thread.holds_back(submit_of("free", None))
    assert not thread.holds_back(Cancel(request_id="free"))
    assert thread.holds_back(submit_of("a", "ab"))
    assert thread.holds_back(submit_of("gone", "ab"))
    assert thread.holds_back(submit_of("bad", "("))
    assert thread.holds_back(Cancel(request_id="gone"))
    assert thread.released() == []
    gate.set()
    assert released(thread, 2) == ["a", "bad"]
    assert woken == [1, 1, 1]
    assert not thread.holds_back(submit_of("b", "ab"))
    assert not thread.holds_back(submit_of("c", "("))
    thread(GrammarMessage(kind="regex", text="ab", param="x"), ignores_end=False)
    with pytest.raises(GrammarError, match="unclosed group"):
        thread(GrammarMessage(kind="regex", text="(", param="x"), ignores_end=False)
    thread.close()


def test_a_model_that_cannot_be_constrained_refuses_each_request_with_the_reason():
    def fail() -> GrammarCompiler:
        raise ValueError("no such vocabulary")

    thread = GrammarThread(fail, on_finished=lambda: None)
    assert thread.holds_back(submit_of("a", "ab"))
    assert released(thread, 1) == ["a"]
    with pytest.raises(GrammarError, match="cannot be constrained"):
        thread(GrammarMessage(kind="regex", text="ab", param="x"), ignores_end=False)
    thread.close()
