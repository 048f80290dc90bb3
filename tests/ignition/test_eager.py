"""Eager programs against transformers, and docs/design/programs.md sections 1 and 2."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from helios.engine.ports import SamplingParams
from ignition.geometry import PoolGeometry
from ignition.programs.eager import EagerModel
from ignition.programs.frames import FrameError, ReplayError
from tests.ignition.driver import GREEDY, Driver, catalog_of, lane
from tests.ignition.tiny import CONTEXT, VOCABULARY, TinyModel, build

FAMILIES = ("llama", "llama3", "llama-untied", "qwen2", "qwen3")
POOL = PoolGeometry(row_count=8, page_count=120, page_size_tokens=16, context_length_tokens=CONTEXT)


@functools.cache
def tiny(family: str) -> TinyModel:
    return build(family)


def driver_for(family: str = "llama") -> Driver:
    checkpoint = tiny(family).checkpoint
    weights = {name: torch.from_numpy(checkpoint.float32(name)) for name in checkpoint.tensors}
    model = EagerModel(
        geometry=checkpoint.geometry, pool=POOL, catalog=catalog_of(), weights=weights
    )
    return Driver(model)


def pages_for(index: int, count: int = 8) -> list[int]:
    """Pages of one request, scattered over the pool."""
    return [(7 * (index * count + i) + 3) % POOL.page_count for i in range(count)]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def reference_logits(family: str, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return tiny(family).reference(torch.tensor([tokens])).logits[0].numpy()


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_logits_equal_transformers(family: str) -> None:
    driver = driver_for(family)
    prompt = prompt_of(90)
    driver.initialize([5], [pages_for(1)])
    output = driver.prefill(5, prompt, [("prefill-c64", 50), ("prefill-c64", 40)])
    tokens = [*prompt, output.tokens[0]]
    actual = driver.program("prefill-c64").buffers["last_logits"][0]
    assert relative_error(actual, reference_logits(family, prompt)[-1]) < 1e-5

    for _ in range(6):
        (output,) = driver.decode([5])
        actual = driver.program("decode-b1").buffers["last_logits"][0]
        expected = reference_logits(family, tokens)[-1]
        assert relative_error(actual, expected) < 1e-5
        assert output.tokens == (int(expected.argmax()),)
        tokens.append(output.tokens[0])


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_long_context_over_several_attention_blocks_equals_transformers(family: str) -> None:
    driver = driver_for(family)
    prompt = prompt_of(600, seed=4)
    driver.initialize([0], [range(40)])
    chunks = [("prefill-c64", 64)] * 9 + [("prefill-c64", 24)]
    driver.prefill(0, prompt, chunks)
    actual = driver.program("prefill-c64").buffers["last_logits"][0]
    assert relative_error(actual, reference_logits(family, prompt)[-1]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_scored_prefill_logprobs_equal_transformers(family: str) -> None:
    driver = driver_for(family)
    prompt = prompt_of(45, seed=2)
    driver.initialize([1], [pages_for(0)], SamplingParams(temperature=0.0, top_logprobs=5))
    first = driver.run(
        "scored-prefill-c32",
        lane(1, prompt_token_ids=np.array(prompt[:32], np.int32), next_prompt_token_id=prompt[32]),
    )[0]
    last = driver.run(
        "scored-prefill-c32",
        lane(1, position=32, prompt_token_ids=np.array(prompt[32:], np.int32), is_final_chunk=True),
    )[0]
    expected = torch.log_softmax(
        torch.from_numpy(reference_logits(family, prompt)).double(), dim=-1
    ).numpy()

    scores = first.prompt_logprobs + last.prompt_logprobs
    assert first.tokens == ()
    assert len(first.prompt_logprobs) == 32
    assert len(scores) == len(prompt) - 1
    for index, score in enumerate(scores):
        row = expected[index]
        assert score.logprob == pytest.approx(row[prompt[index + 1]], abs=2e-5)
        order = np.argsort(-row, kind="stable")[:5]
        assert score.top_ids == tuple(order)
        assert score.top_logprobs == pytest.approx(row[order], abs=2e-5)
    assert last.tokens == (int(expected[-1].argmax()),)
    assert last.logprobs[0].top_ids[0] == last.tokens[0]
    assert last.logprobs[0].logprob == pytest.approx(expected[-1].max(), abs=2e-5)


def generate(driver: Driver, row: int, page_set: int, prompt: list[int], chunks, count: int):
    """Return the logits and tokens of one request alone."""
    driver.initialize([row], [pages_for(page_set)])
    name = chunks[-1][0]
    tokens = list(driver.prefill(row, prompt, chunks).tokens)
    logits = [driver.program(name).buffers["last_logits"][0].copy()]
    for _ in range(count - 1):
        (output,) = driver.decode([row])
        tokens += output.tokens
        logits.append(driver.program("decode-b1").buffers["last_logits"][0].copy())
    driver.terminal([row])
    return tokens, np.stack(logits)


@pytest.mark.parametrize(
    "chunks",
    [
        [("prefill-c64", 61)],
        [("prefill-c16", 16), ("prefill-c16", 16), ("prefill-c64", 29)],
        [("prefill-c64", 1), ("prefill-c16", 3), ("prefill-c64", 57)],
        [("prefill-c16", 7)] * 8 + [("prefill-c16", 5)],
        [("scored-prefill-c32", 30), ("scored-prefill-c32", 31)],
    ],
)
def test_1_4_chunking_does_not_change_a_bit(chunks: list[tuple[str, int]]) -> None:
    """1.4: a lane's result does not depend on how its prompt was cut into chunks."""
    prompt = prompt_of(61, seed=5)
    baseline = generate(driver_for(), 2, 0, prompt, [("prefill-c64", 61)], 5)
    tokens, logits = generate(driver_for(), 6, 3, prompt, chunks, 5)
    assert tokens == baseline[0]
    assert np.array_equal(logits, baseline[1])


