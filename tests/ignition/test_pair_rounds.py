"""docs/design/drafts.md 7: rounds that a separate draft model proposes for, by backend."""

from __future__ import annotations

import numpy as np
import pytest

from helios.engine.ports import SamplingParams
from ignition.draft.errors import DraftError
from ignition.programs.frames import ReplayError
from ignition.programs.native_library import NativeLibraryError
from tests.ignition.driver import GREEDY, Driver, lane
from tests.ignition.native.models import POOL, checkpoint_for
from tests.ignition.pairs import (
    DRAFTS,
    SHAPES,
    alone_after,
    draft_model,
    learned_graph,
    model_of,
    name_of,
    pair_driver,
    pools_of,
    slots_of,
)
from tests.ignition.rounds import (
    BACKENDS,
    SETTINGS,
    logits_of,
    pages_for,
    plain_run,
    prompt_of,
    state_of,
)

PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((5, 11, 16))]


def begin(driver: Driver, row: int, index: int, prompt: list[int], sampling=GREEDY) -> list[int]:
    driver.initialize([row], [pages_for(index)], sampling)
    return list(driver.prefill(row, prompt, [("prefill-c16", len(prompt))]).tokens)


def round_of(driver: Driver, lengths: dict[int, int], name: str) -> dict[int, tuple[int, ...]]:
    lanes = [lane(row, query_length=length) for row, length in lengths.items()]
    outputs = driver.run(name, *lanes)
    return {row: output.tokens for row, output in zip(lengths, outputs, strict=True)}


def run_rounds(
    kind: str, backend: str, shape: tuple[int, int], sampling: SamplingParams, count: int
) -> tuple[int, int]:
    """Generate for several requests at once; return how many proposals were made and accepted."""
    (batch, width), driver = shape, pair_driver(kind, backend)
    lanes, name = min(batch, 3), name_of(batch, width)
    expected = [plain_run(driver, prompt, sampling, count) for prompt in PROMPTS[:lanes]]
    rows = [(5 * i + 2) % POOL.row_count for i in range(lanes)]
    produced = {row: begin(driver, row, i, PROMPTS[i], sampling) for i, row in enumerate(rows)}
    proposed = accepted = 0
    while any(len(tokens) < count for tokens in produced.values()):
        open_rows = [row for row in rows if len(produced[row]) < count]
        lengths = {row: min(width, count - len(produced[row])) for row in open_rows}
        for row, tokens in round_of(driver, lengths, name).items():
            at = len(produced[row])
            fed = {other: [0] * (length - 1) for other, length in lengths.items()}
            found = logits_of(driver, name, fed)[open_rows.index(row)][: len(tokens)]
            true = expected[rows.index(row)][1][at - 1 : at - 1 + len(tokens)]
            assert np.array_equal(found, np.stack(true)), (row, at)
            produced[row] += tokens
            proposed, accepted = proposed + lengths[row] - 1, accepted + len(tokens) - 1
    assert list(produced.values()) == [tokens for tokens, _ in expected]
    return proposed, accepted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_target_that_drafts_for_itself_is_always_right(backend, shape) -> None:
    proposed, accepted = run_rounds("itself", backend, shape, GREEDY, 18)
    assert proposed == accepted >= 8


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["other", "one-layer"])
def test_greedy_output_is_that_of_single_steps_bit_for_bit(backend, kind) -> None:
    for shape in ((1, 4), (4, 3), (8, 8)):
        proposed, accepted = run_rounds(kind, backend, shape, GREEDY, 18)
        assert accepted < proposed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_every_sampling_setting_draws_what_single_steps_draw(backend, setting) -> None:
    run_rounds("itself", backend, (4, 4), SETTINGS[setting], 20)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", DRAFTS)
def test_7_3_whatever_consumed_the_tokens_the_draft_has_read_them_all(backend, kind) -> None:
    """Chunks, scored ones, single steps, rounds of every source: proposals and entries are those of
    the draft model on its own behind the same tokens.
    """
    driver, prompt = pair_driver(kind, backend), [*PROMPTS[1], *PROMPTS[2]]
    driver.initialize([3], [pages_for(1)], SETTINGS["plain"])
    chunks = [("prefill-c16", 5), ("scored-prefill-c32", 9), ("prefill-c64", len(prompt) - 14)]
    history = prompt + list(driver.prefill(3, prompt, chunks).tokens)
    accepted = []
    for step in (
        "learned",
        "decode-b1",
        "copy",
        "learned",
        "speculative-b1-d0-w1",
        "copy",
        "decode-b4",
        "learned",
        "learned",
        "speculative-b4-d0-w1",
        "learned",
    ):
        if step == "copy":
            copied = (7, 8, 9)
            (output,) = driver.run(
                "speculative-b4-d3-w4-copy", lane(3, query_length=4, copied_token_ids=copied)
            )
            tokens = output.tokens
        elif step == "learned":
            expected, entries = alone_after(kind, backend, history, 3)
            tokens = round_of(driver, {3: 4}, name_of(4, 4))[3]
            proposals = driver.program(name_of(4, 4)).buffers["proposals"]
            assert proposals[0].tolist() == expected
            assert not proposals[1:].any()
            slots = slots_of(1, len(history) - 1)
            for pool, alone in zip(pools_of(driver), entries, strict=True):
                # Attention of a chunk rounds otherwise than that of a step in eager programs.
                atol = 1e-4 if backend == "eager" else 0.0
                assert np.allclose(pool[:, slots], alone, rtol=0.0, atol=atol)
            accepted.append(len(tokens) - 1)
        else:
            tokens = driver.run(step, lane(3, query_length=1))[0].tokens
        history += tokens
    assert min(accepted) < 3, "a proposal that is refused leaves an entry to overwrite"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [1, 4])
