"""TextModel: what users type stays text, conversations included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from helios.engine.manifest import TokenizerEntry
from helios.runtime.text import TemplateError, TextError, TextModel, open_detokenizers
from tests.runtime.text_models import (
    ATTACKS,
    END_OF_TEXT,
    IM_END,
    IM_START,
    VOCABULARY_SIZE,
    controls,
    entry,
    shown,
    text_model,
)
from tests.support.text_corpus import corpus
from tests.support.tiny_gguf import CHAT_TEMPLATE
from tests.support.tiny_hf import tokenizer

MODEL = text_model()
DATA = Path(__file__).parent.parent / "data" / "tokenizer_smollm2.json"

pieces = st.sampled_from([*ATTACKS, "hello", " ", "\n", "<", "|>", "é", "日"])
hostile = st.lists(pieces, max_size=4).map("".join) | st.text(max_size=12)


def well_formed(text: str) -> str:
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)


@pytest.mark.parametrize("text", ATTACKS)
def test_user_text_never_becomes_a_control_token(text: str) -> None:
    ids = MODEL.encode(text)

    assert controls(MODEL, ids) == []
    assert MODEL.decode(ids) == well_formed(text)


@given(hostile)
def test_any_user_text_comes_back(text: str) -> None:
    import unicodedata

    ids = MODEL.encode(text)

    assert controls(MODEL, ids) == []
    # The tiny tokenizer normalises to NFC, as those of the Qwen family do.
    assert MODEL.decode(ids) == unicodedata.normalize("NFC", well_formed(text))


def test_tokens_that_are_not_control_tokens_are_recognised() -> None:
    assert MODEL.encode("a<tool_call>")[-1] == 264
    assert MODEL.decode([264]) == "<tool_call>"


def test_begin_token_only_where_the_model_wants_it() -> None:
    assert text_model(add_bos=True).encode("hello")[0] == END_OF_TEXT
    assert text_model(add_bos=True).encode("") == [END_OF_TEXT]
    assert text_model(add_bos=True, bos_token_id=None).encode("") == []
    assert END_OF_TEXT not in MODEL.encode("hello")
    assert MODEL.encode("") == []


def conversation(*contents: str) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant", "user", "tool")
    return [
        {"role": roles[index % len(roles)], "content": text} for index, text in enumerate(contents)
    ]


def test_a_benign_conversation_is_encoded_as_the_tokenizer_does() -> None:
    whole = tokenizers.Tokenizer.from_str(json.dumps(tokenizer()))
    messages = conversation("be  brief", "hello\n\nworld ", "hell", " w")
    rendered = "".join(
        f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages
    )
    expected = whole.encode(rendered + "<|im_start|>assistant\n", add_special_tokens=False).ids

    assert MODEL.encode_chat(messages) == expected


@given(st.lists(hostile, min_size=1, max_size=5))
def test_contents_never_become_control_tokens(contents: list[str]) -> None:
    ids = MODEL.encode_chat(conversation(*contents))

    # Only what the template wrote: a start and an end per message, and the start of the answer.
    assert controls(MODEL, ids) == [IM_START, IM_END] * len(contents) + [IM_START]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_shown_as_they_were_typed(attack: str) -> None:
    ids = MODEL.encode_chat(conversation("s", attack))

    expected = f"<|im_start|>user\n{well_formed(attack)}<|im_end|>\n<|im_start|>assistant\n"
    assert shown(MODEL, ids).endswith(expected)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_other_string_of_a_message_is_user_text_too(attack: str) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}"
        "{% for key, value in m.extra.items() %} {{ key }}={{ value }}{% endfor %}<|im_end|>"
        "{% endfor %}{{ tools | tojson }}{{ note }}"
    )
    model = text_model(template)
    message = {"role": attack, "name": attack, "extra": {attack: attack, "b": attack}}

    ids = model.encode_chat([message], tools=[{attack: [attack]}], variables={"note": attack})

    assert controls(model, ids) == [IM_START, IM_END]


def test_templates_build_control_tokens_from_known_roles_only() -> None:
    model = text_model("{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}")
    parsed = tokenizer()
    parsed["added_tokens"].append({**parsed["added_tokens"][0], "id": 265, "content": "<|user|>"})
    parsed["added_tokens"].append({**parsed["added_tokens"][0], "id": 266, "content": "<|root|>"})
    model = TextModel(
        json.dumps(parsed), "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% endfor %}", entry()
    )

    assert model.encode_chat([{"role": "user"}]) == [265]
    assert controls(model, model.encode_chat([{"role": "root"}])) == []


def test_constants_of_the_template() -> None:
    model = text_model("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}")

    ids = model.encode_chat([], add_generation_prompt=False)

    assert shown(model, ids) == "<|endoftext|>|<|im_end|>|False"
    assert controls(model, ids) == [END_OF_TEXT, IM_END]


def test_without_a_usable_template_the_rest_still_works() -> None:
    for template, reason in ((None, "no chat template"), ("{% for %}", "does not compile")):
        model = text_model(template)
        assert not model.has_chat_template
        assert model.encode("hello")
        with pytest.raises(TemplateError, match=reason):
            model.encode_chat(conversation("x"))


def test_the_template_says_why_it_refuses() -> None:
    model = text_model("{{ raise_exception('roles must alternate: ' + messages[0].content) }}")

    with pytest.raises(ValueError, match="roles must alternate: héllo"):
        model.encode_chat(conversation("héllo"))


def swallowing_tokenizer() -> str:
    """A tokenizer whose control tokens swallow spaces, so that pieces do not encode apart."""
    parsed = tokenizer()
    for item in parsed["added_tokens"]:
        item["rstrip"] = item["special"]
    return json.dumps(parsed)


def test_tokenizers_that_encode_conversations_whole() -> None:
    model = TextModel(swallowing_tokenizer(), CHAT_TEMPLATE, entry())
    whole = tokenizers.Tokenizer.from_str(swallowing_tokenizer())
    rendered = "<|im_start|>system\n hi<|im_end|>\n<|im_start|>assistant\n"

    ids = model.encode_chat(conversation(" hi"))

    assert ids == whole.encode(rendered, add_special_tokens=False).ids
    with pytest.raises(TemplateError, match="control token"):
        model.encode_chat(conversation("<|im_end|>"))


def test_open_reads_a_package(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer()), "utf-8")
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")

    model = TextModel.open(tmp_path, entry())

    assert model.vocabulary_size == VOCABULARY_SIZE
    assert model.eos_token_ids == (IM_END,)
    assert model.longest_token_bytes == len("<|endoftext|>")
    assert model.encode_chat(conversation("x")) == MODEL.encode_chat(conversation("x"))
    detokenizer = open_detokenizers(tmp_path, entry())(())
    assert "".join(map(detokenizer.push, MODEL.encode("hello"))) == "hello"


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer()), "utf-8")
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")
    (tmp_path / name).unlink()

    with pytest.raises(TextError, match=name):
        TextModel.open(tmp_path, entry())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, "WordPiece"),
        ({"model": None}, "model"),
        ({"decoder": {"type": "WordPiece"}}, "WordPiece"),
        ({"decoder": None}, "decoder"),
        ({"pre_tokenizer": {"type": "Invented"}}, "tokenizer.json"),
    ],
)
def test_tokenizers_that_cannot_be_served_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(TextError, match=named):
        TextModel(json.dumps({**tokenizer(), **change}), None, entry())


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    with pytest.raises(TextError, match="token id 264"):
        text_model(vocabulary_size=200)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_tokenizer_file_that_is_not_json_is_named(text: str) -> None:
    with pytest.raises(TextError, match=r"tokenizer\.json"):
        TextModel(text, None, entry())


@pytest.fixture(scope="module")
def default_text(default_checkpoint: Any) -> TextModel:
    text = default_checkpoint.text
    described = TokenizerEntry(
        file="tokenizer.json",
        vocabulary_size=49_152,
        bos_token_id=text.bos_token_id,
        eos_token_ids=text.eos_token_ids,
        add_bos=text.add_bos,
        chat_template="chat_template.jinja",
    )
    return TextModel(text.tokenizer_json, text.chat_template, described)


@pytest.mark.model
def test_default_model_against_llama_cpp(default_text: TextModel) -> None:
    """Typed text: the ids of llama.cpp with its control tokens switched off."""
    for text, typed, *_ in json.loads(DATA.read_text("utf-8"))["cases"]["smollm"]:
        assert default_text.encode(text) == typed, repr(text)


@pytest.mark.model
def test_default_model_round_trips(default_text: TextModel) -> None:
    # The vocabulary of this model has no token for some control characters, so they get lost.
    known = {default_text.token_bytes(token) for token in range(default_text.vocabulary_size)}
    lost = {byte for byte in range(256) if bytes([byte]) not in known}
    assert lost < {*range(0x20), *range(0x7F, 0x100)}
    texts = [text for text in corpus(5, 1500) if not lost & set(text.encode())]
    assert len(texts) > 1200

    for text in texts:
        assert default_text.decode(default_text.encode(text)) == text


@pytest.mark.model
@pytest.mark.parametrize("attack", ATTACKS)
def test_default_model_conversations(default_text: TextModel, attack: str) -> None:
    ids = default_text.encode_chat([{"role": "user", "content": attack}])

    assert [token for token in ids if token in (0, 1, 2)] == [1, 2, 1, 2, 1]
    assert shown(default_text, ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        f"<|im_end|>\n<|im_start|>user\n{well_formed(attack)}<|im_end|>\n<|im_start|>assistant\n"
    )
