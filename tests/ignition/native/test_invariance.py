"""docs/design/programs.md 1.3 and 1.4: what must not change a lane's result, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from tests.ignition.driver import GREEDY, Driver, lane
from tests.ignition.native.models import NEEDS_VNNI, POOL, native_driver
from tests.ignition.native.test_fp32 import pages_for, prompt_of

KINDS = [
    ("llama:q4_1", "int8", "avx2"),
    ("llama", "int8", "avx2"),
    ("llama", "fp32", "avx2"),
    pytest.param("llama:q4_1", "int8", "vnni", marks=NEEDS_VNNI),
    pytest.param("llama", "int8", "vnni", marks=NEEDS_VNNI),
    pytest.param("llama:q4_1", "int8", "plain", marks=pytest.mark.slow),
]


def generate(driver: Driver, row: int, page_set: int, prompt: list[int], chunks, count: int):
    """Return the tokens and logits of one request alone."""
    driver.initialize([row], [pages_for(page_set)])
    tokens = list(driver.prefill(row, prompt, chunks).tokens)
    logits = [driver.program(chunks[-1][0]).buffers["last_logits"][0].copy()]
    for _ in range(count - 1):
        (output,) = driver.decode([row])
        tokens += output.tokens
        logits.append(driver.program("decode-b1").buffers["last_logits"][0].copy())
    driver.terminal([row])
    return tokens, np.stack(logits)


@pytest.mark.parametrize(("family", "precision", "variant"), KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_1_4_chunks_and_threads_do_not_change_a_bit(family, precision, variant, threads) -> None:
    prompt = prompt_of(61, seed=5)
    expected = generate(
        native_driver(family, precision, variant), 2, 0, prompt, [("prefill-c64", 61)], 5
    )
    for chunks in (
        [("prefill-c64", 61)],
        [("prefill-c16", 16), ("prefill-c16", 16), ("prefill-c64", 29)],
        [("prefill-c64", 1), ("prefill-c16", 3), ("prefill-c64", 57)],
        [("prefill-c16", 7)] * 8 + [("prefill-c16", 5)],
        [("scored-prefill-c32", 30), ("scored-prefill-c32", 31)],
    ):
        driver = native_driver(family, precision, variant, threads)
        tokens, logits = generate(driver, 6, 3, prompt, chunks, 5)
        assert tokens == expected[0], chunks
        assert np.array_equal(logits, expected[1]), chunks


@pytest.mark.parametrize(("family", "precision", "variant"), KINDS)
def test_1_4_neighbours_and_padding_do_not_change_a_bit(family, precision, variant) -> None:
    prompts = [prompt_of(length, seed=length) for length in (3, 20, 33, 64, 11, 50, 2, 17)]
    alone = [
        generate(
            native_driver(family, precision, variant),
            *(0, 0, prompt, [("prefill-c64", len(prompt))], 6),
        )
        for prompt in prompts
    ]
    for group in ([0, 1, 2, 3, 4, 5, 6, 7], [3, 0, 4], [6, 2, 5, 1, 7]):
        driver = native_driver(family, precision, variant, threads=2)
        rows = [(3 * i + 1) % POOL.row_count for i in group]
        driver.initialize(rows, [pages_for(i) for i in group])
        for row, i in zip(rows, group, strict=True):
            driver.prefill(row, prompts[i], [("prefill-c64", len(prompts[i]))])
        for step in range(1, 6):
            order = list(range(len(group))) if step % 2 else list(reversed(range(len(group))))
            outputs = driver.decode([rows[k] for k in order], "decode-b8")
            logits = driver.program("decode-b8").buffers["last_logits"]
            for place, k in enumerate(order):
                assert outputs[place].tokens == (alone[group[k]][0][step],)
                assert np.array_equal(logits[place], alone[group[k]][1][step]), (group, step, k)


def snapshot(driver: Driver, rows: list[int], pages: list[int]) -> list[bytes]:
    """Bytes of everything that belongs to some rows and pages."""
    state = driver.model.state
    names = [n for n in state.__slots__ if n not in ("model", "pool", "keys", "values")]
    size = POOL.page_size_tokens
    slots = np.concatenate([np.arange(page * size, (page + 1) * size) for page in pages])
    parts = [getattr(state, name)[rows].tobytes() for name in names]
    return [*parts, state.keys[:, slots].tobytes(), state.values[:, slots].tobytes()]


def test_1_3_idle_lanes_and_unused_capacity_change_nothing() -> None:
    driver = native_driver()
    driver.initialize([2, 3], [pages_for(0), pages_for(1)])
    driver.prefill(2, prompt_of(20), [("prefill-c64", 20)])
    untouched = [p for p in range(POOL.page_count) if p not in pages_for(1)]
    before = snapshot(driver, [0, 1, 2, 4, 5, 6, 7], untouched)
    driver.prefill(3, prompt_of(5, seed=1), [("prefill-c64", 5)])
    driver.decode([3], "decode-b8")
    assert snapshot(driver, [0, 1, 2, 4, 5, 6, 7], untouched) == before
    slots = np.arange(pages_for(1)[0] * 16 + 6, pages_for(1)[0] * 16 + 16)
    assert not driver.model.state.keys[:, slots].any()


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_junk_in_recycled_pages_stays_invisible(precision) -> None:
    """Whatever an earlier request left in a page, even NaN, never reaches the next one."""
    prompt = prompt_of(20)
    expected = generate(native_driver("llama", precision), 0, 0, prompt, [("prefill-c64", 20)], 5)
    driver = native_driver("llama", precision)
    driver.model.state.keys[...] = np.nan
    driver.model.state.values[...] = np.inf
    tokens, logits = generate(driver, 0, 0, prompt, [("prefill-c64", 20)], 5)
    assert tokens == expected[0]
    assert np.array_equal(logits, expected[1])


def test_2_4_a_finished_row_produces_nothing_and_changes_nothing() -> None:
    driver = native_driver()
    prompt = prompt_of(20)
    stop = generate(native_driver(), 0, 0, prompt, [("prefill-c64", 20)], 1)[0][0]
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


def test_2_1_initialize_starts_afresh_and_2_5_terminal_reports_and_clears() -> None:
    driver = native_driver()
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
    driver = native_driver()
    driver.initialize([0], [pages_for(0)])
    tokens = np.array(prompt_of(10), np.int32)
    (output,) = driver.run("prefill-c16", lane(0, prompt_token_ids=tokens))
    assert output.tokens == ()
    assert driver.model.state.cached_tokens[0] == 10
    assert driver.model.state.output_count[0] == 0
