"""Packages with a draft head: shapes, memory, what is written, opened, and refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helios.scheduler import GraphKind, ProposalSource
from ignition.capacity import CapacityOptions, CapacityPlan, plan_capacity
from ignition.capacity_errors import CapacityError
from ignition.checkpoint import Checkpoint
from ignition.draft.errors import DraftError
from ignition.draft.expected import expected_survivals
from ignition.draft.file import read_record
from ignition.draft.shapes import parameter_shapes
from ignition.measure import calibrated_seeds
from ignition.package import LoadLimits, OpenedPackage, open_package
from ignition.package_errors import PackageError
from ignition.package_manifest import read_manifest, sha256_of
from ignition.prepare import prepare_package
from tests.ignition import drafts
from tests.ignition.driver import Driver, lane
from tests.ignition.tiny import build

LEARNED = ("speculative-b1-d1-w2", "speculative-b1-d3-w4", "speculative-b4-d3-w4")


def options_of(backend: str = "eager", precision: str = "fp32", **more: Any) -> CapacityOptions:
    fields: dict[str, Any] = {"draft_tokens": 1, "learned_tokens": 3, "head_tokens": 40, **more}
    return CapacityOptions(
        backend=backend,
        precision=precision,
        concurrency=3,
        prefill_capacities=(16, 64),
        scored_capacities=(32,),
        **fields,
    )


def planned(checkpoint: Checkpoint, options: CapacityOptions) -> CapacityPlan:
    return plan_capacity(checkpoint.geometry, options, machine_memory_bytes=16 << 30)


def prepared(
    base: Path, checkpoint: Checkpoint, options: CapacityOptions, draft: Path | None
) -> Path:
    plan, directory = planned(checkpoint, options), base / "package"
    prepare_package(checkpoint, plan, directory, progress=lambda *_: None, threads=1, draft=draft)
    return directory


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return build("llama3").checkpoint


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    return drafts.write_random_head(tmp_path_factory.mktemp("head") / "head", checkpoint)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint, head: Path) -> Path:
    return prepared(tmp_path_factory.mktemp("eager"), checkpoint, options_of(), head)


def rounds_of(plan: CapacityPlan, source: ProposalSource) -> set[tuple[int, int]]:
    graphs = [program.graph for program in plan.programs]
    return {
        (graph.batch_capacity, graph.token_capacity)
        for graph in graphs
        if graph.kind is GraphKind.SPECULATIVE and graph.source is source
    }


def test_every_source_has_its_own_widths_beside_one_program_of_width_one(checkpoint) -> None:
    plan = planned(checkpoint, options_of(draft_tokens=7))
    buckets = (1, 2, 4)
    assert rounds_of(plan, ProposalSource.NONE) == {(b, 1) for b in buckets}
    assert rounds_of(plan, ProposalSource.COPY) == {
        (b, w) for b in buckets for w in (2, 4, 8) if b * w <= 32
    }
    assert rounds_of(plan, ProposalSource.LEARNED) == {(b, w) for b in buckets for w in (2, 4)}
    purposes = {program.graph.name: program.purpose for program in plan.programs}
    assert "up to 3 learned tokens" in purposes["speculative-b4-d3-w4"]
    assert "up to 3 copied tokens" in purposes["speculative-b4-d3-w4-copy"]
    assert plan.needs_draft
    assert not planned(checkpoint, options_of(learned_tokens=0, head_tokens=0)).needs_draft


def test_mixed_programs_have_both_sources_too(checkpoint) -> None:
    plan = planned(checkpoint, options_of(mixed_prefill=True))
    mixed = {p.graph.name for p in plan.programs if p.graph.kind is GraphKind.MIXED}
    assert {"mixed-b2-d3-w4-c64", "mixed-b2-d1-w2-c64", "mixed-b2-d1-w2-c64-copy"} <= mixed
    assert "mixed-b2-d3-w4-c64-copy" not in mixed


def test_memory_counts_the_heads_layer_and_a_hidden_row_of_every_page_token(checkpoint) -> None:
    geometry = checkpoint.geometry
    plain = planned(checkpoint, options_of(learned_tokens=0, head_tokens=0))
    drafting = planned(checkpoint, options_of())
    assert plain.pool == drafting.pool
    tokens = plain.pool.page_count * plain.pool.page_size_tokens
    token = 2 * 4 * geometry.kv_width + 4 * geometry.hidden_size
    assert drafting.memory.kv_bytes - plain.memory.kv_bytes == tokens * token
    weights = drafting.memory.weights_bytes - plain.memory.weights_bytes
    shapes = parameter_shapes(geometry).values()
    own = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes)
    assert weights == 4 * (own + 40 * geometry.hidden_size)
    budget = drafting.memory.total_bytes
    tight = planned(checkpoint, options_of(memory_bytes=budget))
    assert tight.memory.total_bytes <= budget


def test_learned_rounds_without_a_head_and_on_a_gpu_are_refused(checkpoint, tmp_path) -> None:
    with pytest.raises(CapacityError, match="need a draft head"):
        planned(checkpoint, options_of(head_tokens=0))
    with pytest.raises(CapacityError, match="cuda programs take no copied or learned proposals"):
        planned(checkpoint, options_of("cuda"))
    with pytest.raises(PackageError, match="need the file of a draft head"):
        prepared(tmp_path, checkpoint, options_of(), None)


def test_a_head_of_another_model_is_refused_before_anything_is_written(
    tmp_path, checkpoint, head
) -> None:
    other = dataclasses.replace(checkpoint, sha256="1" * 64)
    with pytest.raises(DraftError, match="target_sha256"):
        prepared(tmp_path, other, options_of(), head)
    assert list(tmp_path.iterdir()) == []


def check_tokens(opened: OpenedPackage, prompt: list[int], count: int) -> None:
    """Rounds of the package in turn give what single steps give."""
    driver, texts = Driver(opened), []
    for row, is_learned in ((0, False), (1, True)):
        driver.initialize([row], [range(8 * row, 8 * row + 8)])
        tokens = list(driver.prefill(row, prompt, [("prefill-c16", len(prompt))]).tokens)
        while len(tokens) < count:
            name = LEARNED[len(tokens) % len(LEARNED)]
            length = min(count - len(tokens), 2 if "w2" in name else 4)
            if is_learned:
                tokens += driver.run(name, lane(row, query_length=length))[0].tokens
            else:
                tokens += driver.decode([row])[0].tokens
        texts.append(tokens)
    assert texts[0] == texts[1]


def check_package(directory: Path, head: Path) -> None:
    draft = read_manifest(directory).draft
    assert draft is not None
    assert (draft.sha256, draft.token_count) == (sha256_of(head), 40)
    assert draft.survivals == pytest.approx((0.5, 0.3))
    opened = open_package(directory, verify=True)
    names = {graph.name for graph in opened.catalog.graphs}
    assert set(LEARNED) <= set(opened.cost_seeds_ns) == names == set(calibrated_seeds(opened))
    check_tokens(opened, [5, 9, 3, 9, 5], 14)
    opened.close()
    without = open_package(
        directory, limits=LoadLimits(graphs=tuple(n for n in names if n not in _proposing(opened)))
    )
    assert without.model.draft is None, "without a program that proposes the head is left out"
    without.close()


def _proposing(opened: OpenedPackage) -> set[str]:
    graphs = opened.catalog.graphs
    return {graph.name for graph in graphs if graph.source is ProposalSource.LEARNED}


def test_an_eager_package_proposes_for_itself(package, head) -> None:
    check_package(package, head)
    assert (package / "draft.safetensors").read_bytes() == head.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_native_package_proposes_for_itself(tmp_path, checkpoint, head, precision) -> None:
    directory = prepared(tmp_path, checkpoint, options_of("native", precision), head)
    check_package(directory, head)
    assert not (directory / "draft.safetensors").exists()


def edited(package: Path, base: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a package whose manifest is changed; its files are those of the other."""
    directory = base / "edited"
    directory.mkdir()
    for path in package.iterdir():
        (directory / path.name).hardlink_to(path)
    document = json.loads((package / "manifest.json").read_text())
    change(document["draft"])
    (directory / "manifest.json").unlink()
    (directory / "manifest.json").write_text(json.dumps(document))
    return directory


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target_sha256", "1" * 64, "is for 111111111111, the package's .* is "),
        ("sha256", "none", "is not a sha256"),
        ("token_count", 0, "must be 1 to"),
        ("token_count", 1 << 20, "must be 1 to"),
        ("survivals", [0.5, 0.6], "must fall from 1 to 0"),
        ("survivals", [1.5], "must fall from 1 to 0"),
        ("survivals", [-0.5], "must fall from 1 to 0"),
    ],
)
def test_an_impossible_head_is_refused_by_field(package, tmp_path, field, value, message) -> None:
    directory = edited(package, tmp_path, lambda draft: draft.update({field: value}))
    with pytest.raises(PackageError, match=message) as caught:
        open_package(directory)
    assert caught.value.field == f"draft.{field}"


def test_a_damaged_head_of_an_eager_package_is_refused_by_its_file(package, tmp_path) -> None:
    directory = edited(package, tmp_path, lambda draft: None)
    path = directory / "draft.safetensors"
    content = bytearray(path.read_bytes())
    path.unlink()
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PackageError, match=r"files\.draft\.safetensors"):
        open_package(directory)


def test_what_is_expected_of_a_head_lies_between_greedy_and_sampled_and_falls(head) -> None:
    report = read_record(head).report
    assert expected_survivals(report) == pytest.approx(((0.6 + 0.4) / 2, (0.4 + 0.4 * 0.5) / 2))
    assert expected_survivals(()) == ()
    assert expected_survivals(reversed(report)) == pytest.approx((0.45, 0.4))
    rising = expected_survivals([*report, report[0], report[0]])
    assert all(below <= above for above, below in itertools.pairwise(rising))
