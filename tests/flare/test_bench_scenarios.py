"""Scenarios: what ships can be read, what is wrong is named with file, line and what is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flare.bench.errors import BenchError
from flare.bench.figures import FIGURES
from flare.bench.load_plan import LoadPlan, load_plan, warm_up_plan
from flare.bench.scenario import Scenario
from flare.bench.scenario_files import (
    GROUPS,
    parse_scenario,
    scenarios_of,
    shipped_names,
    shipped_text,
)

GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/bench.md"
GOOD = """title = "x"
requests = 6
arrivals = { kind = "poisson", rate_per_s = 50 }
prompt = { tokens = "uniform:30:90" }
output = { tokens = 8 }
"""


def parse(text: str) -> Scenario:
    return parse_scenario(text, "mine.toml")


def test_every_shipped_scenario_and_group_can_be_read_and_planned() -> None:
    for named in scenarios_of([*shipped_names(), *GROUPS]):
        plan = load_plan(named.scenario, 1, named.name)
        assert plan.requests
        assert named.scenario.about
        assert plan.work > 0
        assert warm_up_plan(named.scenario, 1).requests
    assert [one.name for one in scenarios_of(["quick"])] == list(GROUPS["quick"])


def test_a_scenario_named_twice_is_run_once() -> None:
    assert len(scenarios_of(["streams-4", "quick", "streams-4"])) == len(GROUPS["quick"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("requests = 6", "request = 6", "mine.toml:2: request: no such key; did you mean requests"),
        ("tokens = 8", "token = 8", "mine.toml:5: output.token: no such key; did you mean tokens"),
        (
            "rate_per_s = 50",
            "rate = 50",
            "mine.toml:3: arrivals.rate: no such key; there are kind, rate_per_s",
        ),
        ("rate_per_s = 50", "rate_per_s = 0", "mine.toml:3: arrivals.rate_per_s: .*greater than 0"),
        ('"poisson"', '"fish"', "mine.toml:3: arrivals: .*'closed'"),
        ("uniform:30:90", "about:9", "mine.toml:4: prompt.tokens: length rule 'about:9' is none"),
        ("uniform:30:90", "uniform:9:3", "mine.toml:4: prompt.tokens: low 9 is above high 3"),
        ('{ tokens = "uniform:30:90" }', "{}", "mine.toml:4: prompt: prompt.tokens is needed"),
        ("requests = 6", "requests = 'x'", "mine.toml:2: requests: .*integer"),
        ("requests = 6", "requests = ", "mine.toml: this is not TOML: .*line 2"),
        ("requests = 6\n", "", "mine.toml: requests: field required"),
        (
            "tokens = 8",
            'tokens = 8, json_schema = { type = "array" }',
            "mine.toml:5: output: json_schema needs exact = false",
        ),
        ("tokens = 8", "tokens = 8, json_schema = 3", "mine.toml:5: output.json_schema: .*dict"),
        (
            'title = "x"',
            'title = "x"\nheadline = ["ttft_ms.p98"]',
            "mine.toml:2: headline: there is no figure 'ttft_ms.p98'; did you mean ttft_ms.p9",
        ),
        (
            '{ kind = "poisson", rate_per_s = 50 }',
            '{ kind = "closed", streams = 9 }',
            "mine.toml: 9 streams cannot share 6 requests",
        ),
        (
            '{ kind = "poisson", rate_per_s = 50 }',
            '{ kind = "closed", streams = 2 }\nduration_s = 3',
            "duration_s belongs to open arrivals",
        ),
        ("output =", "meeting = { tokens = 99 }\noutput =", "a meeting needs closed arrivals"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(BenchError, match=re.escape(message).replace(r"\.\*", ".*")):
        parse(GOOD.replace(old, new))


def test_several_findings_are_counted() -> None:
    with pytest.raises(BenchError, match="2 more"):
        parse(GOOD.replace("requests = 6", "a = 1\nb = 2\nrequests = 0"))


def test_unknown_names_and_files_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"'stream-4' \(did you mean streams-4"):
        scenarios_of(["stream-4"])
    with pytest.raises(BenchError, match="cannot read the scenario"):
        scenarios_of([str(tmp_path / "none.toml")])
    with pytest.raises(BenchError, match="--list"):
        scenarios_of([])
    (tmp_path / "own.toml").write_bytes(b"\xff")
    with pytest.raises(BenchError, match="UTF-8"):
        scenarios_of([str(tmp_path / "own.toml")])


def test_a_file_of_ones_own_begins_with_a_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(shipped_text("bursts"))
    (named,) = scenarios_of([str(own)])
    assert named.name == "own"
    assert named.scenario == scenarios_of(["bursts"])[0].scenario
    own.rename(tmp_path / "bursts.toml")
    scenarios_of(["bursts", str(tmp_path / "bursts.toml")])
    (tmp_path / "bursts.toml").write_text(GOOD)
    with pytest.raises(BenchError, match="two scenarios are named bursts"):
        scenarios_of(["bursts", str(tmp_path / "bursts.toml")])


def seeds(plan: LoadPlan) -> list[int]:
    return [request.wish.seed for request in plan.requests]


def test_the_same_seed_gives_the_same_plan_and_rounds_differ_in_prompts_alone() -> None:
    scenario = parse(GOOD)
    first = load_plan(scenario, 7, "x", 1)
    assert first == load_plan(scenario, 7, "x", 1)
    second = load_plan(scenario, 7, "x", 2)
    assert not set(seeds(first)) & set(seeds(second))
    assert [r.at_ns for r in first.requests] == [r.at_ns for r in second.requests]
    assert [r.wish.tokens for r in first.requests] == [r.wish.tokens for r in second.requests]
    assert [r.at_ns for r in load_plan(scenario, 8, "x", 1).requests] != [
        r.at_ns for r in first.requests
    ]


def test_arrivals_are_as_described() -> None:
    def times_ms(arrivals: str, more: str = "") -> list[float]:
        text = GOOD.replace('{ kind = "poisson", rate_per_s = 50 }', f"{arrivals}\n{more}")
        return [(r.at_ns or 0) / 1e6 for r in load_plan(parse(text), 1).requests]

    assert times_ms('{ kind = "bursts", size = 4, every_s = 0.5 }') == [0, 0, 0, 0, 500, 500]
    assert times_ms('{ kind = "evenly", rate_per_s = 10 }') == [100, 200, 300, 400, 500, 600]
    assert times_ms('{ kind = "evenly", rate_per_s = 10 }', "duration_s = 0.35") == [100, 200, 300]
    assert len(times_ms('{ kind = "gamma", rate_per_s = 10, cv = 3 }')) == 6
    closed = GOOD.replace('{ kind = "poisson", rate_per_s = 50 }', '{kind="closed", streams=2}')
    assert {request.at_ns for request in load_plan(parse(closed), 1).requests} == {None}


def test_the_first_span_of_arrivals_is_warm_up() -> None:
    text = GOOD.replace('"poisson", rate_per_s = 50', '"evenly", rate_per_s = 10')
    plan = load_plan(parse(text + "warm_up_s = 0.25\n"), 1)
    assert [request.is_warm_up for request in plan.requests] == [True, True, *[False] * 4]


def test_groups_of_requests_share_prefixes() -> None:
    prompt = "prompt = { tokens = 20, shared_tokens = 40, shared_groups = 2 }"
    scenario = parse(GOOD.replace('prompt = { tokens = "uniform:30:90" }', prompt))
    wishes = [request.wish for request in load_plan(scenario, 1).requests]
    assert wishes[0].shared_seed == wishes[2].shared_seed != wishes[1].shared_seed
    assert len({wish.seed for wish in wishes}) == 6
    # A prompt that would be shorter than its prefix gets a few words of its own.
    assert all((wish.tokens or 0) > 40 for wish in wishes)


def test_the_guide_names_every_figure_scenario_and_group() -> None:
    text = GUIDE.read_text()
    for name in (*shipped_names(), *GROUPS):
        assert f"`{name}`" in text, name
    for figure in FIGURES:
        family = figure.split(".")[0] if figure.split(".")[0].endswith("_ms") else figure
        assert f"`{family}" in text, figure


def test_the_examples_of_the_guide_are_scenarios() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        parse(block)
