"""Commands that take groups of options as dataclasses, so that every group is written down once."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import get_type_hints

Command = Callable[..., None]


def spread(command: Command) -> Command:
    """Return the command with every field of its dataclass parameters as an option of its own.

    The command line sees the fields, with their annotations and defaults, where the parameter
    stood; the command gets the dataclass.
    """
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _fields(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @functools.wraps(command)
    def with_groups(**given: object) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            given[name] = group(**{field: given.pop(field) for field in fields})
        command(**given)

    vars(with_groups)["__signature__"] = inspect.Signature(parameters)
    with_groups.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_groups


def _fields(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
