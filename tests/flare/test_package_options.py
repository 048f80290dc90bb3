"""Every option of `flare run` on a prepared package: it holds, takes less of it, or is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from flare.command_line import run_command
from flare.commands import run as run_module
from flare.compose import engine_settings
from flare.engine_side import open_model
from flare.errors import FlareError
from flare.loaded import Loading
from flare.loading import loading_of
from flare.options import (
    Backend,
    PackageOptions,
    Precision,
    RowSharing,
    Speculation,
    SpeculationMode,
)
from helios.engine.manifest import DraftEntry, GraphEntry
from helios.scheduler import DecodeMode
from ignition.capacity import CapacityOptions, plan_capacity
from ignition.capacity_errors import CapacityError
from ignition.checkpoint import Checkpoint
from ignition.package_manifest import read_manifest
from ignition.package_writer import package_directory, write_package
from ignition.sources import read_source, resolve
from ignition.weight_shapes import dense_shapes
from tests.flare.flare_process import running
from tests.flare.tiny_directory import write_tiny_directory

ADAPTIVE, FIXED = SpeculationMode.ADAPTIVE, SpeculationMode.FIXED
PAGE = Path(__file__).parents[2] / "docs/how-to/packages.md"
PREPARED = CapacityOptions(
    backend="eager",
    precision="fp32",
    concurrency=8,
    context_length_tokens=256,
    prefill_capacities=(16, 64, 128),
    scored_capacities=(64,),
    draft_tokens=7,
    mixed_prefill=True,
    row_sharing="host",
)


def write(path: Path, checkpoint: Checkpoint, draft: DraftEntry | None = None, **more: Any) -> Path:
    options = dataclasses.replace(PREPARED, **more)
    plan = plan_capacity(checkpoint.geometry, options, machine_memory_bytes=16 << 30)
    weights = {name: checkpoint.float32(name) for name in dense_shapes(checkpoint.geometry)}
    with package_directory(path) as directory:
        write_package(
            directory,
            plan=plan,
            checkpoint=checkpoint,
            weights=weights,
            library=None,
            threads=1,
            draft=draft,
        )
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    model = write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny")
    return read_source(resolve(str(model)))


@pytest.fixture(scope="module")
def package(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("packages") / "copying", checkpoint)


@pytest.fixture(scope="module")
def plain(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = {"draft_tokens": 0, "mixed_prefill": False, "row_sharing": "off"}
    return write(tmp_path_factory.mktemp("packages") / "plain", checkpoint, **more)


@pytest.fixture(scope="module")
def both(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with copied and learned proposals; its head is nobody's, and it is never opened."""
    entry = DraftEntry(
        sha256=hashlib.sha256(b"a head").hexdigest(),
        target_sha256=checkpoint.sha256,
        token_count=40,
    )
    path = tmp_path_factory.mktemp("packages") / "both"
    more = {"learned_tokens": 3, "head_tokens": 40, "mixed_prefill": False, "row_sharing": "device"}
    return write(path, checkpoint, entry, **more)


def load(package: Path, mode: SpeculationMode = ADAPTIVE, **options: Any) -> Loading:
    return loading_of(str(package), PackageOptions(**options), mode)


def graphs_of(loading: Loading, *kinds: str) -> list[GraphEntry]:
    return [graph for graph in loading.manifest.graphs if graph.kind in kinds]


def rows_of(graph: GraphEntry) -> int:
    return graph.packed_capacity or graph.batch_capacity * graph.token_capacity


def test_without_options_a_package_is_served_as_it_was_prepared(package: Path) -> None:
    found, whole = load(package), read_manifest(package)
    assert found.manifest.pool == whole.pool
    assert found.manifest.machine == whole.machine
    assert found.decoding.sources == ("copy",)
    left_out = {graph.name for graph in whole.graphs} - {g.name for g in found.manifest.graphs}
    assert left_out
    for name in left_out:
        assert name.startswith(("decode-", "mixed-")) or "-p32-" in name
    assert {g.batch_capacity for g in graphs_of(found, "terminal")} == {1, 2, 4, 8}


