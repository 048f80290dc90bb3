"""Grammars over a vocabulary of bytes: masks, drafts, ends, and the thread that compiles them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llguidance import LLMatcher

from helios.engine.grammar import GrammarError
from helios.engine.messages import Cancel, GrammarMessage, SamplingMessage, Submit
from helios.runtime.grammar_thread import GrammarThread
from helios.runtime.grammars import KEPT_GRAMMARS, CompiledGrammar, GrammarCompiler
from helios.runtime.matched_output import MatchedOutput
from helios.runtime.vocabulary import Vocabulary

END, CONTROL, EMPTY, LAST, SIZE = 256, 257, 258, 259, 260


def compiler(last: bytes = b"", without: tuple[int, ...] = ()) -> GrammarCompiler:
    """Token t is byte t; then an end token, a control token and two ids that stand for nothing."""
    table = [b"" if byte in without else bytes([byte]) for byte in range(256)]
    table += [b"<end>", b"<control>", b"", last]
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
    assert output.take(b"a", at=0) == 1
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
    assert output.take(b"ab", at=0) == 2
    assert np.array_equal(output.masks(list(b"cd")), masks[2:])


def test_the_end_is_where_nothing_may_follow():
    output = opened("abcd|abx")
    assert output.take([*b"abx", END], at=0) == 3
    assert output.is_complete
    assert output.take(b"more", at=3) == 0


def test_ignoring_the_end_token_leaves_it_only_where_nothing_else_may_come():
    output = opened("ab*", ignores_end=True)
    output.take(b"a", at=0)
    assert allowed(output.masks(())[0]) == {ord("b")}
    ended = opened("ab", ignores_end=True)
    assert allowed(ended.masks(list(b"ab"))[2]) == {END}


def test_a_token_that_no_mask_allowed_is_a_fault_behind_what_was_allowed():
    output = opened("abc")
    assert output.take(b"axc", at=0) == 1
    for tokens in (b"xc", b"bc"):
        with pytest.raises(GrammarError, match="not what the grammar allows"):
            output.take(tokens, at=1)
    assert (output.admitted(b"bc"), output.forced(9), output.is_complete) == (0, (), False)
    with pytest.raises(GrammarError, match="not what the grammar allows"):
        opened("abc").take(b"x", at=0)


def test_where_nothing_may_follow_a_proposal_only_what_is_refused_can_be_drawn():
    """No token is an x, y or z, so no text of this grammar ever ends."""
    message = GrammarMessage(kind="regex", text="a?b[x-z]", param="x")
    for tokens in (b"ab", b"b"):
        output = compiler(without=(*b"xyz",))(message, ignores_end=False)
        *_, before, behind = output.masks(tokens)
        assert ord("b") in allowed(before)
        assert allowed(behind) == {ord("b")}
        assert output.take([*tokens, ord("b")], at=0) == len(tokens)
        assert not output.is_complete
        with pytest.raises(GrammarError, match="admits nothing more"):
            output.take(b"b", at=len(tokens))


class Limited:
    """A matcher that makes no mask behind so many tokens, whatever the language allows."""

    def __init__(self, inner: LLMatcher, tokens: int) -> None:
        self._inner, self._left = inner, tokens

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def deep_copy(self) -> Limited:
        return Limited(self._inner.deep_copy(), self._left)

    def consume_token(self, token: int) -> bool:
        self._left -= 1
        return self._inner.consume_token(token)

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        if self._left <= 0:
            raise GrammarError("too many items")
        self._inner.unsafe_compute_mask_ptr(address, size)


def test_a_mask_that_fails_though_the_language_goes_on_ends_the_text_there_too():
    """Single steps would show no token behind it, so a round shows none that stood for a draw."""
    for proposals, drawn, is_shown in (
        ("ab", "abb", False),
        ("abc", "abb", False),
        ("ab", "acb", True),
    ):
        output = opened("[a-z]{3,40}")
        output._matcher = Limited(output._matcher, 2)
        masks = output.masks(proposals.encode())
        assert [len(allowed(mask)) for mask in masks[:3]] == [26, 26, 1]
        assert output.take(drawn.encode(), at=0) == (3 if is_shown else 2)
        if not is_shown:
            with pytest.raises(GrammarError, match="too many items"):
                output.take(b"b", at=2)


def test_a_fault_in_front_of_a_queued_frame_leaves_what_was_taken_before_it():
    message = GrammarMessage(kind="regex", text="ab[x-z]", param="x")
    output = compiler(without=(*b"xyz",))(message, ignores_end=False)
    assert output.mask_after(b"ab", at=0) is None
    assert output.take(b"ab", at=0) == 2
    assert not output.is_complete
    assert (output.admitted(b"x"), output.forced(9)) == (0, ())
    with pytest.raises(GrammarError, match="admits nothing more"):
        output.take(b"q", at=2)


def test_requests_with_one_grammar_do_not_share_their_place_in_it():
    first, second = opened("abc"), opened("abc")
    first.take(b"ab", at=0)
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


def test_requests_held_back_together_compile_each_grammar_once(gate):
    """One that cannot be compiled fails once too; what is no longer kept is compiled again."""
    held, compiled = compiler(), []
    compile_one = held.compile

    def counted(grammar: GrammarMessage) -> CompiledGrammar:
        compiled.append(grammar.text)
        return compile_one(grammar)

    held.compile = counted

    def open_late() -> GrammarCompiler:
        gate.wait()
        return held

    thread = GrammarThread(open_late, on_finished=lambda: None)
    for index in range(8):
        assert thread.holds_back(submit_of(f"good{index}", "[a-z]{3,40}-[0-9]+"))
        assert thread.holds_back(submit_of(f"bad{index}", "("))
    gate.set()
    assert len(released(thread, 16)) == 16
    assert compiled == ["[a-z]{3,40}-[0-9]+", "("]
    others = [f"a{{{index}}}" for index in range(KEPT_GRAMMARS)]
    for text in others:
        assert thread.holds_back(submit_of(text, text))
    released(thread, len(others))
    assert thread.holds_back(submit_of("again", "("))
    assert thread.holds_back(submit_of("gone", "("))
    assert released(thread, 2) == ["again", "gone"]
    assert compiled == ["[a-z]{3,40}-[0-9]+", "(", *others, "("]
    for submit in (submit_of("x", "("), submit_of("y", others[-1])):
        assert not thread.holds_back(submit)
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


@pytest.mark.parametrize(
    ("kind", "text", "whole"),
    [
        ("json_schema", '{"type":"object","properties":{"a":{"type":"null"}}}', b'{"a": null}'),
        ("regex", "\\d+/x", b"12/x"),
    ],
)
def test_either_a_text_of_a_format_or_calls(kind, text, whole):
    calls = 'calls: call ("\\n" call)*\ncall: "<call>" a\na: %json {"type": "boolean"}\n'
    either = json.dumps({"kind": kind, "text": text, "calls": calls})
    called = opened(either, "either")
    assert allowed(called.masks(())[0]) >= {ord("<"), whole[0]}
    assert called.admitted(b"<call>true\n<call>false") == 22
    assert called.admitted(b"<call>truer") == 10
    assert called.admitted(whole) == len(whole)
    assert called.admitted(whole + b"<") <= len(whole)
    called.take(b"<call>true", at=0)
    assert END in allowed(called.masks(())[0])


def test_what_one_thread_took_is_not_taken_again_by_the_other():
    """A queued frame's mask takes the tokens of the frame in front before they are committed."""
    output = opened("abc(de|x)f*")
    masks = output.mask_after(b"ab", at=0)
    assert [allowed(mask) for mask in masks] == [{ord("c")}]
    assert output.take(b"ab", at=0) == 2
    assert output.take(b"c", at=2) == 1
    assert allowed(output.mask_after(b"cd", at=2)[0]) == {ord("e")}
    assert output.take(b"d", at=3) == 1
    assert allowed(output.masks(())[0]) == {ord("e")}


