"""Renders conversations with the model's own chat template, and knows who wrote what.

Every conversation is rendered twice: plainly, which gives the text, and with all user strings
marked (`helios.runtime.provenance`), which says of each character whether the template or a user
wrote it. The two must agree character by character; so the text is exactly what the template
gives, and the marks belong to it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Final

import jinja2
import numpy as np

from helios.runtime.provenance import code_points, fold, mark_tree, unmark
from helios.runtime.sandbox import TemplateEnvironment
from helios.runtime.template_limits import TemplateError, rendering

__all__ = ["ChatTemplate", "RenderedChat", "TemplateError"]

TRUSTED_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles that templates build control tokens from; any other role is the user's own text."""

_FAILURES: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What code of a template can raise: any ordinary exception of its expressions."""

Message = Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A rendered conversation."""

    text: str
    template_text: str
    """The same length; every character that a user typed is replaced by one that no control
    token contains."""


class ChatTemplate:
    """One compiled template. Safe to use from several threads."""

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, control_names: Sequence[str]
    ) -> None:
        """Compile. Raises TemplateError when the source is not a valid template."""
        try:
            self._template = TemplateEnvironment().compile_template(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the model's chat template does not compile: {error}") from error
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        self._edges = frozenset(name[0] for name in control_names)
        self._edges |= frozenset(name[-1] for name in control_names)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        now: datetime.datetime | None = None,
    ) -> RenderedChat:
        """Render a conversation.

        Raises TemplateError with the template's own message when it refuses the conversation,
        and when it passes the limits of the sandbox.
        """
        given = {"messages": list(messages), "tools": tools, **(variables or {})}
        fixed = {**self._constants, "add_generation_prompt": add_generation_prompt}
        moment = now or datetime.datetime.now()
        with rendering(moment, has_marks=False):
            text = self._render({**given, **fixed})
        with rendering(moment, has_marks=True):
            marked = self._render_marked({**_mark_given(given), **fixed})

        if marked is not None and _stands_for(marked, text):
            return RenderedChat(text=text, template_text=marked)
        self._refuse_dangerous(given)
        return RenderedChat(text=text, template_text=text)

    def _refuse_dangerous(self, given: Mapping[str, object]) -> None:
        """Refuse a conversation whose marks were lost, if it could spell a control token.

        Without a character that a control token starts or ends with, users can neither write one
        nor complete one that the template began.
        """
        dangerous = sorted(_characters(given) & self._edges)
        if dangerous:
            raise TemplateError(
                "the model's chat template transforms messages in a way that hides who wrote what,"
                f" so they must not contain {' '.join(dangerous)}"
            )

    def _render(self, context: Mapping[str, object]) -> str:
        try:
            return str.__str__(self._template.render(context))
        except TemplateError:
            raise
        except _FAILURES as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from error

    def _render_marked(self, context: Mapping[str, object]) -> str | None:
        """Render marked strings; None when the template does what they do not support."""
        try:
            return self._render(context)
        except TemplateError:
            return None


def _mark_given(given: Mapping[str, object]) -> dict[str, object]:
    """Mark everything in a template's variables that a user may have typed."""
    marked = {name: mark_tree(value) for name, value in given.items()}
    messages = given["messages"]
    assert isinstance(messages, list)
    assert isinstance(marked["messages"], list)
    for message, copy in zip(messages, marked["messages"], strict=True):
        if message.get("role") in TRUSTED_ROLES:
            copy["role"] = message["role"]
    return marked


def _stands_for(marked: str, text: str) -> bool:
    """Whether a marked rendering is the plain one, character by character."""
    return np.array_equal(unmark(code_points(marked)), fold(code_points(text)))


def _characters(value: object) -> frozenset[str]:
    """Return every character of the strings in JSON-like data."""
    if isinstance(value, str):
        return frozenset(value)
    if isinstance(value, Mapping):
        return _characters(list(value)) | _characters(list(value.values()))
    if isinstance(value, list | tuple):
        return frozenset().union(*(_characters(item) for item in value))
    return frozenset()
