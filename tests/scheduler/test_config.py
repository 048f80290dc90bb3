"""Validation of every field: each bad value is a typed error that names the field."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from helios.scheduler import (
    GraphDescriptor,
    GraphKind,
    InvalidCatalogError,
    InvalidPolicyError,
    InvalidRequestError,
    PolicyConfig,
    RequestSpec,
    ResourceConfig,
)
from helios.scheduler.catalog import ProposalSource, RowAllocation
from helios.scheduler.config import DecodeMode, SpeculationConfig
from helios.scheduler.records import Endpoint

NO_INTEGER: list[object] = [-1, True, 1.0, math.nan, math.inf, "1", None, (1,), 2**63]
NO_NUMBER: list[object] = [-1.0, -1, True, math.nan, math.inf, -math.inf, "1", None, 10**400]
NO_BOOL: list[object] = [0, 1, None, "yes", 1.0]
NO_ENUM: list[object] = [0, 1, None, "adaptive", True, 1.5]

POLICY_INTEGERS = ("estimate_ttl_ns",)
POLICY_POSITIVE = (
    "adaptation_ms",
    "estimate_ttl_ns",
    "arrival_shares",
    "adaptive_verification_alpha",
)


SHARES = ("alone_service_share", "checkpoint_extra_work_fraction")
"""Those that are at most one."""


def names_of(record: type) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


# ---- policy -------------------------------------------------------------------------------


def bad_policy_values() -> list[tuple[str, object]]:
    cases: list[tuple[str, object]] = []
    for name in names_of(PolicyConfig):
        bad = NO_INTEGER if name in POLICY_INTEGERS else NO_NUMBER
        cases += [(name, value) for value in bad]
        cases += [(name, 0)] * (name in POLICY_POSITIVE)
        cases += [(name, value) for value in (1.5, 1.0000000000000002, 2)] * (name in SHARES)
    return cases


@pytest.mark.parametrize(("name", "value"), bad_policy_values())
def test_every_policy_field_is_checked(name: str, value: object) -> None:
    """Finite, of its type and in its range; the error names the field."""
    with pytest.raises(InvalidPolicyError, match=rf"policy\.{name} must be"):
        PolicyConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", names_of(PolicyConfig))
def test_every_policy_field_takes_its_extremes(name: str) -> None:
    """Zero where a preference may be disabled, and the ends of the range of floats."""
    values: list[Any] = [1, 2**62] if name in POLICY_INTEGERS else [1, 5e-324, 1.7e308]
    if name in SHARES:
        values.remove(1.7e308)
    if name not in POLICY_POSITIVE:
        values += [0, 0.0]
    for value in values:
        assert getattr(PolicyConfig(**{name: value}), name) == value


def test_the_two_newer_policy_fields_have_their_defaults() -> None:
    """The exponent leaves estimates as they are; the allowance is a twentieth of the prefill."""
    assert PolicyConfig().adaptive_verification_alpha == 1.0
    assert PolicyConfig().checkpoint_extra_work_fraction == 0.05


def test_presets_differ_from_the_table_in_their_named_fields_only() -> None:
    """Both keep terminal value and urgency; throughput has neither delivery nor age price."""
    table, balanced, throughput = PolicyConfig(), PolicyConfig.balanced(), PolicyConfig.throughput()

    def changed(preset: PolicyConfig) -> dict[str, float]:
        pairs = {name: getattr(preset, name) for name in names_of(PolicyConfig)}
        return {name: value for name, value in pairs.items() if value != getattr(table, name)}

    assert changed(balanced) == {
        "prefill_balance": 6.0,
        "arrival_shares": 1.0,
        "decode_age_price": 2.0,
        "alone_service_share": 0.99,
        "population_weight": 8.0,
    }
    assert changed(throughput) == {"delivery_fairness": 0.0, "decode_age_price": 0.0}
    for preset in (balanced, throughput):
        assert (preset.terminal_value, preset.terminal_age_price) == (256.0, 1.0)


# ---- speculation --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", NO_ENUM)
def test_the_decode_mode_is_checked(mode: object) -> None:
    """Only a DecodeMode is one."""
    with pytest.raises(InvalidPolicyError, match=r"speculation\.mode must be"):
        SpeculationConfig(mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", NO_INTEGER)
def test_the_fixed_width_is_checked(width: object) -> None:
    """A nonnegative integer."""
    with pytest.raises(InvalidPolicyError, match=r"speculation\.fixed_width must be"):
        SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=width)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "width"), [(DecodeMode.FIXED, 0), (DecodeMode.ADAPTIVE, 2), (DecodeMode.ORDINARY, 1)]
)
def test_a_width_and_the_fixed_mode_go_together(mode: DecodeMode, width: int) -> None:
    """An inconsistent pair is refused, and the error says which field and why."""
    with pytest.raises(InvalidPolicyError, match=r"speculation\.fixed_width .* mode fixed"):
        SpeculationConfig(mode=mode, fixed_width=width)


# ---- resources ----------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "row_count": 4,
    "page_count": 8,
    "page_size_tokens": 16,
    "context_length_tokens": 64,
}
SWITCHES = ("page_growth", "page_prefixes")
MAY_BE_ZERO = ("snapshot_rows", "draft_extent_tokens", "feature_rows")


def bad_resource_values() -> list[tuple[str, object]]:
    cases: list[tuple[str, object]] = []
    for name in names_of(ResourceConfig):
        cases += [(name, value) for value in (NO_BOOL if name in SWITCHES else NO_INTEGER)]
        if name not in (*SWITCHES, *MAY_BE_ZERO):
            cases.append((name, 0))
    return [*cases, ("row_count", 65)]


@pytest.mark.parametrize(("name", "value"), bad_resource_values())
def test_every_resource_field_is_checked(name: str, value: object) -> None:
    """Sizes are integers in range, switches are bools; the error names the field."""
    with pytest.raises(InvalidPolicyError, match=rf"resources\.{name} must be"):
        ResourceConfig(**{**SIZES, name: value})


def test_resource_fields_take_their_extremes() -> None:
    """Zero where nothing of it may exist, and 64 rows."""
    ResourceConfig(**{**SIZES, "row_count": 64, **dict.fromkeys(MAY_BE_ZERO, 0)})
    ResourceConfig(**{**SIZES, **dict.fromkeys(SWITCHES, True)})


# ---- requests -----------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"prompt_tokens": 100, "max_output_tokens": 10}


def bad_request_values() -> list[tuple[str, object]]:
    cases = [(name, value) for name in PLAIN for value in [*NO_INTEGER, 0]]
    limits = ("width_limit", "learned_width_limit")
    cases += [(name, value) for name in limits for value in NO_INTEGER]
    cases += [("weight", value) for value in [*NO_NUMBER, 0, 0.0]]
    cases += [(name, value) for name in ("scored", "needs_feedback") for value in NO_BOOL]
    cases += [("tenant", value) for value in (None, 3, b"a", True, ("a",))]
    no_records: list[object] = [None, [], "ab", 3, ((1, 2),)]
    cases += [(name, value) for name in ("images", "endpoints") for value in no_records]
    cases += [("boundaries", value) for value in (None, [], 3, "ab")]
    cases += [("boundaries", (value,)) for value in [*NO_INTEGER, 0]]
    return cases


@pytest.mark.parametrize(("name", "value"), bad_request_values())
def test_every_request_field_is_checked(name: str, value: object) -> None:
    """Of its type and in its range; the error names the field."""
    with pytest.raises(InvalidRequestError, match=rf"^{name}(\[0\])? must be"):
        RequestSpec(**{**PLAIN, name: value})


def test_every_request_field_has_a_case() -> None:
    """A new field without a bad value in this file is noticed."""
    assert {name for name, _ in bad_request_values()} == set(names_of(RequestSpec))


@pytest.mark.parametrize(
    ("endpoints", "what"),
    [
        ((Endpoint(0, b"k"),), r"endpoints\[0\]\.tokens must be"),
        ((Endpoint(True, b"k"),), r"endpoints\[0\]\.tokens must be"),
        ((Endpoint(101, b"k"),), r"endpoints\[0\]\.tokens is 101, the prompt has 100"),
        ((Endpoint(5, b"k"), Endpoint(5, b"l")), r"endpoints\[1\]\.tokens must be"),
        ((Endpoint(5, b"k"), Endpoint(4, b"l")), r"endpoints\[1\]\.tokens must be"),
        ((Endpoint(5, "k"),), r"endpoints\[0\]\.key must be bytes"),  # type: ignore[arg-type]
        ((Endpoint(5, b""),), r"endpoints\[0\]\.key must not be empty"),
        ((Endpoint(5, b"k", 1),), r"endpoints\[0\]\.ends_message"),  # type: ignore[arg-type]
    ],
)
def test_endpoints_rise_inside_the_prompt_and_have_an_identity(
    endpoints: tuple[Endpoint, ...], what: str
) -> None:
    """An endpoint that no state could have is refused."""
    with pytest.raises(InvalidRequestError, match=what):
        RequestSpec(**PLAIN, endpoints=endpoints)


def test_a_prompt_may_be_scored_without_output() -> None:
    """Zero outputs are legal there and nowhere else."""
    RequestSpec(prompt_tokens=1, max_output_tokens=0, scored=True)
    with pytest.raises(InvalidRequestError, match=r"max_output_tokens must be .* at least 0"):
        RequestSpec(prompt_tokens=1, max_output_tokens=-1, scored=True)


# ---- graphs -------------------------------------------------------------------------------

ROUND: dict[str, Any] = {
    "kind": GraphKind.SPECULATIVE,
    "batch_capacity": 4,
    "token_capacity": 4,
    "proposal_depth": 3,
    "allocation": RowAllocation.HOST,
    "source": ProposalSource.LEARNED,
    "speculation_enabled": True,
}


def bad_graph_values() -> list[tuple[str, object]]:
    kinds = {"kind": NO_ENUM, "allocation": NO_ENUM, "source": NO_ENUM}
    cases = [(name, value) for name, bad in kinds.items() for value in bad]
    for name in ("speculation_enabled", "reports_survival"):
        cases += [(name, value) for value in NO_BOOL]
    for name in ("batch_capacity", "token_capacity"):
        cases += [(name, value) for value in [*NO_INTEGER, 0]]
    for name in (
        "proposal_depth",
        "packed_capacity",
        "prefill_capacity",
        "confidence_width",
        "estimated_duration_ns",
    ):
        cases += [(name, value) for value in NO_INTEGER]
    cases += [("context_intervals", value) for value in (None, [1], "1", 1, (0,), (True,), (1.0,))]
    return cases


@pytest.mark.parametrize(("name", "value"), bad_graph_values())
def test_every_graph_field_is_checked(name: str, value: object) -> None:
    """Of its type and in its range by itself; the error names the field."""
    with pytest.raises(InvalidCatalogError, match=rf"graph\.{name}(\[0\])? must be"):
        GraphDescriptor(**{**ROUND, name: value})


def test_every_graph_field_has_a_case() -> None:
    """A new field without a bad value in this file is noticed."""
    assert {name for name, _ in bad_graph_values()} == set(names_of(GraphDescriptor))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"batch_capacity": 65}, "batch_capacity must be 1 to 64"),
        ({"token_capacity": 5}, "W is at most"),
        ({"token_capacity": 1}, "D = 0 and W = 1"),
        ({"proposal_depth": 0}, "D = 0 and W = 1"),
        ({"packed_capacity": 3}, "packed_capacity must be"),
        ({"packed_capacity": 17}, "packed_capacity must be"),
        ({"prefill_capacity": 64}, "no mixed prompt"),
        ({"allocation": RowAllocation.NONE}, "allocation is NONE"),
        ({"allocation": RowAllocation.DEVICE}, "device allocation needs confidence_width"),
        ({"source": ProposalSource.NONE}, "source is NONE"),
        ({"speculation_enabled": False}, "draft state"),
        ({"confidence_width": 2}, "confidence_width must be 0 or D"),
        ({"context_intervals": (8, 8)}, "context_intervals must ascend"),
        ({"kind": GraphKind.DECODE}, "token_capacity must be 1"),
        ({"kind": GraphKind.MIXED}, "prefill_capacity must be a positive multiple"),
        ({"kind": GraphKind.PREFILL}, "one request row"),
    ],
)
def test_inconsistent_graphs_are_refused(changes: dict[str, Any], what: str) -> None:
    """Fields that are fine alone and impossible together; the error says which rule."""
    with pytest.raises(InvalidCatalogError, match=what):
        GraphDescriptor(**{**ROUND, **changes})
