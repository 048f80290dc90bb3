"""Assertions of scenarios: comparisons of arithmetic over figures of runs.

`helios.goodput >= 1.1 * chunked.goodput` is a chain of comparisons between sums, products, numbers,
`min(...)`, `max(...)` and figures written `run.figure`. Nothing else is accepted, and nothing is
executed: the text is parsed once into a tree, and the tree is walked.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

Figures = Callable[[str, str], float]
"""(run, figure) -> value; raises LookupError with a message for a figure that there is not."""

_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[float, float], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., float]]] = {"min": min, "max": max}


class Assertion(NamedTuple):
    """A parsed assertion."""

    text: str
    tree: ast.Compare
    figures: tuple[tuple[str, str], ...]
    """Every (run, figure) that it reads."""


class Judgement(NamedTuple):
    """An assertion after the runs."""

    holds: bool
    detail: str
    """Each side that is not a plain number, with its value; or why there is no value."""


def assertion_of(text: str) -> Assertion:
    """Parse an assertion. Raises ValueError saying what is not understood."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an assertion: {error.msg}") from error
    if not isinstance(tree, ast.Compare):
        raise ValueError(f"{text!r} compares nothing; write run.figure < 100")
    for comparison in tree.ops:
        if type(comparison) not in _COMPARISONS:
            raise ValueError(f"{text!r}: compare with < <= > >= == or !=")
    figures = tuple(found for side in _sides(tree) for found in _figures_of(side))
    if not figures:
        raise ValueError(f"{text!r} reads no figure of a run")
    return Assertion(text, tree, figures)


def _sides(tree: ast.Compare) -> list[ast.expr]:
    return [tree.left, *tree.comparators]


def _figures_of(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the figures below a node. Raises ValueError for anything but arithmetic on them."""
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield from _figures_of(left)
            yield from _figures_of(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _figures_of(operand)
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as args, keywords=[]) if (
            name in _FUNCTIONS
        ):
            for argument in args:
                yield from _figures_of(argument)
        case ast.Attribute():
            yield _figure_of(node)
        case _:
            raise ValueError(
                f"{ast.unparse(node)!r} is neither a number, a figure as in run.figure, "
                "+ - * / nor min(...) or max(...)"
            )


def _figure_of(node: ast.Attribute) -> tuple[str, str]:
    names: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        raise ValueError(f"{ast.unparse(node)!r} does not begin with the name of a run")
    return inner.id, ".".join(reversed(names))


def judge(assertion: Assertion, figures: Figures) -> Judgement:
    """Compare the sides. A figure without a value, or a division by zero, makes it fail."""
    sides = _sides(assertion.tree)
    try:
        values = [_value(side, figures) for side in sides]
    except LookupError as error:
        return Judgement(False, str(error.args[0]))
    except ZeroDivisionError:
        return Judgement(False, "a division by zero")
    holds = all(
        _COMPARISONS[type(op)](low, high)
        for op, low, high in zip(assertion.tree.ops, values[:-1], values[1:], strict=True)
    )
    parts = [
        f"{ast.unparse(side)} = {value:.6g}"
        for side, value in zip(sides, values, strict=True)
        if not isinstance(side, ast.Constant)
    ]
    return Judgement(holds, ", ".join(parts))


def _value(node: ast.expr, figures: Figures) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, figures), _value(right, figures))
        case ast.UnaryOp(operand=operand):
            return -_value(operand, figures)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(argument, figures) for argument in args))
        case ast.Attribute():
            return figures(*_figure_of(node))
        case _:
            raise AssertionError(f"assertion_of accepted {ast.unparse(node)}")