def test_7_3_mixed_steps_keep_the_draft_context_too(backend, width) -> None:
    graphs = [learned_graph(4, 4, prompt=64), learned_graph(1, 4)]
    driver, prompt = pair_driver("other", backend, graphs), [*PROMPTS[2], *PROMPTS[1]]
    history = [*PROMPTS[0], *begin(driver, 2, 0, PROMPTS[0])]
    driver.initialize([5], [pages_for(1)], GREEDY)
    name = graphs[0].name if width == 4 else "mixed-b4-w1-c64"
    chunk = lane(
        5, prompt_token_ids=np.asarray(prompt, np.int32), is_final_chunk=True, is_prompt=True
    )
    outputs = driver.run(name, lane(2, query_length=width), chunk)
    if width == 4:
        expected, _ = alone_after("other", backend, history, 3)
        assert driver.program(name).buffers["proposals"][0].tolist() == expected
    histories = {2: history + list(outputs[0].tokens), 5: prompt + list(outputs[1].tokens)}
    for row, tokens in histories.items():
        round_of(driver, {row: 4}, name_of(1, 4))
        proposals = driver.program(name_of(1, 4)).buffers["proposals"][0].tolist()
        assert proposals == alone_after("other", backend, tokens, 3)[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_short_and_idle_lanes_change_nothing_of_a_neighbour(backend) -> None:
    driver, alone = pair_driver("other", backend), {}
    for i, prompt in enumerate(PROMPTS):
        begin(driver, 4, i, prompt)
        alone[i] = round_of(driver, {4: (1, 4, 2)[i]}, name_of(1, 4))[4]
        driver.terminal([4])
    rows = {6: 0, 0: 1, 3: 2}
    for row, i in rows.items():
        begin(driver, row, i, PROMPTS[i])
    used = {page for i in range(3) for page in pages_for(i)}
    others = [page for page in range(POOL.page_count) if page not in used]
    slots = np.concatenate([np.arange(page * 16, page * 16 + 16) for page in others])
    before = [pool[:, slots].copy() for pool in pools_of(driver)]
    kept = [state_of(driver, row, 5) for row in (1, 2, 7)]
    outputs = round_of(driver, {6: 1, 0: 4, 3: 2}, name_of(8, 8))
    assert outputs == {row: alone[i] for row, i in rows.items()}
    proposals = driver.program(name_of(8, 8)).buffers["proposals"]
    assert not proposals[0].any()
    assert not proposals[1, 3:].any()
    for one, other in zip(before, pools_of(driver), strict=True):
        assert np.array_equal(one, other[:, slots])
    for row, state in zip((1, 2, 7), kept, strict=True):
        for one, other in zip(state, state_of(driver, row, 5), strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name_of(1, 4), "decode-b1", "speculative-b4-d3-w4-copy"])
def test_a_lane_without_a_page_is_refused_and_nothing_changes(backend, name) -> None:
    driver, prompt = pair_driver("one-layer", backend), prompt_of(16)
    driver.initialize([1], [[9]], GREEDY)
    driver.prefill(1, prompt, [("prefill-c16", 16)])
    before = [pool.copy() for pool in pools_of(driver)]
    copied = (1, 2, 3) if "copy" in name else ()
    length = 1 if "decode" in name else 4
    with pytest.raises(ReplayError, match=f"{name}: row 1 has no page for its next token"):
        driver.run(name, lane(1, query_length=length, copied_token_ids=copied))
    for one, other in zip(before, pools_of(driver), strict=True):
        assert np.array_equal(one, other)
    assert driver.model.state.cached_tokens[1] == 16


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_pages_serve_a_second_request_as_its_own_would(backend) -> None:
    """A request that takes over the first pages of another proposes what it would have alone."""
    driver, prompt = pair_driver("other", backend), [*PROMPTS[2], *PROMPTS[1]]
    begin(driver, 0, 0, PROMPTS[2])
    driver.initialize([1], [[pages_for(0)[0], *pages_for(1)[1:]]], GREEDY)
    rest = lane(
        1, position=16, prompt_token_ids=np.asarray(PROMPTS[1], np.int32), is_final_chunk=True
    )
    history = prompt + list(driver.run("prefill-c16", rest)[0].tokens)
    round_of(driver, {1: 4}, name_of(1, 4))
    proposals = driver.program(name_of(1, 4)).buffers["proposals"][0].tolist()
    assert proposals == alone_after("other", backend, history, 3)[0]


def test_threads_do_not_change_a_proposal_and_a_model_may_be_closed() -> None:
    found = []
    for threads in (1, 3):
        driver = pair_driver("other", "native-int8", threads=threads)
        tokens = begin(driver, 0, 0, PROMPTS[0])
        for _ in range(4):
            tokens += round_of(driver, {0: 4}, name_of(4, 4))[0]
        found.append((tokens, driver.program(name_of(4, 4)).buffers["proposals"].tolist()))
        driver.model.close()
    assert found[0] == found[1]


def test_programs_that_propose_are_refused_without_a_draft_and_with_half_a_one() -> None:
    target, graphs = checkpoint_for("llama"), [learned_graph(1, 2)]
    with pytest.raises(DraftError, match="proposes with a draft head, and none is given"):
        model_of(target, None, "eager", graphs)
    with pytest.raises(NativeLibraryError, match="needs a draft head, and none is given"):
        model_of(target, None, "native-fp32", graphs)
    with pytest.raises(NativeLibraryError, match="no library of its geometry"):
        model_of(target, draft_model("other", "eager"), "native-fp32", graphs)
    with pytest.raises(NativeLibraryError, match="another precision"):
        model_of(target, draft_model("other", "native-int8"), "native-fp32", graphs)
