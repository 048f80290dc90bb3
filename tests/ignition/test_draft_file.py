"""Draft files: what is written is read, everything else is refused by name."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ignition.distillation.corpus import load_texts, shard_path
from ignition.distillation.make import DraftPlan, make_draft
from ignition.distillation.training import Trainer, TrainingPlan
from ignition.draft.errors import DraftError
from ignition.draft.file import (
    TOKEN_IDS,
    DepthFigures,
    DraftRecord,
    read_draft,
    read_record,
    write_draft,
)
from tests.ignition import drafts

FIGURES = DepthFigures(
    depth=1,
    greedy_chains=9,
    greedy_agreement=0.5,
    greedy_survival=0.5,
    sampled_entries=4,
    overlap=0.4,
    coupled=0.3,
    likeliest=0.2,
)
RECORD = DraftRecord(
    format=1,
    target="tiny",
    target_sha256="0" * 64,
    training_texts=3,
    training_tokens=60,
    held_out_texts=1,
    steps=5,
    depths=2,
    seed=1,
    options={"learning_rate": 0.1},
    report=(FIGURES,),
)
IDS = np.array([2, 5, 11], np.int32)


def write(path, **changes) -> None:
    parameters = {name: value.numpy() for name, value in drafts.random_parameters().items()}
    write_draft(path, RECORD, IDS, {**parameters, **changes})


def test_what_is_written_is_read(tmp_path) -> None:
    path, geometry = tmp_path / "head.safetensors", drafts.checkpoint().geometry
    write(path)
    head = read_draft(path, geometry, "0" * 64)
    assert head.record == RECORD == read_record(path)
    assert head.token_ids.tolist() == IDS.tolist()
    for name, value in drafts.random_parameters().items():
        assert np.array_equal(head.parameters[name], value.numpy().astype(np.float16))
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_the_head_of_another_target_is_refused(tmp_path) -> None:
    path = tmp_path / "head.safetensors"
    write(path)
    with pytest.raises(DraftError, match=r"target_sha256: trained for tiny 000000000000"):
        read_draft(path, drafts.checkpoint().geometry, "1" * 64)


def test_values_that_half_precision_does_not_hold_are_not_written(tmp_path) -> None:
    with pytest.raises(DraftError, match="join is not finite"):
        write(tmp_path / "head", join=np.full((64, 128), 1e6, np.float32))
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_is_too_large_is_not_written(tmp_path) -> None:
    with pytest.raises(DraftError, match="at most 20000000"):
        write(tmp_path / "head", join=np.zeros((4000, 4000), np.float32))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"join": None}, "tensor join is missing"),
        ({"join": np.zeros((64, 64), np.float16)}, r"tensor join is float16\[64, 64\], expected"),
        ({"join": np.zeros((64, 128), np.float32)}, r"expected float16\[64, 128\]"),
        ({"join": np.full((64, 128), np.nan, np.float16)}, "not a finite number"),
        ({TOKEN_IDS: None}, "must be a list of int32"),
        ({TOKEN_IDS: np.array([3, 3], np.int32)}, "must ascend within 0 to 96"),
        ({TOKEN_IDS: np.array([3, 97], np.int32)}, "must ascend within 0 to 96"),
        ({TOKEN_IDS: np.array([-1, 3], np.int32)}, "must ascend within 0 to 96"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, tensors, message) -> None:
    path = tmp_path / "head.safetensors"
    write(path)
    stored = {**load_file(path), **tensors}
    kept = {name: value for name, value in stored.items() if value is not None}
    save_file(kept, path, {"flare": msgspec.json.encode(RECORD).decode()})
    with pytest.raises(DraftError, match=message):
        read_draft(path, drafts.checkpoint().geometry, "0" * 64)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "metadata flare is missing"),
        ({"flare": "{"}, "metadata flare"),
        ({"flare": "[]"}, "metadata flare"),
        ({"flare": json.dumps({"format": 2})}, "format is 2, this flare reads 1"),
        ({"flare": json.dumps({"format": 1})}, "metadata flare: Object missing required field"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path, metadata, message) -> None:
    path = tmp_path / "head.safetensors"
    save_file({"x": np.zeros(3, np.float16)}, path, metadata)
    with pytest.raises(DraftError, match=message):
        read_record(path)


@pytest.mark.parametrize(
    ("content", "message"), [(b"junk", "not a safetensors file"), (None, "cannot be read")]
)
def test_other_files_are_refused(tmp_path, content, message) -> None:
    path = tmp_path / "head.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DraftError, match=message):
        read_record(path)


PLAN = DraftPlan(
    shards=3,
    lanes=4,
    output_tokens=12,
    context_tokens=24,
    draft_tokens=50,
    report_depths=2,
    training=TrainingPlan(steps=4, save_every=2, batch_texts=2, warmup_steps=1),
)


def make(directory, plan: DraftPlan = PLAN):
    """Make a head with the eager target: no compiler is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "ignition.distillation.make.Target.open",
            lambda checkpoint, *, lanes, context_tokens, threads: drafts.Target.eager(
                checkpoint, lanes=lanes, context_tokens=context_tokens
            ),
        )
        heard = drafts.Heard()
        path, record = make_draft(
            drafts.checkpoint(), drafts.prompts(), plan, directory, threads=1, progress=heard
        )
    return path, record, heard


