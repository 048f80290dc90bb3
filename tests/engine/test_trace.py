"""Trace records follow docs/design/trace.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helios.engine.messages import Cancel
from helios.engine.trace import MAX_CANDIDATES, TRACE_VERSION, header_record
from helios.scheduler import PolicyConfig
from tests.engine.world import World, request

DESIGN = Path(__file__).parents[2] / "docs" / "design" / "trace.md"


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    world = World(traced=True)
    for index in range(6):
        world.core.handle(request(f"r{index}", prompt=[3] * (20 * index + 1), max_output_tokens=9))
    for _ in range(8):
        world.turn()
    world.core.handle(Cancel(request_id="r5"))
    world.run()
    return [json.loads(json.dumps(record)) for record in world.records]


def of_type(records: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [record for record in records if record["type"] == name]


def test_every_field_of_a_plan_is_documented_and_every_documented_one_is_there(
    records: list[dict[str, Any]],
) -> None:
    section = DESIGN.read_text().split("## 3.")[1].split("## 4.")[0]
    documented = {
        name.strip("` ")
        for line in section.splitlines()
        if line.startswith("| `")
        for name in line.split("|")[1].split(",")
    }
    for plan in of_type(records, "plan"):
        assert set(plan) - {"type"} == documented
        for candidate in plan["candidates"]:
            assert all(f'"{field}"' in section for field in candidate)
            assert all(f"`{term}`" in section for term in candidate["terms"])


@pytest.mark.parametrize(
    ("name", "section"), [("frame", "## 4."), ("arrival", "## 5."), ("finish", "## 5.")]
)
def test_other_records_are_documented(
    records: list[dict[str, Any]], name: str, section: str
) -> None:
    text = DESIGN.read_text().split(section)[1].split("\n## ")[0]
    found = of_type(records, name)
    assert found
    for record in found:
        assert all(f"`{field}`" in text for field in record if field != "type")
        for lane in record.get("lanes", ()):
            assert all(f'"{field}"' in text for field in lane)


def test_terms_add_up_to_the_score(records: list[dict[str, Any]]) -> None:
    """Section 3.2."""
    reasons = set()
    for plan in of_type(records, "plan"):
        best = plan["candidates"][0]
        assert len(plan["candidates"]) <= MAX_CANDIDATES
        assert (best["graph"], best["score"]) == (plan["graph"], plan["value_rate"])
        assert best["requests"] == [lane["request"] for lane in plan["lanes"]]
        for candidate in plan["candidates"]:
            reasons.add(candidate["reason"])
            total = sum(candidate["terms"].values())
            assert total == pytest.approx(candidate["score"], rel=1e-9)
    assert reasons == {"ordinary", "discovery"}


def test_frames_join_their_plans_and_tell_deliveries(records: list[dict[str, Any]]) -> None:
    plans = {plan["fence"]: plan for plan in of_type(records, "plan")}
    delivered: dict[str, int] = {}
    for frame in of_type(records, "frame"):
        plan = plans.pop(frame["fence"])
        assert frame["finished_ns"] - frame["started_ns"] == frame["device_ns"]
        assert frame["submitted_ns"] >= plan["at_ns"]
        for lane in frame["lanes"]:
            if lane["delivered_ns"] is not None:
                assert lane["delivered_ns"] >= frame["finished_ns"]
                delivered[lane["request"]] = delivered.get(lane["request"], 0) + lane["tokens"]
    assert not plans
    finished = {record["request"]: record for record in of_type(records, "finish")}
    assert finished["r5"]["reason"] == "cancelled"
    for name, tokens in delivered.items():
        if finished[name]["reason"] == "length":
            assert tokens == finished[name]["output_tokens"] == 9


def test_header_names_everything_that_later_records_index() -> None:
    world = World()
    header = header_record(
        model="m",
        catalog=world.model.catalog,
        policy=PolicyConfig(),
        resources=world.model.resources,
        at_ns=5,
        started_unix_ns=None,
    )
    parsed = json.loads(json.dumps(header))
    assert (parsed["type"], parsed["version"]) == ("header", TRACE_VERSION)
    assert [graph["name"] for graph in parsed["graphs"]] == [
        graph.name for graph in world.model.catalog.graphs
    ]
    assert parsed["policy"]["output_token_value"] == 64
    assert parsed["resources"]["row_count"] == world.model.resources.row_count
    text = DESIGN.read_text().split("## 2.")[1].split("## 3.")[0]
    assert all(f"`{field}`" in text for field in parsed if field != "type")


def test_without_a_sink_nothing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(world.scheduler, "explain", None)
    world.core.handle(request("a", max_output_tokens=2))
    world.run()
    assert world.finished("a").reason == "length"
