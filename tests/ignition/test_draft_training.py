"""Training of draft heads on a tiny random target: texts, unrolled depths, steps, resuming."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from ignition.distillation.corpus import CorpusPlan, load_texts, shard_path, write_corpus
from ignition.distillation.head import Batch, unroll
from ignition.distillation.loss import depth_loss, teacher_of
from ignition.distillation.start import first_parameters, frequent_tokens
from ignition.distillation.target import Target, Text
from ignition.distillation.training import Trainer, TrainingPlan, batch_numbers, batch_of
from ignition.draft.errors import DraftError
from tests.ignition import drafts
from tests.ignition.driver import GREEDY
from tests.ignition.rounds import driver_of, start

PLAN = CorpusPlan(shards=2, output_tokens=10, seed=7, stop_token_ids=())
NORM_EPSILON = 1e-5


def test_texts_are_what_the_programs_write_and_their_hidden_rows_lead_to_it() -> None:
    greedy = drafts.texts()[0]
    driver = driver_of("eager")
    prompt = greedy.token_ids[: greedy.prompt_tokens].tolist()
    expected = start(driver, 0, 0, prompt, GREEDY)
    while len(expected) < drafts.OUTPUT_TOKENS:
        expected += driver.decode([0])[0].tokens
    assert greedy.token_ids[greedy.prompt_tokens :].tolist() == expected[:-1]
    shared = drafts.shared()
    logits = shared.normed(torch.from_numpy(greedy.hidden.astype(np.float32))) @ shared.head.T
    drawn = logits.argmax(-1)[greedy.prompt_tokens - 1 :].tolist()
    assert drawn == expected


def test_a_stop_token_ends_a_text_and_leaves_the_others_alone() -> None:
    whole = drafts.texts()[0]
    stop = int(whole.token_ids[whole.prompt_tokens + 2])
    at = whole.token_ids[whole.prompt_tokens :].tolist().index(stop)
    ending = dataclasses.replace(GREEDY, stop_token_ids=(stop,))
    prompt = whole.token_ids[: whole.prompt_tokens].tolist()
    short, same = drafts.target().write([prompt, prompt], [ending, GREEDY], drafts.OUTPUT_TOKENS)
    assert len(short.token_ids) == whole.prompt_tokens + at
    assert np.array_equal(same.token_ids, whole.token_ids)
    assert np.array_equal(same.hidden, whole.hidden)


@pytest.mark.slow
def test_native_programs_write_with_hidden_rows_that_lead_to_their_tokens() -> None:
    target = Target.open(drafts.checkpoint(), lanes=4, context_tokens=32, threads=1)
    samplings = [GREEDY] * 3
    texts = target.write(drafts.prompts(3), samplings, drafts.OUTPUT_TOKENS)
    target.close()
    shared, right, total = drafts.shared(), 0, 0
    for text in texts:
        logits = shared.normed(torch.from_numpy(text.hidden.astype(np.float32))) @ shared.head.T
        drawn = logits.argmax(-1)[text.prompt_tokens - 1 : -1].numpy()
        right += int((drawn == text.token_ids[text.prompt_tokens :]).sum())
        total += len(drawn)
    # The native head rounds its input to eight bits, which may turn a close decision.
    assert right / total > 0.9


def test_shards_follow_from_seed_and_number_and_are_not_written_twice(tmp_path) -> None:
    once, heard = tmp_path / "once", drafts.Heard()
    write_corpus(drafts.target(), drafts.prompts(), PLAN, once, heard)
    assert heard.stages[-1] == ("generate", 2, 2)
    other = tmp_path / "other"
    write_corpus(drafts.target(), drafts.prompts(), PLAN, other, drafts.Heard())
    shard_path(other, 1).unlink()
    kept = shard_path(other, 0).stat().st_mtime_ns
    write_corpus(drafts.target(), drafts.prompts(), PLAN, other, drafts.Heard())
    assert shard_path(other, 0).stat().st_mtime_ns == kept
    assert drafts.contents(once) == drafts.contents(other)
    texts = load_texts(shard_path(once, 1))
    assert [text.temperature for text in texts] == pytest.approx([0.0, 0.7, 1.0, 0.0])
    assert all(len(text.hidden) == len(text.token_ids) for text in texts)


def test_prompts_that_leave_no_room_are_refused(tmp_path) -> None:
    with pytest.raises(DraftError, match="none of 1 prompts has 1 to 22 tokens"):
        write_corpus(drafts.target(), [[1] * 23], PLAN, tmp_path, drafts.Heard())


def test_a_damaged_shard_is_named(tmp_path) -> None:
    path = shard_path(tmp_path, 0)
    path.write_bytes(b"nothing")
    with pytest.raises(DraftError, match=r"texts-00000.safetensors: not a shard"):
        load_texts(path)


def normed(x: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
    return weight * x / math.sqrt(float((x**2).mean()) + NORM_EPSILON)


class DumbHead:
    """One chain of proposals, entry by entry in float64: what serving does."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        self.p = {name: value.numpy().astype(np.float64) for name, value in parameters.items()}
        self.geometry = drafts.checkpoint().geometry
        self.embed = drafts.checkpoint().float32("embed").astype(np.float64)
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def rotated(self, heads: np.ndarray, position: int) -> np.ndarray:
        size = self.geometry.head_size
        half, out = size // 2, heads.copy()
        for i in range(half):
            angle = position / self.geometry.rope_theta ** (2 * i / size)
            cos, sin = math.cos(angle), math.sin(angle)
            out[:, i] = heads[:, i] * cos - heads[:, i + half] * sin
            out[:, i + half] = heads[:, i + half] * cos + heads[:, i] * sin
        return out

    def entry(self, before: np.ndarray, token: int) -> np.ndarray:
        """Append the next entry and return its hidden row."""
        p, size = self.p, self.geometry.head_size
        position = len(self.keys)
        token_row = normed(self.embed[token], p["token_norm"])
        x = p["join"] @ np.concatenate([normed(before, p["hidden_norm"]), token_row])
        n = normed(x, p["layers.0.attn_norm"])
        q = self.rotated((p["layers.0.q"] @ n).reshape(-1, size), position)
        self.keys.append(self.rotated((p["layers.0.k"] @ n).reshape(-1, size), position))
        self.values.append((p["layers.0.v"] @ n).reshape(-1, size))
        group, mixed = self.geometry.query_heads // self.geometry.kv_heads, []
        for head, query in enumerate(q):
            scores = np.array([key[head // group] @ query for key in self.keys]) / math.sqrt(size)
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            mixed.append(
                sum(s * v[head // group] for s, v in zip(shares, self.values, strict=True))
            )
        x = x + p["layers.0.o"] @ np.concatenate(mixed)
        n = normed(x, p["layers.0.ffn_norm"])
        gate = p["layers.0.gate"] @ n
        return x + p["layers.0.down"] @ (gate / (1 + np.exp(-gate)) * (p["layers.0.up"] @ n))


def chain_of(parameters: dict, text: Text, start: int, depths: int) -> list[np.ndarray]:
    """Return the hidden rows of a chain that starts at an entry, over true tokens."""
    head, hidden = DumbHead(parameters), text.hidden.astype(np.float64)
    for place in range(start):
        before = hidden[place - 1] if place else np.zeros_like(hidden[0])
        head.entry(before, text.token_ids[place])
    rows = [head.entry(hidden[start - 1], text.token_ids[start])]
    while len(rows) < depths:
        rows.append(head.entry(rows[-1], text.token_ids[start + len(rows)]))
    return rows


@pytest.mark.parametrize("start_at", [3, 8, 15])
def test_unrolled_depths_equal_chains_that_are_run_entry_by_entry(start_at) -> None:
    parameters, depths = drafts.random_parameters(), 4
    chosen = drafts.texts()[:3]
    predicted = list(unroll(parameters, drafts.shared(), batch_of(chosen), depths))
    for row, text in enumerate(chosen):
        for depth, expected in enumerate(chain_of(parameters, text, start_at, depths), 1):
            found = predicted[depth - 1][row, start_at + depth - 1].numpy()
            assert np.allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_what_follows_a_text_and_its_padding_change_nothing() -> None:
    parameters, chosen = drafts.random_parameters(), list(drafts.texts()[:2])
    cut = Text(chosen[0].token_ids[:15], chosen[0].hidden[:15], chosen[0].prompt_tokens, 0.0)
    alone = list(unroll(parameters, drafts.shared(), batch_of([cut]), 3))
    beside = list(unroll(parameters, drafts.shared(), batch_of([chosen[1], cut]), 3))
    for one, two in zip(alone, beside, strict=True):
        assert torch.allclose(one[0], two[1, :15], rtol=1e-4, atol=1e-5)


def test_entries_count_from_the_first_round_on() -> None:
    batch = Batch(
        torch.zeros(2, 6, dtype=torch.long),
        torch.zeros(2, 6, 4),
        torch.tensor([2, 4]),
        torch.tensor([6, 5]),
    )
    assert batch.is_scored(1).nonzero().tolist() == [[0, 2], [0, 3], [0, 4], [0, 5], [1, 4]]
    assert batch.is_scored(3).nonzero().tolist() == [[0, 4], [0, 5]]


def test_the_loss_is_the_cross_entropy_of_the_target_over_the_draft_tokens() -> None:
    shared, batch = drafts.shared(), batch_of(drafts.texts()[:2])
    predicted = torch.randn(batch.hidden.shape, generator=torch.Generator().manual_seed(1))
    for depth in (1, 2, 3):
        entropy, _ = depth_loss(shared, batch, teacher_of(shared, batch), predicted, depth)
        found = []
        for row, place in batch.is_scored(depth).nonzero().tolist():
            rows = [x.numpy().astype(np.float64) for x in (batch.hidden[row, place],)]
            rows.append(predicted[row, place].numpy().astype(np.float64))
            head = shared.draft_head.numpy().astype(np.float64)
            p, q = (head @ normed(x, shared.norm.numpy()) for x in rows)
            p = np.exp(p - p.max())
            log_q = q - q.max() - math.log(np.exp(q - q.max()).sum())
            found.append(-(p / p.sum() * log_q).sum())
        assert float(entropy) == pytest.approx(np.mean(found), rel=1e-4)


@pytest.mark.parametrize("name", ["join", "layers.0.o", "layers.0.down"])
def test_the_start_fits_one_product_after_the_other(name) -> None:
    """Each fitted matrix is the best for its place while those behind it are still zero."""
    shared, texts = drafts.shared(), drafts.texts()
    fitted = first_parameters(drafts.checkpoint(), shared, texts)
    order = ["join", "layers.0.o", "layers.0.down"]
    behind = order[order.index(name) + 1 :]
    fitted |= {later: torch.zeros_like(fitted[later]) for later in behind}
    batch = batch_of(texts)
    used = torch.arange(batch.token_ids.shape[1])[None] < batch.lengths[:, None]
    used[:, 0] = False
    truth = batch.hidden / batch.hidden.pow(2).mean(-1, keepdim=True).sqrt()

    def error(matrix: torch.Tensor) -> float:
        (predicted,) = unroll({**fitted, name: matrix}, shared, batch, 1)
        return float((predicted - truth)[used].pow(2).sum())

    best = error(fitted[name])
    assert best < error(torch.zeros_like(fitted[name]))
    for seed in range(3):
        noise = torch.randn(fitted[name].shape, generator=torch.Generator().manual_seed(seed))
        assert error(fitted[name] + 0.3 * fitted[name].std() * noise) > best


def test_frequent_tokens_come_first_and_lower_ids_fill_up() -> None:
    ids, none = np.array([1, 1, 9, 9, 9, 6], np.int32), np.zeros((6, 2), np.float16)
    chosen = frequent_tokens([Text(ids, none, 1, 0.0)], vocabulary_size=12, count=5)
    assert chosen.tolist() == [0, 1, 2, 6, 9]


def trainer(plan: TrainingPlan) -> Trainer:
    start_at = first_parameters(drafts.checkpoint(), drafts.shared(), drafts.texts())
    return Trainer(drafts.shared(), start_at, plan)


def test_the_loss_falls() -> None:
    plan = TrainingPlan(steps=60, learning_rate=3e-3, warmup_steps=5, deep_share=1.0)
    training = trainer(plan)
    losses = [training.advance(drafts.texts()) for _ in range(60)]
    for depth in range(2):
        first, last = (np.mean([x[depth] for x in part]) for part in (losses[:6], losses[-6:]))
        assert last < first - 0.2


def test_resuming_is_bit_identical(tmp_path) -> None:
    plan = TrainingPlan(steps=12, save_every=5, warmup_steps=3)
    whole, path = trainer(plan), tmp_path / "training.checkpoint"
    whole.train(drafts.texts(), tmp_path / "whole", drafts.Heard())
    first = trainer(plan)
    for _ in range(7):
        first.advance(drafts.texts())
    first.save(path)
    second = trainer(plan)
    second.resume(path)
    assert second.step == 7
    second.train(drafts.texts(), path, drafts.Heard())
    assert second.step == whole.step == 12
    for name, value in whole.parameters.items():
        assert torch.equal(value, second.parameters[name]), name


def test_a_checkpoint_of_another_plan_or_none_is_refused_and_changes_nothing(tmp_path) -> None:
    path, plan = tmp_path / "training.checkpoint", TrainingPlan(steps=3)
    trainer(plan).save(path)
    other = trainer(TrainingPlan(steps=4))
    before = {name: value.clone() for name, value in other.parameters.items()}
    with pytest.raises(DraftError, match="a checkpoint of another plan"):
        other.resume(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DraftError, match="not a checkpoint of a training"):
        other.resume(path)
    assert other.step == 0
    assert all(torch.equal(before[name], value) for name, value in other.parameters.items())


def test_every_pass_takes_every_text_once() -> None:
    plan = TrainingPlan(steps=9, batch_texts=3)
    for turn in range(2):
        steps = range(turn * 4, turn * 4 + 4)
        numbers = [number for step in steps for number in batch_numbers(12, plan, step)]
        assert sorted(numbers) == list(range(12))
    assert batch_numbers(12, plan, 0) != batch_numbers(12, plan, 4)


def test_the_rate_rises_and_then_falls_to_nothing() -> None:
    plan = TrainingPlan(steps=100, learning_rate=1.0, warmup_steps=10)
    assert plan.rate(0) == pytest.approx(0.1)
    assert plan.rate(10) == pytest.approx(1.0)
    assert plan.rate(55) == pytest.approx(0.5)
    assert 0 < plan.rate(99) < 0.02
