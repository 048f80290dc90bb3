"""Packages with a separate draft model: memory, what is written, opened, and refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helios.scheduler import ProposalSource
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.capacity_costs import kv_bytes_per_token, weight_bytes
from ignition.capacity_errors import CapacityError
from ignition.checkpoint import Checkpoint, TextAssets
from ignition.draft.errors import DraftError
from ignition.draft.pair import Speaker, check_pair, expected_pair_survivals
from ignition.package import LoadLimits, open_package
from ignition.package_errors import PackageError
from ignition.package_manifest import read_manifest
from ignition.prepare import prepare_package
from tests.ignition.native.models import checkpoint_for
from tests.ignition.pairs import draft_checkpoint
from tests.ignition.test_draft_packages import check_tokens

TARGET = dataclasses.replace(checkpoint_for("llama"), sha256="a" * 64)
DRAFT = draft_checkpoint("other")


def options_of(backend: str = "eager", precision: str = "fp32", **more: Any) -> CapacityOptions:
    fields: dict[str, Any] = {
        "draft_tokens": 1,
        "learned_tokens": 3,
        "draft_model": DRAFT.geometry,
        **more,
    }
    return CapacityOptions(
        backend=backend,
        precision=precision,
        concurrency=3,
        prefill_capacities=(16, 64),
        scored_capacities=(32,),
        **fields,
    )


def planned(options: CapacityOptions) -> CapacityPlan:
    return plan_capacity(TARGET.geometry, options, machine_memory_bytes=16 << 30)


def prepared(base: Path, options: CapacityOptions, draft: Checkpoint | Path | None) -> Path:
    directory = base / "package"
    prepare_package(
        TARGET, planned(options), directory, progress=lambda *_: None, threads=1, draft=draft
    )
    return directory


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("pair"), options_of(), DRAFT)


def test_memory_counts_weights_pages_and_workspace_of_the_draft() -> None:
    plain = planned(options_of(learned_tokens=0, draft_model=None))
    paired = planned(options_of())
    own, tokens = paired.draft_memory, paired.pool.page_count * paired.pool.page_size_tokens
    assert own is not None
    assert paired.pool == plain.pool
    assert own.weights_bytes == weight_bytes(DRAFT.geometry, "fp32")
    assert own.kv_bytes == tokens * kv_bytes_per_token(DRAFT.geometry, "fp32")
    assert paired.memory.kv_bytes == plain.memory.kv_bytes + own.kv_bytes
    assert paired.memory.weights_bytes == plain.memory.weights_bytes + own.weights_bytes
    assert paired.memory.workspace_bytes >= plain.memory.workspace_bytes + own.workspace_bytes
    assert paired.prepare_s > plain.prepare_s
    assert plain.draft_memory is None
    budget = paired.memory.total_bytes
    tight = planned(options_of(memory_bytes=budget - own.kv_bytes // 2))
    assert tight.memory.total_bytes <= budget - own.kv_bytes // 2
    assert tight.pool.page_count < paired.pool.page_count
    shown = json.loads(json.dumps(paired.to_document()))
    assert shown["draft_memory"]["kv_bytes"] == own.kv_bytes


def test_a_draft_of_shorter_texts_is_said_so() -> None:
    short = dataclasses.replace(DRAFT.geometry, context_length_tokens=64)
    assert any(
        "made for 64 tokens" in note for note in planned(options_of(draft_model=short)).notes
    )
    assert not planned(options_of()).notes


def test_plans_that_nobody_can_mean_are_refused() -> None:
    with pytest.raises(CapacityError, match="cannot both propose"):
        planned(options_of(head_tokens=40))
    with pytest.raises(CapacityError, match="need a draft head or a draft model"):
        planned(options_of(draft_model=None))
    with pytest.raises(CapacityError, match="need a draft head or a draft model"):
        planned(options_of(learned_tokens=0))


def test_the_draft_must_be_the_plans(tmp_path) -> None:
    with pytest.raises(PackageError, match="a draft head, or a draft model"):
        prepared(tmp_path, options_of(), None)
    with pytest.raises(PackageError, match="the plan was not made for the draft model"):
        prepared(tmp_path, options_of(), draft_checkpoint("one-layer"))
    with pytest.raises(PackageError, match=r"the plan is for a draft model, head\.safe"):
        prepared(tmp_path, options_of(), tmp_path / "head.safetensors")
    assert list(tmp_path.iterdir()) == []


def check_package(directory: Path) -> None:
    draft = read_manifest(directory).draft
    assert draft is not None
    assert draft.model is not None
    assert (draft.sha256, draft.model.name) == (DRAFT.sha256, DRAFT.name)
    assert draft.token_count == DRAFT.geometry.vocabulary_size
    assert draft.survivals == expected_pair_survivals(3) == pytest.approx((0.6, 0.36, 0.216))
    opened = open_package(directory, verify=True)
    names = {graph.name: graph.source for graph in opened.catalog.graphs}
    assert set(opened.cost_seeds_ns) == set(names)
    check_tokens(opened, [5, 9, 3, 9, 5], 14)
    opened.close()
    plain = tuple(name for name, source in names.items() if source is not ProposalSource.LEARNED)
    without = open_package(directory, limits=LoadLimits(graphs=plain))
    left_out = without.model.draft, getattr(without.model, "pair", None)
    assert left_out == (None, None), "without a program that proposes the draft is left out"
    without.close()


def test_an_eager_package_proposes_with_its_draft_model(package) -> None:
    check_package(package)
    assert not list(package.glob("*.so"))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_native_package_proposes_with_its_draft_model(tmp_path, precision) -> None:
    directory = prepared(tmp_path, options_of("native", precision), DRAFT)
    check_package(directory)
    assert sorted(path.name.split("-")[0] for path in directory.glob("*.so")) == [
        "draft",
        "programs",
    ]


def edited(package: Path, base: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a package whose manifest is changed; its files are those of the other."""
    directory = base / "edited"
    directory.mkdir()
    for path in package.iterdir():
        (directory / path.name).hardlink_to(path)
    document = json.loads((package / "manifest.json").read_text())
    change(document)
    (directory / "manifest.json").unlink()
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


