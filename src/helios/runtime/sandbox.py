"""The sandboxed jinja2 environment of chat templates, with limits on time and size.

A template comes with a model and is not trusted: it can reach no Python internals, change no
argument, loop only so often, and build only so much text. It also keeps the marks of
`helios.runtime.provenance` through joins, blocks and macros.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context

from helios.runtime.provenance import MarkedText
from helios.runtime.provenance import wrap as wrap_marked

MAX_ITERATIONS: Final = 1_000_000
MAX_TEXT_LENGTH: Final = 16_000_000
MAX_RENDER_SECONDS: Final = 5.0

MAX_TEMPLATE_LENGTH: Final = 1_000_000

_REMOVED_FILTERS: Final = (
    *("batch", "center", "indent", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr"),
)
_WIDE_PERCENT: Final = re.compile(r"%[^%a-zA-Z]*(\*|\d{4,})")
_WIDE_BRACES: Final = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{4,})")
_PADDING_METHODS: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateError(ValueError):
    """A chat template refused its messages, or broke a rule of the sandbox."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Budget:
    """What one rendering may still use."""

    iterations: int
    deadline_s: float
    now: datetime.datetime
    has_marks: bool

    def spend(self, iterations: int) -> None:
        self.iterations -= iterations
        if self.iterations < 0:
            raise TemplateError(f"more than {MAX_ITERATIONS} loop iterations")
        if time.monotonic() > self.deadline_s:
            raise TemplateError(f"took longer than {MAX_RENDER_SECONDS:g} seconds")


_BUDGET: contextvars.ContextVar[_Budget] = contextvars.ContextVar("template_budget")


@contextlib.contextmanager
def rendering(now: datetime.datetime, *, has_marks: bool) -> Iterator[None]:
    """Give the rendering inside a budget and a time of day, and say whether strings are marked."""
    budget = _Budget(
        iterations=MAX_ITERATIONS,
        deadline_s=time.monotonic() + MAX_RENDER_SECONDS,
        now=now,
        has_marks=has_marks,
    )
    token = _BUDGET.set(budget)
    try:
        yield
    finally:
        _BUDGET.reset(token)


def wrap(value: object) -> object:
    """Return marked plain strings as MarkedText; in a plain rendering nothing is marked."""
    budget = _BUDGET.get(None)
    return wrap_marked(value) if budget is not None and budget.has_marks else value


def _check_length(length: int) -> None:
    if length > MAX_TEXT_LENGTH:
        raise TemplateError(f"builds more than {MAX_TEXT_LENGTH} characters")


def _join(parts: Iterable[str]) -> str:
    """Join what a template emits, keeping marks and the length limit."""
    pieces = []
    length = 0
    for part in parts:
        length += len(part)
        _check_length(length)
        pieces.append(part)
    joined = wrap("".join(pieces))
    assert isinstance(joined, str)
    return joined


def _check_pattern(pattern: re.Pattern[str], text: str) -> None:
    if pattern.search(text):
        raise TemplateError("formats with a computed width or one of more than three digits")


def _check_method(owner: str, name: str, args: tuple[object, ...]) -> None:
    """Refuse a string method whose result would pass the length limit."""
    if name == "replace" and len(args) > 1 and isinstance(args[0], str):
        _check_length(len(owner) + owner.count(args[0]) * len(str(args[1])))
    if name == "join" and args and isinstance(args[0], list | tuple):
        _check_length(sum(len(owner) + len(str(item)) for item in args[0]))


def _check_operands(operator: str, left: object, right: object) -> None:
    """Refuse an operator whose result would pass the limits."""
    match operator, left, right:
        case "+", Sized(), Sized():
            _check_length(len(left) + len(right))
        case "*", Sized(), int():
            _check_length(len(left) * right)
        case "*", int(), Sized():
            _check_length(left * len(right))
        case "*", int(), int():
            _check_length(left.bit_length() + right.bit_length())
        case "**", int(), int():
            _check_length(left.bit_length() * abs(right) * 1000)
        case "%", str(), _:
            _check_pattern(_WIDE_PERCENT, left)


def _counted(items: Iterable[object]) -> Iterable[object]:
    """Charge the iterations of a loop to the budget."""
    budget = _BUDGET.get()
    if isinstance(items, Sized):
        budget.spend(len(items) + 1)
        return items
    return _count_each(items, budget)


def _count_each(items: Iterable[object], budget: _Budget) -> Iterator[object]:
    for item in items:
        budget.spend(1)
        yield item


