"""The types of what a completion brings, before any of it is compared with anything.

A float or a bool in place of an integer would be counted on and handed out from here on, and what
stands in place of a number may raise anything when it is compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import is_
from typing import NamedTuple

from helios.scheduler.checks import shown
from helios.scheduler.records import CompletionRecord, RequestHandle

_FIELD_COUNT = len(CompletionRecord._fields)


def is_a(kind: type, value: object) -> bool:
    """Tell whether a value is of exactly this type."""
    return type(value) is kind


def are_all(kind: type, values: Sequence[object]) -> bool:
    """Tell whether every value is of exactly this type."""
    return list(map(type, values)).count(kind) == len(values)


def is_handle(value: object) -> bool:
    """Tell whether a value can be compared with a handle: a tuple of integers, named or plain."""
    return (type(value) is RequestHandle or type(value) is tuple) and are_all(int, value)


def is_like(good: object, value: object) -> bool:
    """Tell whether a value has the type of a good one; of a tuple, one of integers."""
    return type(value) is type(good) and (not isinstance(value, tuple) or are_all(int, value))


def is_record(value: object) -> bool:
    """Tell whether a value is a record with all of its fields."""
    return type(value) is CompletionRecord and len(value) == _FIELD_COUNT


class Columns(NamedTuple):
    """The fields of all records, each of its own type."""

    handles: Sequence[RequestHandle]
    prompts: Sequence[int]
    bursts: Sequence[tuple[int, ...]]
    ends: Sequence[bool]
    told: Sequence[int]
    tokens: list[int]
    """Those of all bursts, one lane after the other."""


def columns_of(
    records: Sequence[CompletionRecord], committed: Sequence[RequestHandle]
) -> Columns | None:
    """Return the fields of records that are all what they have to be; None where a lane's is not.

    A column is checked in a fraction of the time that its values take one by one. `committed` are
    the handles of the plan's lanes, which the records nearly always bring back as they are.
    """
    if not records or not are_all(CompletionRecord, records):
        return None
    try:
        handles, prompts, bursts, ends, told = zip(*records, strict=True)
    except ValueError:
        # Somebody made a record of fewer fields or of more.
        return None
    if not all(map(is_, handles, committed)) and not all(map(is_handle, handles)):
        return None
    if not (are_all(tuple, bursts) and are_all(bool, ends) and are_all(int, prompts + told)):
        return None
    tokens = _in_a_row(bursts)
    if not are_all(int, tokens) or not _are_unsigned(tokens):
        return None
    return Columns(handles, prompts, bursts, ends, told, tokens)


def _in_a_row(bursts: Sequence[tuple[int, ...]]) -> list[int]:
    try:
        # Nearly always one of each lane, which takes half the time.
        return [token for (token,) in bursts]
    except ValueError:
        return [token for burst in bursts for token in burst]


def _are_unsigned(tokens: Sequence[int]) -> bool:
    """Tell whether an unsigned integer of 64 bits holds each of them."""
    try:
        # An array takes them in faster than they are compared with zero.
        array("Q", tokens)
    except OverflowError:
        return False
    return True


def fault_of_types(record: CompletionRecord) -> str | None:
    """Say which field of a record is none; None where each has its own type.

    Handles and counts are left to those who compare them.
    """
    if not is_record(record):
        return f"{shown(record)} is not what a lane did"
    if not is_a(bool, record.terminated):
        return f"terminated must be a bool, not {shown(record.terminated)}"
    if not is_a(tuple, record.tokens):
        return f"tokens must be a tuple of integers, not {shown(record.tokens)}"
    for index, token in enumerate(record.tokens):
        if not is_a(int, token) or not _are_unsigned((token,)):
            return f"tokens[{index}] must be an integer from 0 to 2**64 - 1, not {shown(token)}"
    return None
