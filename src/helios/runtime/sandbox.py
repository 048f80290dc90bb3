"""The sandboxed jinja2 environment of chat templates.

A template comes with a model and is not trusted: it can reach no Python internals, change no
argument, and use only what `helios.runtime.template_limits` allows. The environment also keeps
the marks of `helios.runtime.provenance` through joins, blocks and macros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context

from helios.runtime.template_filters import (
    bounded,
    counted,
    format_filter,
    join,
    join_filter,
    keeping_marks,
    raise_exception,
    replace_filter,
    seen,
    strftime_now,
    to_json,
    wrap,
)
from helios.runtime.template_limits import (
    TemplateError,
    active_budget,
    check_format,
    check_method,
    check_operands,
)

MAX_TEMPLATE_LENGTH: Final = 1_000_000
ITERATIONS_PER_CALL: Final = 10
"""A call costs about as much as that many turns of an empty loop."""

_REMOVED_FILTERS: Final = (
    *("batch", "center", "indent", "pprint", "random", "slice", "urlize", "wordwrap", "xmlattr"),
)
_PADDING_METHODS: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class _MarkKeepingGenerator(CodeGenerator):
    """Compiles `a ~ b` to the environment's own join."""

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("concat((")
        for item in node.nodes:
            self.write("str(environment.finalize(")
            self.visit(item, frame)
            self.write(")), ")
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
    concat = staticmethod(join)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            cache_size=0,
            finalize=bounded,
        )
        del self.globals["lipsum"]
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        for name, function in list(self.filters.items()):
            self.filters[name] = keeping_marks(function)
        self.filters |= {
            "tojson": to_json,
            "join": join_filter,
            "replace": replace_filter,
            "format": format_filter,
            "counted": counted,
        }
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}

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
        return super().getattr(seen(obj), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look an item up; slices of marked strings stay marked."""
        value = super().getitem(seen(obj), argument)
        return wrap(value) if isinstance(argument, slice) else value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse what could build a huge string out of one number as well."""
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a function; recursion is counted and string methods stay within the limit."""
        active_budget().spend_iterations(ITERATIONS_PER_CALL)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            check_method(owner, getattr(__obj, "__name__", ""), args)
        return wrap(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Bound `str.format`: field widths, and how often how much is inserted."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None
        pattern = str(value.__self__)

        def bounded_format(*args: object, **kwargs: object) -> str:
            check_format(pattern, *args, *kwargs.values())
            return formatted(*args, **kwargs)

        return bounded_format

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result stays within the limit."""
        check_operands(operator, left, right)
        return wrap(super().call_binop(context, operator, left, right))
