"""Workloads by name, with options, as command lines and scenarios ask for them.

`workload("poisson", rate_per_s=4, duration_s=60, seed=1)`; a trace is named with its path:
`workload("azure-conv:traces/conv.csv", rate=1.5, start_s=600, length_s=300)`. Option values may be
text, as a command line has them. Every option has a default that `workload_options` shows.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scheduling_sim.workload import scale
from scheduling_sim.workload.assembly import check_requests
from scheduling_sim.workload.azure import read_azure
from scheduling_sim.workload.errors import WorkloadError
from scheduling_sim.workload.lengths import out_of_context, output_limit
from scheduling_sim.workload.mooncake import read_mooncake
from scheduling_sim.workload.records import Workload
from scheduling_sim.workload.synthetic import SYNTHETIC
from scheduling_sim.workload.trace_lines import ReadOptions

Option = str | int | float | bool | None


def _read_trace(
    name: str,
    path: str,
    *,
    seed: int = 0,
    rate: float = 1.0,
    rate_per_s: float | None = None,
    start_s: float = 0.0,
    length_s: float = float("inf"),
    head: int | None = None,
    share: float = 1.0,
    length_scale: float = 1.0,
    limit: str = "exact",
    context_tokens: int | None = None,
    out_of_context_rule: str = "keep",
    max_gap_s: float = 3600.0,
    tenants: str = "",
) -> Workload:
    """Read a trace and turn its knobs: window first, then lengths, numbers, tenants and the rate.

    `rate` multiplies the recorded rate, `rate_per_s` sets it; `tenants` is `name=share,name=share`.
    """
    options = ReadOptions(
        context_tokens=context_tokens,
        out_of_context=out_of_context(out_of_context_rule),
        limit=output_limit(limit),
        max_gap_s=max_gap_s,
    )
    found = _READERS[name](Path(path), name=name, options=options)
    if start_s > 0.0 or length_s != float("inf"):
        found = scale.window(found, start_s=start_s, length_s=length_s)
    if length_scale != 1.0:
        found = scale.longer(found, length_scale)
    if share != 1.0:
        found = scale.sample(found, share, seed=seed)
    if head is not None:
        found = scale.head(found, head)
    if tenants:
        found = scale.assigned(found, _shares(tenants), seed=seed)
    if rate_per_s is not None:
        found = scale.at_rate(found, rate_per_s)
    return scale.faster(found, rate) if rate != 1.0 else found


def _shares(text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise WorkloadError(f"tenants is {text!r}; name=share,name=share is right") from None
    return shares


_READERS: Final[dict[str, Callable[..., Workload]]] = {
    "azure-conv": read_azure,
    "mooncake-conv": read_mooncake,
}


def workload_names() -> dict[str, str]:
    """Return every name with one line about it; those of traces end by `:<path>`."""
    names = (*SYNTHETIC, *(f"{name}:<path>" for name in _READERS))
    return {name: workload_summary(name) for name in names}


def workload_summary(name: str) -> str:
    """Return one line about a name."""
    builder, _ = _builder(name)
    return (inspect.getdoc(builder) or "").partition("\n")[0]


def workload_options(name: str) -> dict[str, Option]:
    """Return the options of a name with their defaults."""
    builder, _ = _builder(name)
    return {
        option: parameter.default
        for option, parameter in inspect.signature(builder).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def workload(name: str, **options: Option) -> Workload:
    """Return the workload of a name. Raises WorkloadError for what it does not know."""
    builder, arguments = _builder(name)
    if name in _READERS or name.endswith(":"):
        raise WorkloadError(f"workload {name!r} reads a trace; {name.rstrip(':')}:<path> is right")
    given = _converted(name, builder, options)
    return check_requests(builder(*arguments, **given))


def _builder(name: str) -> tuple[Callable[..., Workload], tuple[str, ...]]:
    """Return what builds a name, and its positional arguments."""
    if name in SYNTHETIC:
        return SYNTHETIC[name], ()
    kind, _, path = name.partition(":")
    if kind in _READERS:
        return _read_trace, (kind, path)
    known = ", ".join((*SYNTHETIC, *(f"{kind}:<path>" for kind in _READERS)))
    raise WorkloadError(f"no workload is named {name!r}; the names are {known}")


def _converted(
    name: str, builder: Callable[..., Workload], options: Mapping[str, Option]
) -> dict[str, Option]:
    """Return the options with text turned into what each option is."""
    known = workload_options(name)
    hints = typing.get_type_hints(builder)
    converted: dict[str, Option] = {}
    for option, value in options.items():
        if option not in known:
            raise WorkloadError(
                f"workload {name!r} has no option {option!r}; it has {', '.join(known)}"
            )
        converted[option] = _as_type(f"{name}: {option}", value, hints[option])
    return converted


def _as_type(what: str, value: Option, hint: object) -> Option:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None or (value == "" and types.NoneType in kinds):
        if types.NoneType in kinds:
            return None
        raise WorkloadError(f"{what} needs a value")
    kind = kinds[0]
    try:
        if kind is int and not isinstance(value, bool):
            number = int(value) if isinstance(value, str) else value
            if number == int(number):
                return int(number)
        elif kind is float and not isinstance(value, bool):
            return float(value)
        elif kind is str:
            return str(value)
    except (ValueError, OverflowError):
        pass
    expected = {int: "a whole number", float: "a number", str: "text"}[typing.cast("type", kind)]
    raise WorkloadError(f"{what} is {value!r}; {expected} is right")
