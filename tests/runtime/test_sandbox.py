"""What a hostile chat template cannot do: reach internals, loop for ever, fill the memory."""

from __future__ import annotations

import pytest

from helios.runtime.chat_template import ChatTemplate, TemplateError

Messages = list[dict[str, str]]


def render(source: str, messages: Messages) -> str:
    template = ChatTemplate(source, bos_token="", eos_token="", control_names=("<|im_end|>",))
    return template.render(messages).text


def refusal(source: str) -> str:
    with pytest.raises(TemplateError) as caught:
        render(source, [{"role": "user", "content": "x"}])
    return str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'content': 'y'}) }}",
        "{{ ('{0.__class__.__mro__}').format(messages) }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{{ self._TemplateReference__context.x }}",
        "{{ lipsum.__globals__ }}",
    ],
)
def test_the_sandbox_keeps_internals_and_arguments_out_of_reach(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]

    with pytest.raises(TemplateError):
        render(source, messages)

    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999999999) %}{% endfor %}",
        "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_endless_work_is_stopped(source: str) -> None:
    assert refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 999999999 }}",
        "{{ 999999999 * 'x' }}",
        "{{ [0] * 999999999 }}",
        "{{ 9 ** 999999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x'.center(999999999) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ strftime_now('%999999999d') }}",
        "{{ messages | tojson(indent=999999999) }}",
        "{{ [1] | batch(999999999, 'x') | list }}",
        "{% set s %}{% for i in range(99999) %}" + "x" * 400 + "{% endfor %}{% endset %}{{ s }}",
    ],
)
def test_huge_results_are_stopped(source: str) -> None:
    assert refusal(source)


@pytest.mark.parametrize(
    "growth",
    [
        "ns.s + ns.s",
        "ns.s ~ ns.s",
        "ns.s * 2",
        "ns.s.replace('x', 'xxxxxxxxxxxxxxxx')",
        "ns.s | replace('x', 'xxxxxxxxxxxxxxxx')",
        "ns.s.join([ns.s, ns.s, ns.s])",
        "[ns.s, ns.s, ns.s] | join(ns.s)",
        "'%s%s' % (ns.s, ns.s)",
        "'{0}{0}'.format(ns.s)",
    ],
)
def test_growth_is_stopped(growth: str) -> None:
    loop = "{% for i in range(64) %}{% set ns.s = " + growth + " %}{% endfor %}"

    assert refusal("{% set ns = namespace(s='xxxxxxxx') %}" + loop)