ROUNDS, PROMPTS = ("speculative", "mixed"), ("prefill", "mixed")
REDUCTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "--concurrency": (
        {"concurrency": 3},
        lambda it: (
            it.manifest.pool.row_count == 3
            and {g.batch_capacity for g in graphs_of(it, "initialize", "speculative")} == {1, 2, 4}
            and it.manifest.pool.page_count == 3 * 16
        ),
    ),
    "--context": (
        {"context": 100},
        lambda it: (
            it.manifest.pool.context_length_tokens == 100
            and it.manifest.pool.page_count == 8 * 7
            and {g.token_capacity for g in graphs_of(it, "prefill")} == {16, 64}
        ),
    ),
    "--request-buckets": (
        {"request_buckets": "2,8"},
        lambda it: (
            {g.batch_capacity for g in graphs_of(it, "initialize", "terminal", *ROUNDS)} == {2, 8}
        ),
    ),
    "--prefill-capacities": (
        {"prefill_capacities": "16,64", "mixed_prefill": True},
        lambda it: (
            {g.token_capacity for g in graphs_of(it, "prefill")} == {16, 64}
            and {g.prefill_capacity for g in graphs_of(it, "mixed")} == {64}
        ),
    ),
    "--mixed-prefill": ({"mixed_prefill": True}, lambda it: graphs_of(it, "mixed")),
    "--speculation": (
        {"speculation": Speculation.OFF},
        lambda it: graphs_of(it, "decode") and not graphs_of(it, *ROUNDS),
    ),
    "--draft-tokens": (
        {"draft_tokens": 5, "mixed_prefill": True},
        lambda it: {g.proposal_depth for g in graphs_of(it, *ROUNDS)} == {0, 1, 3},
    ),
    "--speculative-token-capacity": (
        {"speculative_token_capacity": 8, "mixed_prefill": True},
        lambda it: (
            max(rows_of(g) for g in graphs_of(it, *ROUNDS) if g.proposal_depth) == 8
            and {g.batch_capacity for g in graphs_of(it, *ROUNDS)} == {1, 2, 4, 8}
        ),
    ),
    "--row-sharing": (
        {"row_sharing": RowSharing.HOST},
        lambda it: [g.packed_capacity for g in graphs_of(it, "speculative") if g.packed_capacity],
    ),
    "--threads": ({"threads": 3}, lambda it: it.manifest.machine.threads == 3),
    "--backend": ({"backend": Backend.EAGER}, lambda it: it.manifest.backend == "eager"),
    "--precision": ({"precision": Precision.FP32}, lambda it: it.manifest.precision == "fp32"),
    "--memory": (
        {"memory": "3MiB"},
        lambda it: 16 <= it.manifest.pool.page_count < 8 * 16,
    ),
    "--survival": ({"survival": False}, lambda it: graphs_of(it, "speculative")),
}


@pytest.mark.parametrize("option", REDUCTIONS)
def test_what_is_asked_for_within_a_package_is_loaded_and_opens(package: Path, option: str) -> None:
    options, holds = REDUCTIONS[option]
    found = load(package, **options)
    assert holds(found)
    opened = open_model(found.directory, 1, found.limits)
    pool = found.manifest.pool
    assert opened.resources.row_count == pool.row_count
    assert opened.resources.page_count == pool.page_count
    assert opened.resources.context_length_tokens == pool.context_length_tokens
    assert {graph.name for graph in opened.catalog.graphs} == {
        graph.name for graph in found.manifest.graphs
    }
    # Every program has a start of its estimate, whatever was measured here.
    assert all(value > 0 for value in opened.cost_seeds_ns.values())
    opened.close()


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "--concurrency": ({"concurrency": 9}, "rows for 8 requests"),
    "--context": ({"context": 257}, "a context of 256 tokens"),
    "--request-buckets": ({"request_buckets": "1,3,8"}, "only 1,2,4,8"),
    "--prefill-capacities": ({"prefill_capacities": "16,32"}, "only 16,64,128"),
    "--draft-tokens": ({"draft_tokens": 8}, "programs for at most 7 copied proposals"),
    "--speculative-token-capacity": (
        {"speculative_token_capacity": 64},
        "rounds of at most 32 target rows (none of 8 requests with 8 each)",
    ),
    "--backend": ({"backend": Backend.NATIVE}, "eager programs"),
    "--precision": ({"precision": Precision.INT8}, "weights in fp32"),
}