def test_a_head_is_made_from_nothing_and_made_again_it_is_the_same(tmp_path) -> None:
    path, record, heard = make(tmp_path / "one")
    assert record == read_record(path)
    assert (record.training_texts, record.held_out_texts, record.steps) == (8, 4, 4)
    written = [load_texts(shard_path(path.parent, index)) for index in range(2)]
    outputs = [len(t.token_ids) - t.prompt_tokens for shard in written for t in shard]
    assert record.training_tokens == sum(outputs) > 8
    assert [row.depth for row in record.report] == [1, 2]
    assert {stage for stage, _, _ in heard.stages} == {"generate", "start", "train", "measure"}
    head = read_draft(path, drafts.checkpoint().geometry, drafts.checkpoint().sha256)
    assert len(head.token_ids) == 50
    again, _, _ = make(tmp_path / "two")
    assert again.read_bytes() == path.read_bytes()


def test_an_interrupted_making_goes_on_to_the_same_file(tmp_path) -> None:
    path, _, _ = make(tmp_path / "one")
    (tmp_path / "two").mkdir()
    for name in ("plan.json", "texts-00000.safetensors"):
        (tmp_path / "two" / name).write_bytes((tmp_path / "one" / name).read_bytes())
    again, _, _ = make(tmp_path / "two")
    assert again.read_bytes() == path.read_bytes()


def test_a_start_that_was_fitted_is_not_fitted_again(tmp_path, monkeypatch) -> None:
    path, _, _ = make(tmp_path / "one")
    trained = Trainer.train

    def interrupted(self, texts, checkpoint, progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "two")
    monkeypatch.setattr(Trainer, "train", trained)
    monkeypatch.setattr("ignition.distillation.make.first_parameters", None)
    again, _, _ = make(tmp_path / "two")
    assert again.read_bytes() == path.read_bytes()


def test_a_directory_of_other_options_is_refused(tmp_path) -> None:
    make(tmp_path)
    before = drafts.contents(tmp_path)
    with pytest.raises(DraftError, match="begun with other options"):
        make(tmp_path, dataclasses.replace(PLAN, draft_tokens=51))
    assert drafts.contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": 1}, "shards must be at least 2, not 1"),
        ({"lanes": 65}, "lanes must be at most 64, not 65"),
        ({"context_tokens": 12}, "context_tokens must be above the 12 output_tokens"),
        ({"training": TrainingPlan(steps=0)}, "steps must be at least 1, not 0"),
        ({"training": TrainingPlan(steps=4, deep_share=1.5)}, "deep_share must be 0 to 1, not 1.5"),
    ],
)
def test_options_that_make_no_sense_are_named(change, message) -> None:
    with pytest.raises(DraftError, match=message):
        dataclasses.replace(PLAN, **change).check()
