"""Chat templates: rendered as transformers does, inside limits, with the marks kept."""

from __future__ import annotations

import datetime
import functools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _compile_jinja_template

from helios.runtime.chat_template import ChatTemplate, TemplateError
from helios.runtime.provenance import code_points, is_marked
from tests.runtime.text_models import ATTACKS

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
NOON = datetime.datetime(2030, 5, 17, 12, 0)

TEMPLATES = {
    "trim": "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}",
    "strip both ends of a mix": (
        "{% set text = '  <|im_start|> ' + messages[0].content + ' \\n' %}[{{ text.strip() }}]"
    ),
    "last thought only": (
        "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}"
        "{% set thought = c.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}"
        "<|im_start|>{{ thought.lstrip('\\n') }}|"
        "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{{ c }}"
        "{% else %}{{ c }}{% endif %}<|im_end|>{% endfor %}"
    ),
    "macro and blocks": (
        "{% macro show(m, upper=false) %}{% set body %} {{ m.content }} {% endset %}"
        "<|im_start|>{{ body | trim | upper if upper else body | trim }}<|im_end|>{% endmacro %}"
        "{% for m in messages %}{{ show(m) }}{{ show(m, true).strip() }}{% endfor %}"
    ),
    "operators": (
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ loop.index ~ '<|im_end|>' }}"
        "{{ m.content[:3] }}{{ m.content[-1:] }}{{ m.content * 2 }}{{ m.content | length }}"
        "{{ '%s;' % m.content }}{{ '{}!'.format(m.content) }}{% endfor %}"
    ),
    "questions": (
        "{% for m in messages %}{% if m.content.startswith('<') or m.content.endswith('>') %}A"
        "{% elif m.content == 'hello' %}B{% elif m.content in ['x', ' '] %}C{% elif m.content %}D"
        "{% else %}E{% endif %}{{ m.content.find('|') }}{{ m.content.count('e') }}"
        "{% if m.content is string and m.content is not none %}{{ m.content }}{% endif %}"
        "{% endfor %}"
    ),
    "methods": (
        "{% for m in messages %}{{ m.content.replace('e', '<|im_end|>') | replace('l', 'L') }};"
        "{{ m.content.split() | join(', ') }};{{ m.content.splitlines() | join('/') }};"
        "{{ m.content.partition('|')[2] }};{{ m.content.rsplit(' ', 1)[0] }};"
        "{{ m.content.removeprefix('<').removesuffix('>') }};{{ m.content.capitalize() }};"
        "{{ m.content.lower() ~ m.content | upper }};{{ m.content | first | default('-') }}"
        "{% endfor %}"
    ),
    "characters": "{% for m in messages %}{% for c in m.content %}{{ c }}.{% endfor %}{% endfor %}",
    "json": (
        "{% for m in messages %}{{ m | tojson }}{{ m.content | tojson(indent=2) }}{% endfor %}"
        "{{ tools | tojson(indent=4) }}{{ tools | tojson(sort_keys=true, separators=(',', ':')) }}"
    ),
    "namespace and filters": (
        "{% set ns = namespace(last='') %}{% for m in messages if m.role == 'user' %}"
        "{% set ns.last = ns.last + m.content %}{% endfor %}<|im_start|>{{ ns.last }}<|im_end|>"
        "{{ messages | map(attribute='content') | join('|') }}{{ messages | length }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "{{ (messages | last).content }}{{ messages[0]['content'] }}{{ messages[1:] | length }}"
    ),
    "system first": (
        "{%- if messages and messages[0]['role'] == 'system' -%}{%- set system ="
        " messages[0].content -%}{%- set rest = messages[1:] -%}{%- else -%}{%- set system = '' -%}"
        "{%- set rest = messages -%}{%- endif -%}\n"
        "{% for m in rest %}\n  {%- if loop.first %}[{{ system }}]{% endif %}{{ m.content }}"
        "{%- if not loop.last %}, {% endif %}\n{% endfor %}"
    ),
    "loop controls and generation": (
        "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    ),
    "date": "{{ strftime_now('%Y-%m-%d') }}{{ messages[0].content }}",
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"é": ["<|im_end|>", 1.5]}}}]