@pytest.mark.parametrize("option", REFUSALS)
def test_more_than_a_package_has_is_refused_with_what_would_give_it(
    package: Path, option: str
) -> None:
    options, has = REFUSALS[option]
    with pytest.raises(FlareError) as caught:
        load(package, **options)
    message = str(caught.value)
    (value,) = [str(getattr(value, "value", value)) for value in options.values()]
    assert message.startswith(f"{option} {value}: the package has {has}; prepare it again")
    assert f"`flare prepare tiny {option} {value}`" in message


def test_options_that_contradict_each_other_are_refused(package: Path, plain: Path) -> None:
    with pytest.raises(CapacityError, match="the largest is 4, which leaves the 8 rows"):
        load(package, request_buckets="1,2,4")
    assert load(package, request_buckets="1,2,4", concurrency=4).manifest.pool.row_count == 4
    with pytest.raises(FlareError, match="capacity 8: the package has no programs for proposals"):
        load(plain, speculative_token_capacity=8)
    with pytest.raises(FlareError, match="--draft-tokens: the package has no programs"):
        load(plain, draft_tokens=3)
    with pytest.raises(FlareError, match="--draft-tokens needs --speculation"):
        load(package, speculation=Speculation.OFF, draft_tokens=3)


def test_a_budget_is_kept_or_refused(package: Path, plain: Path, checkpoint, tmp_path) -> None:
    """What is enough changes nothing; what would hold more pages than there are is more."""
    assert load(package, memory="8GiB").manifest.pool.page_count == 8 * 16
    with pytest.raises(CapacityError, match="--memory: 1 MiB is too little"):
        load(package, memory="1MiB")
    bounded = write(tmp_path / "bounded", checkpoint, memory_bytes=3 << 20)
    has = read_manifest(bounded).pool.page_count
    assert 16 <= has < 8 * 16
    assert load(bounded, memory="3MiB").manifest.pool.page_count == has
    with pytest.raises(FlareError, match=f"--memory 1GiB: the package has {has} pages .* no more"):
        load(bounded, memory="1GiB")
    assert load(bounded, memory="3MiB", concurrency=1).manifest.pool.page_count == 16


def test_fewer_rows_of_shared_rounds_are_no_shared_rounds(package: Path) -> None:
    with pytest.raises(FlareError, match="no rounds whose requests share target rows"):
        load(package, row_sharing=RowSharing.HOST, draft_tokens=3)
    for capacity, bucket in ((16, 4), (40, 8)):
        with pytest.raises(FlareError, match=f"none of {bucket} requests that share {capacity}"):
            load(package, row_sharing=RowSharing.HOST, speculative_token_capacity=capacity)
    assert load(package, speculative_token_capacity=40).decoding.sources == ("copy",)


def test_the_smallest_chunks_stay_in_a_context_that_is_shorter_than_they_are(
    plain: Path,
) -> None:
    found = load(plain, context=20, prefill_capacities="64")
    assert [g.token_capacity for g in graphs_of(found, "prefill", "scored-prefill")] == [64, 64]
    opened = open_model(found.directory, 1, found.limits)
    assert opened.cost_seeds_ns["prefill-c64"] > 0
    opened.close()


def test_depths_are_bounded_by_source(both: Path) -> None:
    found = load(both, draft_tokens=2)
    assert found.decoding.sources == ("copy", "learned")
    deepest = {g.source: g.proposal_depth for g in graphs_of(found, "speculative")}
    assert deepest == {"none": 0, "copy": 1, "learned": 1}
    with pytest.raises(FlareError, match="at most 3 learned proposals"):
        load(both, draft_tokens=5)
    copying = load(both, draft_tokens=5, speculation=Speculation.COPY)
    assert max(g.proposal_depth for g in graphs_of(copying, "speculative")) == 3
    shared = load(both, row_sharing=RowSharing.DEVICE)
    assert any(g.allocation == "device" for g in graphs_of(shared, "speculative"))