def test_1_4_batch_neighbours_and_padding_do_not_change_a_bit() -> None:
    """1.4: not on neighbours, padding or batch capacity."""
    prompts = [prompt_of(length, seed=length) for length in (3, 20, 33, 64, 11)]
    alone = [
        generate(driver_for(), 0, 0, prompt, [("prefill-c64", len(prompt))], 6)
        for prompt in prompts
    ]
    for capacity in (8, None):
        driver = driver_for()
        rows = [6, 1, 4, 0, 7]
        driver.initialize(rows, [pages_for(i) for i in range(5)])
        tokens = [
            list(driver.prefill(row, prompt, [("prefill-c64", len(prompt))]).tokens)
            for row, prompt in zip(rows, prompts, strict=True)
        ]
        for step in range(1, 6):
            lanes = list(range(5)) if step % 2 else [3, 0, 4, 2, 1]
            groups = [lanes] if capacity else [lanes[:2], lanes[2:]]
            for group in groups:
                name = "decode-b8" if capacity else None
                outputs = driver.decode([rows[i] for i in group], name)
                program = driver.program(name or driver.smallest("decode", len(group)))
                for position, i in enumerate(group):
                    tokens[i] += outputs[position].tokens
                    logits = program.buffers["last_logits"][position]
                    assert np.array_equal(logits, alone[i][1][step]), (capacity, step, i)
        assert tokens == [expected for expected, _ in alone]


def snapshot(driver: Driver, rows: list[int], pages: list[int]) -> list[bytes]:
    """Bytes of everything that belongs to some rows and pages."""
    state = driver.model.state
    names = [n for n in state.__slots__ if n not in ("model", "pool", "keys", "values")]
    size = POOL.page_size_tokens
    slots = np.concatenate([np.arange(page * size, (page + 1) * size) for page in pages])
    parts = [getattr(state, name)[rows].tobytes() for name in names]
    return [*parts, state.keys[:, slots].tobytes(), state.values[:, slots].tobytes()]


def test_1_3_idle_lanes_and_unused_capacity_change_nothing() -> None:
    """1.3: inactive lanes and unused token capacity perform no state mutation."""
    driver = driver_for()
    driver.initialize([2, 3], [pages_for(0), pages_for(1)])
    driver.prefill(2, prompt_of(20), [("prefill-c64", 20)])
    untouched = [p for p in range(POOL.page_count) if p not in pages_for(1)]
    before = snapshot(driver, [0, 1, 2, 4, 5, 6, 7], untouched)
    driver.prefill(3, prompt_of(5, seed=1), [("prefill-c64", 5)])
    driver.decode([3], "decode-b8")
    assert snapshot(driver, [0, 1, 2, 4, 5, 6, 7], untouched) == before
    slots = np.arange(pages_for(1)[0] * 16 + 6, pages_for(1)[0] * 16 + 16)
    assert not driver.model.state.keys[:, slots].any()


def test_2_4_a_finished_row_produces_nothing_and_changes_nothing() -> None:
    driver = driver_for()
    prompt = prompt_of(20)
    probe = driver_for()
    probe.initialize([0], [pages_for(0)])
    stop = probe.prefill(0, prompt, [("prefill-c64", 20)]).tokens[0]

    params = SamplingParams(temperature=0.0, stop_token_ids=(90, stop))
    driver.initialize([0, 1], [pages_for(0), pages_for(1)], [params, GREEDY])
    output = driver.prefill(0, prompt, [("prefill-c64", 20)])
    assert output.tokens == (stop,)
    assert output.terminated
    driver.prefill(1, prompt_of(9, seed=3), [("prefill-c16", 9)])

    before = snapshot(driver, [0], pages_for(0))
    outputs = driver.decode([0, 1])
    assert outputs[0].tokens == ()
    assert not outputs[0].terminated
    assert len(outputs[1].tokens) == 1
    assert snapshot(driver, [0], pages_for(0)) == before
    (last,) = driver.terminal([0])
    assert (last.cached_tokens, last.output_tokens) == (20, 1)


