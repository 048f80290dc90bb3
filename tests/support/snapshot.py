"""A value that two objects share exactly when their whole reachable state is the same.

Used for "a rejected call changes nothing": `freeze(scheduler)` before and after must be equal. It
walks slots, attributes, containers and arrays, and distinguishes 1 from 1.0 and -0.0 from 0.0.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

DIAGNOSTICS = frozenset({"decision", "memo", "_even"})
"""What `plan` remembers for `explain`, a memo of the state version, and one of the catalog alone;
all are derived."""


def freeze(root: object) -> Hashable:
    """Return a hashable picture of everything reachable from `root` but its diagnostics."""
    return _freeze(root, {})


def _freeze(value: Any, seen: dict[int, int]) -> Hashable:
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return (type(value).__name__, value)
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, (enum.Enum, type, types.FunctionType, types.BuiltinFunctionType)):
        return ("named", repr(value))
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    return (type(value).__name__, _inside(value, seen))


def _inside(value: Any, seen: dict[int, int]) -> Hashable:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return (str(value.dtype), value.tobytes())
    if isinstance(value, Mapping):
        # The order of a dict is state too: iteration over it may decide a tie.
        return tuple((_freeze(k, seen), _freeze(v, seen)) for k, v in value.items())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(repr(item) for item in value))
    if isinstance(value, (list, tuple, collections.deque)):
        if list(map(type, value)).count(int) == len(value):
            # Lists of thousands of pages are most of a state.
            return ("integers", *value)
        return tuple(_freeze(item, seen) for item in value)
    if isinstance(value, types.MethodType):
        return (value.__func__.__qualname__, _freeze(value.__self__, seen))
    fields = list(getattr(value, "__dict__", {}).items())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            fields += [(name, getattr(value, name))] if hasattr(value, name) else []
    if not fields and type(value).__module__ == "builtins":
        raise TypeError(f"cannot freeze a {type(value).__name__}")
    kept = [field for field in fields if field[0] not in DIAGNOSTICS]
    return tuple((name, _freeze(item, seen)) for name, item in kept)
