"""`--row-sharing`: rounds of shared target rows in plan, prepare and run, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flare.decode_mode import check_sharing, check_survival
from flare.errors import FlareError
from flare.loaded import Decoding
from flare.options import RowSharing, Speculation
from helios.scheduler import DecodeMode, SpeculationConfig
from ignition.capacity import CapacityOptions, plan_capacity
from ignition.measure import calibrated_seeds
from ignition.package import open_package
from tests.flare.flare_process import running
from tests.flare.test_decode_mode import asked
from tests.flare.test_identity import BODIES
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import Server
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import PROMPTS_FIRST, prepare_tried_first
from tests.ignition.tiny import build

SHARED = "speculative-b8-d7-w8-p16-copy"
OPTIONS = ["--concurrency", "8", "--prefill-capacities", "16,64", "--threads", "1"]
OPTIONS += ["--survival", "--speculation", "copy", "--speculative-token-capacity", "16"]


def shared_programs(**more: Any) -> list[str]:
    fields = {"draft_tokens": 7, "row_sharing": "host", **more}
    options = CapacityOptions(backend="native", precision="int8", **fields)
    plan = plan_capacity(build("llama").checkpoint.geometry, options, machine_memory_bytes=1 << 34)
    return [p.graph.name for p in plan.programs if "-p" in p.graph.name.replace("-prefill", "")]


def test_a_bucket_whose_widest_round_is_too_large_shares_the_capacity() -> None:
    assert [n for n in shared_programs() if n.startswith("spec")] == [
        "speculative-b8-d7-w8-p32-copy",
        "speculative-b16-d7-w8-p32-copy",
    ]
    both = [n for n in shared_programs(learned_tokens=3, head_tokens=40) if n.startswith("spec")]
    assert "speculative-b16-d3-w4-p32" in both
    assert "speculative-b8-d3-w4-p32" not in both
    assert not any(n.startswith("spec") for n in shared_programs(concurrency=4))
    assert not any(n.startswith("spec") for n in shared_programs(row_sharing="off"))
    few = shared_programs(concurrency=64, speculative_token_capacity=16)
    assert [n for n in few if n.startswith("spec")] == [
        "speculative-b4-d7-w8-p16-copy",
        "speculative-b8-d7-w8-p16-copy",
    ], "a bucket of as many requests as there are rows has nothing to share"


def test_with_a_draft_head_every_bucket_of_two_or_more_may_deal_rows_itself() -> None:
    names = shared_programs(learned_tokens=3, head_tokens=40, row_sharing="device")
    assert [name for name in names if name.endswith("device")] == [
        "speculative-b2-d3-w4-p4-device",
        "speculative-b4-d3-w4-p8-device",
        "speculative-b8-d3-w4-p16-device",
        "speculative-b16-d3-w4-p32-device",
    ]
    assert "speculative-b16-d3-w4-p32" in names


def package(*graphs: tuple[str, int, str]) -> Any:
    entries = [
        SimpleNamespace(source=source, packed_capacity=packed, allocation=who)
        for source, packed, who in graphs
    ]
    return SimpleNamespace(graphs=entries)


def decoding(*sources: str, mode: DecodeMode = DecodeMode.ADAPTIVE) -> Decoding:
    width = 4 if mode is DecodeMode.FIXED else 0
    return Decoding(SpeculationConfig(mode=mode, fixed_width=width), sources)


def test_a_package_without_such_rounds_of_its_sources_is_refused() -> None:
    host = asked(Speculation.BOTH, row_sharing=RowSharing.HOST)
    device = asked(Speculation.BOTH, row_sharing=RowSharing.DEVICE)
    copies, dealt = ("copy", 32, "host"), ("learned", 8, "device")
    both = decoding("copy", "learned")
    check_sharing(package(("copy", 0, "host"), copies), host, both)
    check_sharing(package(copies, dealt), device, both)
    check_sharing(package(), asked(Speculation.COPY), both)
    for graphs, request, found in (
        ([("copy", 0, "host")], host, both),
        ([("learned", 32, "host")], host, decoding("copy")),
        ([copies], device, both),
    ):
        with pytest.raises(FlareError, match="again with `flare prepare --row-sharing "):
            check_sharing(package(*graphs), request, found)
    with pytest.raises(FlareError, match="needs --speculation-mode adaptive"):
        check_sharing(package(dealt), device, decoding("learned", mode=DecodeMode.FIXED))


def test_options_without_effect_are_refused() -> None:
    geometry, needs = build("llama").checkpoint.geometry, "--row-sharing needs --speculation copy"
    off = asked(Speculation.OFF, row_sharing=RowSharing.HOST)
    copying = asked(Speculation.COPY, row_sharing=RowSharing.DEVICE)
    with pytest.raises(FlareError, match=needs):
        off.plan(geometry)
    with pytest.raises(FlareError, match=needs):
        check_sharing(package(), off, decoding())
    for refused in (
        lambda: copying.plan(geometry),
        lambda: check_sharing(package(("learned", 8, "device")), copying, decoding("copy")),
    ):
        with pytest.raises(FlareError, match="--row-sharing device needs --speculation learned"):
            refused()


def test_rounds_that_tell_survival_are_prepared_and_asked_for_by_option() -> None:
    request = asked(Speculation.COPY, survival=True)
    plan = request.plan(build("llama").checkpoint.geometry)
    for program in plan.programs:
        graph = program.graph
        assert graph.reports_survival == (graph.proposal_depth > 0)
        assert ("survival" in [spec.name for spec in program.buffers]) == graph.reports_survival
    silent, telling = (
        SimpleNamespace(graphs=[SimpleNamespace(reports_survival=told)]) for told in (False, True)
    )
    check_survival(telling, request)
    check_survival(silent, asked(Speculation.COPY))
    with pytest.raises(FlareError, match="again with `flare prepare --survival`"):
        check_survival(silent, request)
    with pytest.raises(FlareError, match="--survival needs --speculation"):
        asked(Speculation.OFF, survival=True).plan(build("llama").checkpoint.geometry)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("sharing")
    model = write_tiny_directory(base / "tiny")
    options = [*OPTIONS, "--row-sharing", "host"]
    return prepare_tried_first(model, options, base / "package")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler")
def test_a_package_keeps_the_shared_rows_of_its_programs(prepared) -> None:
    entries = json.loads((prepared / "manifest.json").read_text())["graphs"]
    (entry,) = [entry for entry in entries if entry["name"] == SHARED]
    assert entry["packed_capacity"] == 16
    assert entry["reports_survival"]
    assert "16 target rows shared among them" in entry["purpose"]
    opened = open_package(prepared)
    assert {graph.name: graph.rows for graph in opened.catalog.graphs}[SHARED] == 16
    assert opened.cost_seeds_ns[SHARED] > 0
    assert SHARED in calibrated_seeds(opened)
    opened.close()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler")
def test_answers_are_those_of_a_server_without_speculation(prepared, tmp_path) -> None:
    found, loaded, programs = {}, {}, {}
    for mode in (["--speculation", "off"], ["--row-sharing", "host"], []):
        name = "-".join(mode)
        with running([str(prepared), *mode, *PROMPTS_FIRST], tmp_path / f"log{name}") as (url, _):
            server = Server(url)
            found[name] = [*server.ask_all(BODIES[:60], 8), *server.ask_together()]
            programs[name] = server.programs()
            server.client.close()
        loaded[name] = (tmp_path / f"log{name}").read_text()
    expected = found.pop("--speculation-off")
    assert all(answers == expected for answers in found.values())
    assert "speculative-d7-w8-p16-copy-b(4 8)" in loaded["--row-sharing-host"]
    assert "p16" not in loaded[""]
    assert SHARED in programs["--row-sharing-host"]
    assert SHARED not in programs[""]