class _MarkKeepingGenerator(CodeGenerator):
    """Compiles `a ~ b` to the environment's own join."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("concat((")
        for item in node.nodes:
            self.write("str(")
            self.visit(item, frame)
            self.write("), ")
        self.write("))")


class _GenerationBlock(jinja2.ext.Extension):
    """Accepts the block that marks assistant text for training; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 -- The base class declares it as an instance variable.

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the statements inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment; templates are compiled once and rendered inside `rendering`."""

    code_generator_class = _MarkKeepingGenerator
    concat = staticmethod(_join)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            cache_size=0,
        )
        del self.globals["lipsum"]
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        for name, function in list(self.filters.items()):
            self.filters[name] = _keep_marks(function)
        self.filters["tojson"] = _to_json
        self.filters["join"] = _join_filter
        self.filters["replace"] = _replace_filter
        self.filters["format"] = _format_filter
        self.filters["counted"] = _counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_template(self, source: str) -> jinja2.Template:
        """Compile a template whose loops are counted. Raises TemplateError or jinja2's."""
        if len(source) > MAX_TEMPLATE_LENGTH:
            raise TemplateError(f"the template is longer than {MAX_TEMPLATE_LENGTH} characters")
        tree = self.parse(source)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(
                loop.iter, "counted", [], [], None, None, lineno=loop.lineno
            )
        return self.from_string(tree)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look an attribute up; marked strings answer as plain ones."""
        return super().getattr(wrap(obj), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look an item up; slices of marked strings stay marked."""
        return super().getitem(wrap(obj), argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse what could build a huge string out of one number as well."""
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function; recursion is counted and string methods stay within the limit."""
        _BUDGET.get().spend(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, getattr(__obj, "__name__", ""), args)
        return wrap(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Refuse field widths that could build a huge string."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and getattr(value, "__name__", "") in ("format", "format_map"):
            _check_pattern(_WIDE_BRACES, owner)
        return super().wrap_str_format(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result stays within the limit."""
        _check_operands(operator, left, right)
        return wrap(super().call_binop(context, operator, left, right))


def _keep_marks(function: Callable[..., object]) -> Callable[..., object]:
    """Let a filter see marked strings as MarkedText, and return its marked results so."""

    @functools.wraps(function)
    def filtered(*args: object, **kwargs: object) -> object:
        return wrap(function(*(wrap(item) for item in args), **kwargs))

    return filtered


def _join_filter(value: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    pieces: list[str] = []
    for item in value:
        chosen = item if attribute is None else _attribute_of(item, attribute)
        pieces += [str(d), str(chosen)] if pieces else [str(chosen)]
    return _join(pieces)


def _attribute_of(item: object, attribute: str) -> object:
    if isinstance(item, Mapping) and attribute in item:
        return item[attribute]
    raise TemplateError(f"join: an item has no attribute {attribute!r}")


def _replace_filter(s: object, old: str, new: str, count: int | None = None) -> str:
    text = wrap(str(s))
    assert isinstance(text, str)
    _check_method(text, "replace", (old, new))
    return text.replace(old, new, -1 if count is None else count)


def _format_filter(pattern: str, *args: object, **kwargs: object) -> object:
    _check_pattern(_WIDE_PERCENT, pattern)
    return wrap(pattern % (kwargs or args))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> object:
    """Serialise as chat templates expect it: nothing is escaped for HTML."""
    if indent is not None and not 0 <= int(indent) <= 16:
        raise TemplateError("tojson: indent must be between 0 and 16")
    if not ensure_ascii:
        value = _escape_marked(value)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    _check_length(len(text))
    return wrap(text)


def _escape_marked(value: object) -> object:
    """Return JSON-like data whose marked strings are escaped already.

    Marked characters need no escaping themselves, so the serialiser copies them as they are.
    """
    if isinstance(value, str):
        marked = wrap(value)
        return str.__str__(marked.json()) if isinstance(marked, MarkedText) else value
    if isinstance(value, Mapping):
        return {_escape_marked(key): _escape_marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escape_marked(item) for item in value]
    return value


def _strftime_now(pattern: str) -> str:
    plain = pattern.plain if isinstance(pattern, MarkedText) else pattern
    _check_pattern(_WIDE_PERCENT, plain)
    return _BUDGET.get().now.strftime(plain)


def _raise_exception(message: object) -> NoReturn:
    plain = message.plain if isinstance(message, MarkedText) else message
    raise TemplateError(str(plain))