@pytest.mark.parametrize(
    "read",
    [
        lambda output: output.is_complete,
        lambda output: output.take(b"", at=0),
        lambda output: output.admitted(b"a"),
        lambda output: output.forced(9),
        lambda output: output.masks(()),
    ],
)
def test_the_engine_waits_while_the_executor_makes_a_mask(read):
    """The matcher may not even be read meanwhile: the library raises for a borrowed one."""
    output, entered, leave = opened("ab*"), threading.Event(), threading.Event()
    output._matcher = _Borrowed(output._matcher, entered, leave)
    with ThreadPoolExecutor(2) as pool:
        masks = pool.submit(output.mask_after, b"a", at=0)
        assert entered.wait(20)
        other = pool.submit(read, output)
        # Time for a reader that does not wait; one that does passes however long this takes.
        time.sleep(0.05)
        leave.set()
        other.result(20)
        assert allowed(masks.result(20)[0]) == {ord("b"), END}


class _Borrowed:
    """A matcher that stays with its first mask until it may leave, and raises for others then."""

    def __init__(self, inner: object, entered: threading.Event, leave: threading.Event) -> None:
        self._inner, self._entered, self._leave = inner, entered, leave
        self._owner = 0

    def __getattr__(self, name: str) -> object:
        if self._owner not in (0, threading.get_ident()):
            raise RuntimeError("Already mutably borrowed")
        if name == "unsafe_compute_mask_ptr" and not self._leave.is_set():
            self._owner = threading.get_ident()
            self._entered.set()
            assert self._leave.wait(20)
            self._owner = 0
        return getattr(self._inner, name)