def _smaller(document: dict[str, Any]) -> None:
    document["draft"]["model"]["geometry"]["vocabulary_size"] = 96


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (
            lambda d: d["draft"]["model"].update(sha256="b" * 64),
            "draft.model.sha256",
            "is not the draft's",
        ),
        (_smaller, "draft.model.geometry.vocabulary_size", "96, the package's model has 97"),
        (
            lambda d: d["draft"]["model"]["geometry"].pop("hidden_size"),
            "draft.model.geometry.hidden_size",
            "missing",
        ),
        (lambda d: d["draft"].update(library="x.so"), "draft.library", "not among the files"),
        (
            lambda d: d["draft"].update(library="tokenizer.json"),
            "draft.library",
            "native packages alone",
        ),
        (
            lambda d: d["files"].pop("draft-weights.safetensors"),
            "files.draft-weights.safetensors",
            "the draft model needs it",
        ),
        (
            lambda d: d["draft"].update(target_sha256="b" * 64),
            "draft.target_sha256",
            "is for bbbbbbbbbbbb",
        ),
    ],
)
def test_an_impossible_draft_is_refused_by_field(package, tmp_path, change, field, message) -> None:
    directory = edited(package, tmp_path, change)
    with pytest.raises(PackageError, match=message) as caught:
        open_package(directory)
    assert caught.value.field == field


def test_damaged_and_missing_weights_of_a_draft_are_refused_by_file(package, tmp_path) -> None:
    directory = edited(package, tmp_path, lambda d: None)
    path = directory / "draft-weights.safetensors"
    content = bytearray(path.read_bytes())
    path.unlink()
    with pytest.raises(PackageError, match=r"files\.draft-weights\.safetensors"):
        open_package(directory)
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PackageError, match=r"draft-weights\.safetensors: its content is not"):
        open_package(directory)


def text_of(tokens: dict[str, int], **more: Any) -> TextAssets:
    fields = {"bos_token_id": 1, "eos_token_ids": (2, 3), "added": [], **more}
    document = {"model": {"vocab": tokens}, "added_tokens": fields.pop("added")}
    return TextAssets(
        tokenizer_json=json.dumps(document), chat_template=None, add_bos=False, **fields
    )


WORDS = {"a": 0, "b": 1, "c": 2, "d": 3}


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        (text_of(WORDS), 5, "vocabulary: the draft has 5 tokens, the target 4 tokens"),
        (
            text_of({"a": 0, "c": 1, "b": 2, "d": 3}),
            4,
            "token 1: the draft has 'c', the target 'b'",
        ),
        (text_of({"a": 0, "b": 1, "c": 2}), 4, "token 3: the draft has none, the target 'd'"),
        (
            text_of(WORDS, added=[{"id": 2, "content": "<end>"}]),
            4,
            "token 2: the draft has '<end>', the target 'c'",
        ),
        (text_of(WORDS, bos_token_id=None), 4, "begins a text: the draft has none, .* token 1"),
        (text_of(WORDS, eos_token_ids=(2,)), 4, r"end a text: the draft has \[2\], .* \[2, 3\]"),
    ],
)
def test_7_1_another_tokenizer_is_refused_naming_both_and_the_first_difference(
    text, size, message
) -> None:
    target = Speaker("big", 4, text_of(WORDS))
    with pytest.raises(DraftError, match=f"the draft model small .* its target big: .*{message}"):
        check_pair(target, Speaker("small", size, text))


def test_7_1_the_same_tokens_are_the_same_however_they_are_listed() -> None:
    pieces = json.dumps({"model": {"vocab": [[word, -1.5] for word in WORDS]}})
    listed = dataclasses.replace(text_of(WORDS, eos_token_ids=(3, 2)), tokenizer_json=pieces)
    check_pair(Speaker("big", 4, text_of(WORDS)), Speaker("small", 4, listed))
    broken = dataclasses.replace(listed, tokenizer_json="{")
    with pytest.raises(DraftError, match="the tokenizer of small cannot be read"):
        check_pair(Speaker("big", 4, listed), Speaker("small", 4, broken))