def test_2_5_terminal_reports_and_clears_and_2_1_initialize_starts_afresh() -> None:
    driver = driver_for()
    prompt = prompt_of(20)
    first = generate(driver, 4, 0, prompt, [("prefill-c64", 20)], 4)
    state = driver.model.state
    assert (state.page_table[4] == -1).all()
    assert state.cached_tokens[4] == state.output_count[4] == state.finished[4] == 0
    generate(driver, 4, 2, prompt_of(50, seed=9), [("prefill-c64", 50)], 7)
    assert generate(driver, 4, 1, prompt, [("prefill-c64", 20)], 4)[0] == first[0]

    driver.initialize([4], [pages_for(0)])
    assert not state.prompt_seen[4].any()
    assert not state.output_counts[4].any()
    driver.prefill(4, prompt, [("prefill-c64", 20)])
    assert set(np.flatnonzero(state.prompt_seen[4])) == set(prompt)
    driver.decode([4])
    (last,) = driver.terminal([4])
    assert (last.cached_tokens, last.output_tokens) == (21, 2)


def test_2_2_without_the_final_chunk_nothing_is_sampled() -> None:
    driver = driver_for()
    driver.initialize([0], [pages_for(0)])
    (output,) = driver.run(
        "prefill-c16", lane(0, prompt_token_ids=np.array(prompt_of(10), np.int32))
    )
    assert output.tokens == ()
    assert driver.model.state.cached_tokens[0] == 10
    assert driver.model.state.output_count[0] == 0


def test_junk_in_recycled_pages_stays_invisible() -> None:
    """Whatever an earlier request left in a page, even NaN, never reaches the next one."""
    prompt = prompt_of(20)
    expected = generate(driver_for(), 0, 0, prompt, [("prefill-c64", 20)], 5)
    driver = driver_for()
    driver.model.state.keys[...] = np.nan
    driver.model.state.values[...] = np.inf
    tokens, logits = generate(driver, 0, 0, prompt, [("prefill-c64", 20)], 5)
    assert tokens == expected[0]
    assert np.array_equal(logits, expected[1])


def test_logprobs_are_reported_to_the_rows_that_asked() -> None:
    driver = driver_for()
    asked = SamplingParams(temperature=0.7, seed=3, top_logprobs=3, logit_bias=((7, 50.0),))
    driver.initialize([0, 1], [pages_for(0), pages_for(1)], [asked, GREEDY])
    prompt = prompt_of(12)
    driver.prefill(0, prompt, [("prefill-c16", 12)])
    driver.prefill(1, prompt, [("prefill-c16", 12)])
    outputs = driver.decode([0, 1])
    assert outputs[0].tokens == (7,)
    score = outputs[0].logprobs[0]
    assert len(score.top_ids) == len(score.top_logprobs) == 3
    assert list(score.top_logprobs) == sorted(score.top_logprobs, reverse=True)
    assert score.logprob < 0, "the raw distribution, before the bias"
    raw = driver.program("decode-b2").buffers["last_logits"][0].astype(np.float64)
    assert score.logprob == pytest.approx(raw[7] - np.log(np.exp(raw).sum()), abs=1e-5)
    assert outputs[1].logprobs == ()


@pytest.mark.parametrize(
    ("name", "lanes", "message"),
    [
        ("decode-b1", [lane(0), lane(1)], "2 lanes"),
        ("decode-b2", [lane(0), lane(0)], "two lanes"),
        ("decode-b1", [lane(8)], "row 8 of 8"),
        ("initialize-b1", [lane(0)], "no sampling"),
        ("initialize-b1", [lane(0, pages=(120,), sampling=GREEDY)], "page"),
        ("initialize-b1", [lane(0, pages=(1,) * 41, sampling=GREEDY)], "41 pages"),
        ("prefill-c16", [lane(0)], "0 prompt tokens"),
        ("prefill-c16", [lane(0, prompt_token_ids=np.zeros(17, np.int32))], "17 prompt tokens"),
        ("prefill-c16", [lane(0, prompt_token_ids=np.array([97], np.int32))], "outside 97"),
        (
            "prefill-c16",
            [lane(0, position=630, prompt_token_ids=np.zeros(16, np.int32))],
            "context of 640",
        ),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_any_write(name, lanes, message) -> None:
    driver = driver_for()
    before = {key: array.copy() for key, array in driver.program(name).buffers.items()}
    with pytest.raises(FrameError, match=message):
        driver.run(name, *lanes)
    for key, array in driver.program(name).buffers.items():
        assert np.array_equal(array, before[key]), key


def test_a_row_without_a_page_is_refused_before_any_change() -> None:
    driver = driver_for()
    driver.initialize([0, 1], [[5], [6, 7]])
    with pytest.raises(FrameError, match="fewer than the 2 pages"):
        driver.run("prefill-c64", lane(0, prompt_token_ids=np.zeros(17, np.int32)))
    driver.prefill(0, prompt_of(16), [("prefill-c16", 16)])
    driver.prefill(1, prompt_of(16), [("prefill-c16", 16)])
    before = snapshot(driver, list(range(8)), list(range(POOL.page_count)))
    with pytest.raises(ReplayError, match="row 0 has no page"):
        driver.decode([1, 0])
    assert snapshot(driver, list(range(8)), list(range(POOL.page_count))) == before
    driver.decode([1])