def test_a_draft_is_the_packages_own(both: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.safetensors"
    head.write_bytes(b"a head")
    assert load(both, draft=head).decoding.sources == ("learned",)
    head.write_bytes(b"another")
    with pytest.raises(FlareError, match="prepare it again with `flare prepare --draft`"):
        load(both, draft=head)


def test_a_fixed_width_is_one_that_there_is(package: Path) -> None:
    """Its depth names one program; without --draft-tokens it is the deepest that is left."""
    for options, width in (({}, 8), ({"draft_tokens": 3}, 4), ({"speculation": "copy"}, 8)):
        more = {"speculation": Speculation.COPY} if "speculation" in options else options
        found = load(package, FIXED, **more)
        assert found.decoding.speculation.mode is DecodeMode.FIXED
        assert found.decoding.speculation.fixed_width == width
    assert load(package, FIXED, speculative_token_capacity=4).decoding.speculation.fixed_width == 4
    with pytest.raises(FlareError, match="programs for 1, 3, 7 proposals, none for 5"):
        load(package, FIXED, draft_tokens=5)


def test_mixed_programs_of_a_fixed_width_are_refused_where_there_are_none(
    package: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Those of two rows and of width one are there, and a fixed width runs neither."""
    found = load(package, FIXED, mixed_prefill=True, draft_tokens=3)
    assert {graph.token_capacity for graph in graphs_of(found, "mixed")} == {4}
    deep = write(tmp_path / "deep", checkpoint, draft_tokens=15)
    narrow = {"speculative_token_capacity": 8}
    for path, options, tokens in ((deep, {}, 15), (package, narrow, 7)):
        assert graphs_of(load(path, mixed_prefill=True, **options), "mixed")
        with pytest.raises(FlareError, match=f"no mixed programs of {tokens} proposals"):
            load(path, FIXED, mixed_prefill=True, **options)


def test_what_rounds_tell_is_as_prepared(package: Path, checkpoint, tmp_path) -> None:
    telling = write(tmp_path / "telling", checkpoint, survival=True)
    for options in ({}, {"survival": True}):
        assert any(graph.reports_survival for graph in load(telling, **options).manifest.graphs)
    with pytest.raises(FlareError, match="--no-survival: the package's rounds tell"):
        load(telling, survival=False)
    with pytest.raises(FlareError, match="--survival: the package's rounds do not tell"):
        load(package, survival=True)


def test_the_page_of_packages_has_a_row_for_every_option_of_run() -> None:
    documented = re.findall(r"^\| `(--[a-z-]+)", PAGE.read_text(), re.MULTILINE)
    options = []
    for name, parameter in inspect.signature(run_module.run).parameters.items():
        declared = [
            text
            for each in getattr(parameter.annotation, "__metadata__", ())
            for text in (getattr(each, "default", None), *(each.param_decls or ()))
            if isinstance(text, str) and text.startswith("--")
        ]
        found = declared[0].split("/")[0] if declared else f"--{name.replace('_', '-')}"
        options.append(found)
    options.remove("--model")
    # The fields of the policy share a row: they say nothing of the package.
    single = [name for name in options if not name.startswith(("--scheduler-", "--mtp-"))]
    assert sorted(documented) == sorted([*single, "--scheduler-policy"])


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--mtp-adaptive-verification-alpha", "adaptive_verification_alpha"),
        ("--mtp-population-weight", "population_weight"),
        ("--scheduler-gap-objective-ms", "gap_objective_ms"),
        ("--scheduler-output-token-value", "output_token_value"),
    ],
)
def test_a_policy_on_the_command_line_arrives_in_the_engine(
    package: Path, option: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `flare run` hands to the engine process is what its scheduler is made of."""
    taken = []

    def take(loading: Loading, listener: object, options: Any, **_: object) -> None:
        del listener
        taken.append(engine_settings(loading, options))

    monkeypatch.setattr(run_module, "serve_package", take)
    assert run_command(["run", str(package), "--port", "0", option, "1.75"]) == 0
    assert run_command(["run", str(package), "--port", "0"]) == 0
    assert [getattr(settings.policy, field) == 1.75 for settings in taken] == [True, False]


@pytest.mark.slow
def test_a_reduced_package_serves_within_what_was_asked_for(package: Path, tmp_path: Path) -> None:
    options = ["--concurrency", "2", "--context", "64", "--draft-tokens", "3", "--threads", "1"]
    with running([str(package), *options], tmp_path / "log") as (url, _):
        log = (tmp_path / "log").read_text()
        assert "2 requests at a time, context 64 tokens, 8 pages" in log
        assert "speculative-d3-w4-copy-b(1 2)" in log
        assert "d7" not in log
        body = {"model": "tiny", "prompt": "ab" * 10, "max_tokens": 30, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 30, answer
        body["prompt"] = "ab" * 40
        refused = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert refused.status_code == 400
        assert "at most 63 fit the context" in refused.text
