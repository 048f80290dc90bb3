"""docs/design/programs.md section 3: the reference sampler, and the device sampler against it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ignition.sampling import RowSampling, adjust, draw, log_probabilities, sample, uniform
from ignition.sampling_torch import (
    SamplingRows,
    adjust_rows,
    order_keys,
    sample_rows,
    token_of_key,
    uniform_rows,
)

V = 41


def row(vocabulary: int = V, **fields: object) -> RowSampling:
    plain = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "output_count": 0,
        "bias_ids": np.zeros(0, np.int32),
        "bias_values": np.zeros(0, np.float32),
        "output_counts": np.zeros(vocabulary, np.uint16),
        "prompt_seen": np.zeros(vocabulary, np.uint8),
    }
    return RowSampling(**(plain | fields))  # type: ignore[arg-type]


def random_logits(seed: int, scale: float = 3.0, vocabulary: int = V) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocabulary) * scale).astype(np.float32)


def slow_draw(scaled: np.ndarray, params: RowSampling, u: float) -> int:
    """3.3 and 3.4, word for word, with Python numbers."""
    ids = sorted(range(len(scaled)), key=lambda i: (-float(scaled[i]), i))
    if params.top_k > 0:
        ids = ids[: params.top_k]
    peak = max(float(x) for x in scaled)
    weight = {i: math.exp(float(scaled[i]) - peak) for i in ids}
    mass = sum(weight.values())
    if params.top_p < 1:
        kept, total = [], 0.0
        for i in ids:
            if kept and total >= params.top_p * mass:
                break
            kept.append(i)
            total += weight[i]
        ids = kept
    if params.min_p > 0:
        ids = [i for i in ids if weight[i] >= params.min_p * weight[ids[0]]]
    if not (params.top_k or params.top_p < 1 or params.min_p > 0):
        ids = sorted(ids)
    total = sum(weight[i] for i in ids)
    running = 0.0
    for i in ids:
        running += weight[i]
        if running > u * total:
            return i
    return ids[-1]


def test_the_counter_generator_has_known_values() -> None:
    """splitmix64 seeded with zero, first outputs as published with the generator."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for count, word in enumerate(expected):
        assert uniform(0, count) == (word >> 11) / 2**53


@given(seed=st.integers(0, 2**64 - 1), count=st.integers(0, 2**31 - 1))
def test_device_draws_equal_the_reference_bit_for_bit(seed: int, count: int) -> None:
    signed = np.array([seed], np.uint64).view(np.int64)
    device = uniform_rows(torch.from_numpy(signed), torch.tensor([count]))
    assert float(device[0]) == uniform(seed, count)
    assert 0 <= uniform(seed, count) < 1


def test_3_2_temperature_zero_takes_the_largest_and_the_lowest_id_on_a_tie() -> None:
    logits = np.zeros(V, np.float32)
    logits[[7, 20, 33]] = 4.0
    assert sample(logits, row(temperature=0.0, seed=99)) == 7
    assert sample(np.zeros(V, np.float32), row(temperature=0.0)) == 0


def test_3_1_order_of_adjustments() -> None:
    """Bias first, then the repetition penalty, then the count penalties."""
    counts = np.zeros(V, np.uint16)
    counts[[2, 3]] = [1, 4]
    seen = np.zeros(V, np.uint8)
    seen[[3, 5, 6]] = 1
    logits = np.zeros(V, np.float32)
    logits[[2, 3, 5, 6]] = [1.0, -2.0, -3.0, 4.0]
    params = row(
        bias_ids=np.array([2, 5], np.int32),
        bias_values=np.array([2.0, 8.0], np.float32),
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        output_counts=counts,
        prompt_seen=seen,
    )
    adjusted = adjust(logits, params)
    assert adjusted[2] == (1 + 2) / 2 - (0.5 * 1 + 0.25)
    assert adjusted[3] == -2 * 2 - (0.5 * 4 + 0.25)
    assert adjusted[5] == (-3 + 8) / 2
    assert adjusted[6] == 4 / 2
    assert adjusted[0] == 0


@given(seed=st.integers(0, 10_000), k=st.integers(1, V), u=st.floats(0, 1, exclude_max=True))
def test_top_k_keeps_the_k_largest(seed: int, k: int, u: float) -> None:
    logits = random_logits(seed)
    token = draw(logits, row(top_k=k), u)
    assert (logits > logits[token]).sum() < k
    if k == 1:
        assert token == int(logits.argmax())


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.0, 0.01, 1.0, 5.0, 60.0]),
    top_k=st.integers(0, V + 3),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 1e-4, 0.05, 0.5, 1.0]),
    temperature=st.sampled_from([0.0, 0.2, 1.0, 3.0]),
    quantised=st.booleans(),
    penalties=st.booleans(),
    draws=st.integers(0, 5),
)
def test_reference_slow_twin_and_device_agree(
    seed: int,
    scale: float,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    quantised: bool,
    penalties: bool,
    draws: int,
) -> None:
    logits = random_logits(seed, scale)
    if quantised:
        logits = np.round(logits)
    generator = np.random.default_rng(seed + 1)
    extra: dict[str, object] = {}
    if penalties:
        extra = {
            "repetition_penalty": 1.3,
            "frequency_penalty": -0.4,
            "presence_penalty": 0.9,
            "bias_ids": np.array([3, 8], np.int32),
            "bias_values": np.array([1.5, -100.0], np.float32),
            "output_counts": generator.integers(0, 3, V).astype(np.uint16),
            "prompt_seen": generator.integers(0, 2, V).astype(np.uint8),
        }
    params = row(
        temperature=float(np.float32(temperature)),
        top_k=top_k,
        top_p=float(np.float32(top_p)),
        min_p=float(np.float32(min_p)),
        seed=seed * 7919,
        output_count=draws,
        **extra,
    )
    expected = sample(logits, params)
    if temperature > 0:
        scaled = adjust(logits, params) / np.float32(temperature)
        assert expected == slow_draw(scaled, params, uniform(params.seed, draws))
    device = sample_rows(torch.from_numpy(logits)[None], device_rows([params]))
    assert int(device[0]) == expected