def test_behind_a_whole_text_there_is_no_mask_and_its_end_is_found_again():
    output = opened("abc")
    output.take(b"a", at=0)
    assert output.mask_after([*b"bc", END], at=1) is None
    assert output.is_complete
    assert output.take([*b"bc", END], at=1) == 2


def test_a_fault_behind_a_queued_frame_is_told_where_its_tokens_are_committed():
    output = opened("abc")
    assert output.mask_after(b"ax", at=0) is None
    assert output.take(b"ax", at=0) == 1
    with pytest.raises(GrammarError, match="not what the grammar allows"):
        output.take(b"x", at=1)


def test_a_text_that_must_come_is_forced():
    """In the usual spelling while nothing else was seen, then in the output's own one."""
    schema = {"type": "object", "properties": {"name": {"enum": ["nought", "nothing"]}}}
    message = json.dumps({**schema, "required": ["name"], "additionalProperties": False})
    output = opened(message, "json_schema")
    assert bytes(output.forced(99)).startswith(b'{"name": "no')
    assert bytes(output.forced(2)) == b'{"'
    output.take(b'{"name": "not', at=0)
    assert output.admitted(output.forced(9)) == len(output.forced(9)) > 0
    assert bytes(output.forced(9)).startswith(b'hing"')
    masks = [allowed(mask) for mask in output.masks(output.forced(3))]
    assert masks == [{ord("h")}, {ord("i")}, {ord("n")}, {ord("g")}]
    wide = opened(message, "json_schema")
    wide.take(b'{\n  "', at=0)
    assert bytes(wide.forced(99)) == b'name": "no'
    wide.take(b'name" ', at=5)
    assert bytes(wide.forced(99)) == b': "no'
    wide.take(b':"noth', at=11)
    assert bytes(wide.forced(99)) == b'ing"\n}'


def test_an_indented_text_is_forced_line_by_line():
    """Where the schema leaves nothing open, all behind the first line is proposed, and admitted."""
    kinds = {"a": {"const": [1, {"b": "x"}]}, "c": {"const": {}}, "d": {"const": "\u00e4, {:"}}
    schema = {"type": "object", "properties": kinds, "required": list(kinds)}
    message = json.dumps({**schema, "additionalProperties": False})
    value = {"a": [1, {"b": "x"}], "c": {}, "d": "\u00e4, {:"}
    for indent in (1, 2, 3):
        text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
        for place in range(text.index(b'"') + 1, len(text)):
            output = opened(message, "json_schema")
            output.take(text[:place], at=0)
            assert bytes(output.forced(999)) == text[place:], (indent, place)
            assert output.admitted(text[place:]) == len(text) - place


@pytest.mark.parametrize(
    ("is_lost", "follows"), [(False, b'\xa4"]'), (True, b'\xa4"')], ids=["bytes", "no byte"]
)
def test_a_character_cut_in_two_beside_white_space(is_lost, follows):
    """Translated text must have tokens; where it has none the grammar goes on without a guide."""
    message = GrammarMessage(kind="json_schema", text=json.dumps({"const": ["a", "ä"]}), param="x")
    cut = compiler(last=b',"\xc3', without=(0xC3,) if is_lost else ())
    output = cut(message, ignores_end=False)
    output.take(b'["a"', at=0)
    output.take([LAST], at=4)
    assert bytes(output.forced(99)) == follows
    assert output.take(b'\xa4"]', at=5) == 3
    assert output.is_complete


def test_an_end_token_is_never_forced():
    output = opened("ab")
    assert bytes(output.forced(5)) == b"ab"
    output.take(b"ab", at=0)
    assert output.forced(5) == ()