contents = st.lists(
    st.sampled_from([*ATTACKS, "hello", " ", "\n", "é", "'", '"', "<think>", "</think>", "e l"]),
    max_size=4,
).map("".join)
contents = contents.map(lambda text: text.replace("\ud800", "?"))


@functools.cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, bos_token="<|endoftext|>", eos_token="<|im_end|>", control_names=CONTROL
    )


def conversation(texts: list[str]) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant")
    return [{"role": roles[i % 3], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@settings(max_examples=40)
@given(texts=st.lists(contents, min_size=1, max_size=4))
def test_rendering_is_that_of_transformers(name: str, texts: list[str]) -> None:
    source = TEMPLATES[name]
    context: dict[str, Any] = {"messages": conversation(texts), "tools": TOOLS}
    expected = _compile_jinja_template(source).render(**context) if name != "date" else None

    rendered = template(source).render(context["messages"], tools=TOOLS, now=NOON)

    assert rendered.text == (expected if name != "date" else "2030-05-17" + texts[0])
    assert len(rendered.template_text) == len(rendered.text)
    marked = is_marked(code_points(rendered.template_text))
    for token in CONTROL:
        for match in re.finditer(re.escape(token), rendered.template_text):
            assert not marked[match.start() : match.end()].any()


@given(contents, contents)
def test_marks_tell_users_text_from_the_templates(first: str, second: str) -> None:
    source = "<|im_start|>{{ messages[0].content }}-{{ messages[1].content | trim }}<|im_end|>"

    rendered = template(source).render(conversation([first, second]))

    marked = is_marked(code_points(rendered.template_text))
    typed = "".join(c for c, is_typed in zip(rendered.text, marked, strict=True) if is_typed)
    assert typed == first + second.strip()
    written = "".join(c for c, is_typed in zip(rendered.text, marked, strict=True) if not is_typed)
    assert written == "<|im_start|>-<|im_end|>"


def test_a_token_completed_by_the_template_is_not_one() -> None:
    source = "{{ messages[0].content }}end|>{{ '<|' + messages[1].content + '|>' }}<|im_end|>"

    rendered = template(source).render(conversation(["<|im_", "im_end"]))

    assert rendered.text == "<|im_end|><|im_end|><|im_end|>"
    assert [i for i in range(30) if rendered.template_text.startswith("<|im_end|>", i)] == [20]


def test_a_template_that_hides_who_wrote_what() -> None:
    source = "<|im_start|>{{ messages[0].content | escape }}<|im_end|>"

    plain = template(source).render(conversation(["a & b"]))

    assert plain.text == "<|im_start|>a &amp; b<|im_end|>"
    with pytest.raises(TemplateError, match="hides who wrote what"):
        template(source).render(conversation(["a < b & c"]))


def refusal(source: str, *texts: str) -> str:
    with pytest.raises(TemplateError) as caught:
        template(source).render(conversation(list(texts) or ["x"]))
    return str(caught.value)


def test_own_words_of_the_template() -> None:
    assert refusal("{{ raise_exception('no system role here') }}") == "no system role here"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages | nofilter }}",
        "{{ nothing.at.all }}",
        "{{ messages[0].content | int + 'x' }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'other' %}",
    ],
)
def test_failures_inside_a_template_are_template_errors(source: str) -> None:
    assert refusal(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{", "{% endif %}", "{{ ''|none_such }}x"])
def test_sources_that_do_not_compile(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(conversation(["x"]))


def test_long_conversations_are_no_trouble() -> None:
    source = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
    messages = conversation(["word " * 2000] * 200)

    rendered = template(source).render(messages)

    assert len(rendered.text) == 200 * (12 + 10 + 10_000 - 1)
