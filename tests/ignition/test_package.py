"""Packages: what is written comes back, and every fault is refused by the name of its field."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helios.engine.manifest import FORMAT_VERSION, Manifest
from helios.scheduler import GraphKind
from ignition.capacity import CapacityOptions, plan_capacity
from ignition.checkpoint import Checkpoint
from ignition.package import LoadLimits, open_package
from ignition.package_errors import PackageError
from ignition.package_manifest import geometry_of, read_manifest, sha256_of
from ignition.package_writer import package_directory, write_package
from ignition.weight_shapes import dense_shapes
from tests.ignition.driver import Driver, lane
from tests.ignition.tiny import build

OPTIONS = CapacityOptions(
    backend="eager",
    precision="fp32",
    concurrency=2,
    prefill_capacities=(16, 64),
    scored_capacities=(32,),
)


def write(
    destination: Path, checkpoint: Checkpoint, options: CapacityOptions = OPTIONS
) -> Manifest:
    plan = plan_capacity(checkpoint.geometry, options, machine_memory_bytes=16 << 30)
    weights = {name: checkpoint.float32(name) for name in dense_shapes(checkpoint.geometry)}
    with package_directory(destination) as directory:
        return write_package(
            directory, plan=plan, checkpoint=checkpoint, weights=weights, library=None, threads=1
        )


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return build("llama3").checkpoint


@pytest.fixture
def package(tmp_path: Path, checkpoint: Checkpoint) -> Path:
    write(tmp_path / "tiny", checkpoint)
    return tmp_path / "tiny"


def edit(package: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((package / "manifest.json").read_text())
    change(document)
    (package / "manifest.json").write_text(json.dumps(document))


def test_a_package_comes_back_as_it_was_written(package: Path, checkpoint: Checkpoint) -> None:
    opened = open_package(package, verify=True)
    assert geometry_of(opened.manifest) == checkpoint.geometry
    assert opened.resources.row_count == 2
    assert opened.resources.context_length_tokens == checkpoint.geometry.context_length_tokens
    assert [p.descriptor for p in opened.programs] == list(opened.catalog.graphs)
    assert opened.cost_seeds_ns == {}
    text = opened.manifest.tokenizer
    assert (package / text.file).read_text() == checkpoint.text.tokenizer_json
    assert text.chat_template is not None
    assert (package / text.chat_template).read_text() == checkpoint.text.chat_template
    assert sorted(p.name for p in package.iterdir()) == sorted(
        [*opened.manifest.files, "manifest.json"]
    )
    for entry, program in zip(opened.manifest.graphs, opened.programs, strict=True):
        assert entry.name == program.descriptor.name
        assert {b.name: b.shape for b in entry.buffers} == {
            name: array.shape for name, array in program.buffers.items()
        }
    driver = Driver(opened)
    driver.initialize([0], [range(8)])
    assert len(driver.prefill(0, list(range(20)), [("prefill-c64", 20)]).tokens) == 1


@pytest.fixture
def copying(tmp_path: Path, checkpoint: Checkpoint) -> Path:
    """A package with rounds."""
    options = dataclasses.replace(OPTIONS, draft_tokens=3)
    write(tmp_path / "copying", checkpoint, options)
    return tmp_path / "copying"


def test_rounds_come_back_as_they_were_planned(copying: Path) -> None:
    opened = open_package(copying)
    rounds = [g for g in opened.catalog.graphs if g.kind is GraphKind.SPECULATIVE]
    assert [g.name for g in rounds] == [
        *("speculative-b1-d0-w1", "speculative-b1-d1-w2-copy", "speculative-b1-d3-w4-copy"),
        *("speculative-b2-d0-w1", "speculative-b2-d1-w2-copy", "speculative-b2-d3-w4-copy"),
    ]
    driver = Driver(opened)
    driver.initialize([0], [range(8)])
    first = driver.prefill(0, list(range(20)), [("prefill-c64", 20)]).tokens[0]
    outputs = driver.round({0: [first, 3]}, "speculative-b2-d3-w4-copy")
    assert 1 <= len(outputs[0].tokens) <= 3


@pytest.fixture
def mixing(tmp_path: Path, checkpoint: Checkpoint) -> Path:
    """A package with mixed programs of both modes."""
    options = dataclasses.replace(OPTIONS, draft_tokens=3, mixed_prefill=True)
    write(tmp_path / "mixing", checkpoint, options)
    return tmp_path / "mixing"


def test_mixed_programs_come_back_as_they_were_planned(mixing: Path) -> None:
    opened = open_package(mixing)
    mixed = [g for g in opened.catalog.graphs if g.kind is GraphKind.MIXED]
    assert [g.name for g in mixed] == [
        *("mixed-b2-w1-c64", "mixed-b2-d0-w1-c64"),
        *("mixed-b2-d1-w2-c64-copy", "mixed-b2-d3-w4-c64-copy"),
    ]
    driver = Driver(opened)
    driver.initialize([0, 1], [range(8), range(8, 16)])
    first = driver.prefill(0, list(range(20)), [("prefill-c64", 20)]).tokens[0]
    prompt = lane(1, prompt_token_ids=np.arange(30, dtype=np.int32), is_final_chunk=True)
    stream = lane(0, query_length=2, copied_token_ids=(first,))
    outputs = driver.run("mixed-b2-d3-w4-c64-copy", prompt, stream)
    assert len(outputs[0].tokens) == 1
    assert 1 <= len(outputs[1].tokens) <= 2


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("prefill_capacity", 0, ""),
        ("prefill_capacity", 96, ""),
        ("prefill_capacity", 128, "name"),
        ("prefill_capacity", 1 << 20, "name"),
        ("batch_capacity", 3, ""),
        ("token_capacity", 2, ""),
        ("speculation_enabled", True, "name"),
    ],
)
def test_an_impossible_mixed_program_is_refused_by_field(
    mixing: Path, field: str, value: object, refused: str
) -> None:
    document = json.loads((mixing / "manifest.json").read_text())
    index = [graph["name"] for graph in document["graphs"]].index("mixed-b2-w1-c64")
    edit(mixing, put("graphs", index, field, value=value))
    with pytest.raises(PackageError) as caught:
        open_package(mixing)
    assert caught.value.field.startswith("graphs")
    assert caught.value.field.endswith(refused)


def test_a_mixed_prompt_past_the_context_is_refused(mixing: Path) -> None:
    document = json.loads((mixing / "manifest.json").read_text())
    index = [graph["name"] for graph in document["graphs"]].index("mixed-b2-w1-c64")
    edit(mixing, put("graphs", index, "prefill_capacity", value=1 << 20))
    edit(mixing, put("graphs", index, "name", value=f"mixed-b2-w1-c{1 << 20}"))
    with pytest.raises(PackageError, match="its prefill_capacity is past the context"):
        open_package(mixing)


def test_a_start_may_leave_the_decode_programs_out(copying: Path) -> None:
    names = [graph.name for graph in open_package(copying).catalog.graphs]
    kept = tuple(name for name in names if not name.startswith("decode"))
    opened = open_package(copying, limits=LoadLimits(graphs=kept))
    assert [program.descriptor.name for program in opened.programs] == list(kept)


@pytest.mark.parametrize(
    ("field", "value", "refused"),
    [
        ("source", "oracle", "source"),
        ("allocation", 3, "allocation"),
        ("allocation", "nobody", "allocation"),
        ("allocation", "device", ""),
        ("source", "learned", "name"),
        ("proposal_depth", 2, ""),
        ("proposal_depth", 7, "name"),
        ("speculation_enabled", False, ""),
        ("token_capacity", 4096, ""),
    ],
)
def test_an_impossible_round_is_refused_by_field(
    copying: Path, field: str, value: object, refused: str
) -> None:
    document = json.loads((copying / "manifest.json").read_text())
    index = [graph["name"] for graph in document["graphs"]].index("speculative-b1-d3-w4-copy")
    edit(copying, put("graphs", index, field, value=value))
    with pytest.raises(PackageError) as caught:
        open_package(copying)
    assert caught.value.field.startswith("graphs")
    assert caught.value.field.endswith(refused)


def test_a_round_that_drafts_is_refused_because_nothing_would_draft(copying: Path) -> None:
    document = json.loads((copying / "manifest.json").read_text())
    index = [graph["name"] for graph in document["graphs"]].index("speculative-b1-d3-w4-copy")
    edit(copying, put("graphs", index, "source", value="learned"))
    edit(copying, put("graphs", index, "name", value="speculative-b1-d3-w4"))
    with pytest.raises(PackageError, match="proposes with a draft head, and the package has none"):
        open_package(copying)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json"),
    "garbage": (lambda p: (p / "manifest.json").write_bytes(b"\x00{garbage"), "manifest.json"),
    "empty": (lambda p: (p / "manifest.json").write_bytes(b""), "manifest.json"),
    "deep": (lambda p: (p / "manifest.json").write_text("[" * 100_000), "manifest.json"),
    "a list": (lambda p: (p / "manifest.json").write_text("[1]"), "format_version"),
    "other json": (lambda p: (p / "manifest.json").write_text("{}"), "format_version"),
    "weights gone": (
        lambda p: (p / "weights.safetensors").unlink(),
        "files.weights.safetensors",
    ),
    "weights truncated": (
        lambda p: (p / "weights.safetensors").write_bytes(
            (p / "weights.safetensors").read_bytes()[:-100]
        ),
        "files.weights.safetensors",
    ),
    "template tampered": (
        lambda p: (p / "chat_template.jinja").write_text("{{ messagez }}"),
        "files.chat_template.jinja",
    ),
    "tokenizer gone": (lambda p: (p / "tokenizer.json").unlink(), "files.tokenizer.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_file_is_refused_by_name(package: Path, fault: str) -> None:
    damage, field = FAULTS[fault]
    damage(package)
    with pytest.raises(PackageError) as caught:
        open_package(package)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def put(*path: str | int, value: object) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return change


def escape(document: dict[str, Any]) -> None:
    document["files"]["../../etc/passwd"] = "0" * 64


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "newer": (put("format_version", value=FORMAT_VERSION + 1), "format_version"),
    "older": (put("format_version", value=0), "format_version"),
    "version text": (put("format_version", value="1"), "format_version"),
    "backend": (put("backend", value="tpu"), "backend"),
    "precision": (put("precision", value="fp8"), "precision"),
    "rows text": (put("pool", "row_count", value="two"), "pool.row_count"),
    "rows zero": (put("pool", "row_count", value=0), "pool.row_count"),
    "rows many": (put("pool", "row_count", value=65), "pool.row_count"),
    "pages": (put("pool", "page_count", value=-1), "pool.page_count"),
    "context": (
        put("pool", "context_length_tokens", value=1 << 20),
        "pool.context_length_tokens",
    ),
    "geometry missing": (
        drop("model", "geometry", "hidden_size"),
        "model.geometry.hidden_size",
    ),
    "geometry zero": (
        put("model", "geometry", "layer_count", value=0),
        "model.geometry.layer_count",
    ),
    "geometry absurd": (
        put("model", "geometry", "vocabulary_size", value=1 << 40),
        "model.geometry.vocabulary_size",
    ),
    "geometry bool": (
        put("model", "geometry", "qk_norm", value=3),
        "model.geometry.qk_norm",
    ),
    "geometry extra": (
        put("model", "geometry", "sliding_window", value=8),
        "model.geometry.sliding_window",
    ),
    "shape lies": (
        put("model", "geometry", "ffn_size", value=128),
        "files.weights.safetensors",
    ),
    "kind": (put("graphs", 0, "kind", value="warp"), "graphs.initialize-b1.kind"),
    "name": (put("graphs", 0, "name", value="other"), "graphs.other.name"),
    "batch": (put("graphs", 0, "batch_capacity", value=0), "graphs.initialize-b1"),
    "graph null": (put("graphs", 1, value=None), "graphs[1]"),
    "twice": (lambda d: d["graphs"].append(d["graphs"][0]), "graphs"),
    "page flood": (put("pool", "page_count", value=1 << 40), "pool.page_count"),
    "prompt": (
        lambda d: next(g for g in d["graphs"] if g["name"] == "prefill-c64").update(
            name="prefill-c9000", token_capacity=9000
        ),
        "graphs.prefill-c9000",
    ),
    "no graphs": (put("graphs", value=[]), "graphs"),
    "path": (escape, "files.../../etc/passwd"),
    "hash": (put("files", "tokenizer.json", value="abc"), "files.tokenizer.json"),
    "size": (drop("sizes_bytes", "tokenizer.json"), "sizes_bytes.tokenizer.json"),
    "tokenizer": (put("tokenizer", "file", value="/etc/passwd"), "tokenizer.file"),
    "template": (
        put("tokenizer", "chat_template", value="none.jinja"),
        "tokenizer.chat_template",
    ),
    "threads": (put("machine", "threads", value=0), "machine.threads"),
    "model": (drop("model"), "manifest.json"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_wrong_field_is_refused_by_name(package: Path, name: str) -> None:
    change, field = EDITS[name]
    edit(package, change)
    with pytest.raises(PackageError) as caught:
        open_package(package)
    assert caught.value.field == field


def test_tampered_weights_of_the_right_size_are_found_when_verifying(package: Path) -> None:
    path = package / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(PackageError, match=r"^files\.weights\.safetensors: .*sha256"):
        open_package(package, verify=True)


def test_a_native_package_of_another_machine_is_refused_by_feature(package: Path) -> None:
    edit(package, put("backend", value="native"))
    edit(package, put("machine", "cpu_features", value=["avx1024"]))
    with pytest.raises(PackageError, match=r"^machine\.cpu_features: .*lacks avx1024"):
        open_package(package)
    edit(package, put("machine", "architecture", value="s390x"))
    with pytest.raises(PackageError, match=r"^machine\.architecture: prepared for s390x"):
        open_package(package)


def test_load_time_options_may_only_reduce(package: Path) -> None:
    keep = ("initialize-b1", "prefill-c16", "decode-b2", "terminal-b1")
    opened = open_package(package, limits=LoadLimits(row_count=1, page_count=9, graphs=keep))
    assert opened.resources.row_count == 1
    assert opened.resources.page_count == 9
    assert {g.name for g in opened.catalog.graphs} == set(keep)

    for limits, field in (
        (LoadLimits(row_count=3), "row_count"),
        (LoadLimits(row_count=0), "row_count"),
        (LoadLimits(page_count=10_000), "page_count"),
        (LoadLimits(graphs=("decode-b64",)), "graphs"),
        (LoadLimits(graphs=("decode-b2",)), "graphs"),
    ):
        with pytest.raises(PackageError) as caught:
            open_package(package, limits=limits)
        assert caught.value.field == field


def test_writing_is_whole_or_not_at_all(tmp_path: Path, checkpoint: Checkpoint) -> None:
    destination = tmp_path / "tiny"
    write(destination, checkpoint)
    before = sha256_of(destination / "manifest.json")

    def interrupted() -> None:
        with package_directory(destination) as directory:
            (directory / "manifest.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sha256_of(destination / "manifest.json") == before
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]

    write(destination, checkpoint)
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]


def test_a_destination_that_is_no_package_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "photos"
    mine.mkdir()
    (mine / "cat.png").write_bytes(b"meow")
    with pytest.raises(PackageError, match=r"^destination: photos exists"), package_directory(mine):
        pytest.fail("the block must not run")
    assert (mine / "cat.png").read_bytes() == b"meow"
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(PackageError, match=r"^destination: "), package_directory(file):
        pytest.fail("the block must not run")


def test_reading_a_manifest_opens_nothing_else(package: Path) -> None:
    (package / "weights.safetensors").unlink()
    manifest = read_manifest(package)
    kinds = {entry.kind for entry in manifest.graphs}
    assert kinds == {"initialize", "prefill", "scored-prefill", "decode", "terminal"}


def test_opening_code_does_not_import_torch() -> None:
    """Importing torch takes longer than opening a native package does."""
    code = "import sys, ignition.package; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_are_stored_bit_for_bit(package: Path, checkpoint: Checkpoint) -> None:
    from ignition.package import read_weights

    stored = read_weights(package / "weights.safetensors")
    for name in dense_shapes(checkpoint.geometry):
        assert np.array_equal(stored[name], checkpoint.float32(name))
