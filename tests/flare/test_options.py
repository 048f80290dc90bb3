"""Texts of options become values, or are refused with the option's name."""

import dataclasses

import pytest

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
