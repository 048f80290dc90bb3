"""Texts of options become values, or are refused with the option's name."""

import dataclasses
import math
import re
from typing import Any

import pytest
import typer

from flare.command_line import app
from flare.errors import FlareError
from flare.options import Preset, capacity_list, size_bytes
from flare.policy_options import PolicyOptions
from helios.scheduler import InvalidPolicyError, PolicyConfig


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("512MiB", 512 << 20),
        ("2G", 2 << 30),
        ("1.5 GiB", 3 << 29),
        ("10kb", 10 << 10),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "0", "0.2b", "1e9", "2 G B", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(FlareError, match="size"):
        size_bytes(text)


def test_capacity_lists() -> None:
    assert capacity_list("1,2, 4", "--request-buckets") == (1, 2, 4)


@pytest.mark.parametrize("text", ["", "1,,2", "a", "0,1", "2,1", "1,1", "1;2", "-1"])
def test_what_is_no_capacity_list_is_refused_by_option(text: str) -> None:
    with pytest.raises(FlareError, match="--request-buckets"):
        capacity_list(text, "--request-buckets")


def test_a_policy_is_a_preset_with_overrides() -> None:
    assert PolicyOptions(preset=Preset.BALANCED).config() == PolicyConfig.balanced()
    policy = PolicyOptions(
        preset=Preset.THROUGHPUT, decode_age_price=0.5, terminal_value=None
    ).config()
    assert policy == dataclasses.replace(PolicyConfig.throughput(), decode_age_price=0.5)
    assert (
        PolicyOptions(preset=Preset.BALANCED, estimate_ttl_ms=1.5).config().estimate_ttl_ns
        == 1_500_000
    )
    by_score = PolicyOptions(preset=Preset.BALANCED, alone_service_share=0.0).config()
    assert by_score == dataclasses.replace(PolicyConfig.balanced(), alone_service_share=0.0)


def test_an_impossible_policy_is_refused_by_field() -> None:
    with pytest.raises(InvalidPolicyError, match="adaptation_ms"):
        PolicyOptions(preset=Preset.BALANCED, adaptation_ms=0.0).config()


def test_a_freshness_that_no_clock_counts_is_refused() -> None:
    """Neither NaN nor infinity, nor less than a nanosecond."""
    said = re.escape("policy.estimate_ttl_ms must be from 0.000001 to 4.6e+12, not ")
    for ttl_ms in (float("nan"), float("inf"), 0.0, 9e-7, -1.0, 4.7e12):
        with pytest.raises(InvalidPolicyError, match=said):
            PolicyOptions(estimate_ttl_ms=ttl_ms).config()


POLICY_FIELDS = [field.name for field in dataclasses.fields(PolicyOptions)][1:]
RANGES = {
    "0 or more": lambda value: value >= 0,
    "above 0": lambda value: value > 0,
    "0 to 1": lambda value: 0 <= value <= 1,
    "0.000001 to 4.6e+12": lambda value: 0.000001 <= value <= 4.6e12,
}
VALUES = [0.0, 5e-324, 9.9e-7, 0.000001, 0.5, 1.0, math.nextafter(1.0, 2.0), 2.0, 4.6e12, 1e300]
VALUES += [-5e-324, -1.0, math.inf, -math.inf]


def is_taken(name: str, value: float) -> bool:
    try:
        PolicyOptions(**{name: value}).config()  # type: ignore[arg-type]
    except InvalidPolicyError:
        return False
    return True


@pytest.mark.parametrize("name", POLICY_FIELDS)
def test_help_states_the_range_and_the_default_that_hold(name: str) -> None:
    """What `flare run --help` says of a float of the policy is what validation accepts."""
    (option,) = [each for each in run_options() if each.name == name]
    said = re.search(r"\(([^();]*); ([^();]*)\)\.$", option.help or "")
    assert said, option.help
    is_legal = RANGES[said[1]]
    for value in VALUES:
        assert is_taken(name, value) == (is_legal(value) and math.isfinite(value)), value
    assert not is_taken(name, math.nan)
    field, unit = ("estimate_ttl_ns", 1e6) if name == "estimate_ttl_ms" else (name, 1.0)
    policies = {preset: PolicyOptions(preset=preset).config() for preset in Preset}
    presets = {preset: getattr(policy, field) / unit for preset, policy in policies.items()}
    words = [f"{preset.value} {value:g}" for preset, value in presets.items()]
    same = len({*presets.values()}) == 1
    assert said[2] == (f"default {presets[Preset.BALANCED]:g}" if same else ", ".join(words))


def run_options() -> list[Any]:
    """The options of `flare run` as its help has them."""
    return typer.main.get_command(app).commands["run"].params  # type: ignore[attr-defined]


def test_every_field_of_the_policy_has_an_option() -> None:
    """A new field without one is noticed."""
    fields = {field.name for field in dataclasses.fields(PolicyConfig)}
    assert fields == {name.replace("ttl_ms", "ttl_ns") for name in POLICY_FIELDS}