def device_rows(rows: list[RowSampling]) -> SamplingRows:
    def floats(name: str) -> torch.Tensor:
        return torch.tensor([getattr(r, name) for r in rows], dtype=torch.float32)

    def integers(name: str) -> torch.Tensor:
        values = [getattr(r, name) for r in rows]
        return torch.from_numpy(np.array(values, np.uint64).view(np.int64))

    entries = 8
    ids = torch.zeros((len(rows), entries), dtype=torch.int64)
    values = torch.full((len(rows), entries), 77.0)
    for index, r in enumerate(rows):
        ids[index, : len(r.bias_ids)] = torch.from_numpy(r.bias_ids.astype(np.int64))
        values[index, : len(r.bias_ids)] = torch.from_numpy(r.bias_values)
    return SamplingRows(
        temperature=floats("temperature"),
        top_p=floats("top_p"),
        min_p=floats("min_p"),
        presence_penalty=floats("presence_penalty"),
        frequency_penalty=floats("frequency_penalty"),
        repetition_penalty=floats("repetition_penalty"),
        top_k=integers("top_k"),
        seed=integers("seed"),
        output_count=integers("output_count"),
        bias_count=torch.tensor([len(r.bias_ids) for r in rows]),
        bias_ids=ids,
        bias_values=values,
        output_counts=torch.from_numpy(
            np.stack([r.output_counts for r in rows]).view(np.int16).copy()
        ),
        prompt_seen=torch.from_numpy(np.stack([r.prompt_seen for r in rows])),
    )


def test_device_rows_with_different_parameters_do_not_mix() -> None:
    logits = np.stack([random_logits(seed) for seed in range(6)])
    rows = [
        row(temperature=0.0),
        row(temperature=0.5, seed=3),
        row(top_k=3, seed=2**63 + 5),
        row(top_p=0.4, seed=8, output_count=12),
        row(min_p=0.2, seed=9),
        row(bias_ids=np.array([1], np.int32), bias_values=np.array([50.0], np.float32)),
    ]
    together = sample_rows(torch.from_numpy(logits), device_rows(rows))
    assert together.tolist() == [sample(logits[i], r) for i, r in enumerate(rows)]
    assert torch.equal(
        adjust_rows(torch.from_numpy(logits), device_rows(rows)),
        torch.from_numpy(np.stack([adjust(logits[i], r) for i, r in enumerate(rows)])),
    )


def test_order_keys_sort_by_value_and_then_by_lower_id() -> None:
    values = torch.tensor([0.0, -0.0, 1.5, -2.0, 1.5, -torch.inf, torch.inf, 3e-42, -3e-42])
    order = token_of_key(order_keys(values).sort(descending=True).values)
    assert order.tolist() == [6, 2, 4, 7, 0, 1, 8, 3, 5]


@pytest.mark.parametrize("params", [row(), row(top_k=5), row(top_p=0.8), row(temperature=0.6)])
def test_draws_follow_the_distribution(params: RowSampling) -> None:
    """Chi-square over 20,000 counter draws against the exact shares."""
    logits = random_logits(11, scale=1.5)
    draws = 20_000
    counts = np.zeros(V)
    scaled = logits / np.float32(params.temperature)
    for count in range(draws):
        counts[draw(scaled, params, uniform(1234, count))] += 1

    shares = np.exp(log_probabilities(scaled))
    if params.top_k:
        shares[np.argsort(-shares, kind="stable")[params.top_k :]] = 0
    if params.top_p < 1:
        order = np.argsort(-shares, kind="stable")
        keep = np.searchsorted(np.cumsum(shares[order]), params.top_p) + 1
        shares[order[keep:]] = 0
    expected = shares / shares.sum() * draws
    assert counts[expected == 0].sum() == 0
    kept = expected >= 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    # Wilson-Hilferty: a standard normal value; 4 would happen once in 30,000 tries.
    normal = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(
        2 / (9 * freedom)
    )
    assert normal < 4


@given(seed=st.integers(0, 500), shift=st.sampled_from([-8.0, 2.0, 16.0]))
def test_adding_a_constant_to_all_logits_changes_nothing(seed: int, shift: float) -> None:
    logits = np.round(random_logits(seed))
    for params in (row(seed=seed), row(seed=seed, top_p=0.7), row(seed=seed, temperature=0.0)):
        assert sample(logits, params) == sample(logits + np.float32(shift), params)


def test_a_banned_token_is_never_drawn() -> None:
    banned = dataclasses.replace(
        row(),
        bias_ids=np.arange(1, V, dtype=np.int32),
        bias_values=np.full(V - 1, -1e4, np.float32),
    )
    assert {sample(random_logits(seed), banned) for seed in range(50)} == {0}
    assert draw(adjust(random_logits(0), banned), banned, math.nextafter(1.0, 0.0)) == 0


def test_log_probabilities_are_normalised_in_float64() -> None:
    rows = np.stack([random_logits(seed, scale=30) for seed in range(4)])
    table = log_probabilities(rows)
    assert table.dtype == np.float64
    assert np.exp(table).sum(axis=-1) == pytest.approx(np.ones(4), abs=1e-12)
