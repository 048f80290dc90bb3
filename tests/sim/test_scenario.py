"""Scenario files: what they accept, what they refuse with file and line, how they are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling_sim.run_log import RunLog
from scheduling_sim.scenario import ScenarioError, read_scenario, run_scenario
from scheduling_sim.scenario.expressions import assertion_of, judge
from scheduling_sim.specs import (
    Named,
    RunSpec,
    SpecError,
    named_of,
    options_of,
    platform_of,
    setup_of,
    value_of,
)
from tests.sim.logs import request, run_log

HEAD = "# Prose.\nplatform synthetic\nworkload poisson rate_per_s=2\n"


def logs(spec: RunSpec) -> RunLog:
    """A run that depends on its policy alone."""
    late = 100 if spec.policy.name == "fcfs" else 50
    return run_log(
        request("a-1", deliveries=(late, late + 20), finished=late + 20, tenant="big"),
        request("b", at=2000, deliveries=(2000 + late,), finished=2000 + late, tenant="small"),
    )


def test_a_scenario_is_read_and_judged() -> None:
    text = (
        "# Two policies.\n# More prose.\n\nplatform synthetic rows=8\nworkload poisson\nseed 3\n"
        "run helios arrival_shares=1\nrun fcfs as other\n"
        "# helios is quicker.\n"
        "assert helios.ttft_ms.worst < 0.6 * other.ttft_ms.worst\n"
        "assert other.ttft_ms.worst == 100\n"
        "assert other.gap_ms.worst > 30\n"
    )
    scenario = read_scenario(text, "x.txt")
    assert scenario.prose == "Two policies. More prose."
    assert [run.label for run in scenario.runs] == ["helios", "other"]
    assert scenario.runs[0].spec.policy == Named("helios", {"arrival_shares": 1})
    assert scenario.runs[0].spec.seed == 3
    verdicts = run_scenario(scenario, logs)
    assert [verdict.holds for verdict in verdicts] == [True, True, False]
    assert verdicts[0].place == "x.txt:10"
    assert verdicts[2].detail == "other.gap_ms.worst = 20"


def test_settings_hold_until_they_are_set_again() -> None:
    text = (
        HEAD + "objectives ttft_ms=60\nuntil 5\nrun helios\nfaults late_probability=0.5\n"
        "objectives ttft_ms=10 gap_quantile=0.5\nwarm_up 1\nrun helios as again\n"
        "assert helios.goodput_share > again.goodput_share\n"
    )
    first, second = read_scenario(text, "x").runs
    assert (first.spec.until_s, second.spec.until_s) == (5.0, 5.0)
    assert (first.spec.faults, second.spec.faults) == ({}, {"late_probability": 0.5})
    assert (first.options.objectives.ttft_ms, second.options.objectives.ttft_ms) == (60, 10)
    assert second.options.warm_up_ns == 1_000_000_000
    (verdict,) = run_scenario(read_scenario(text, "x"), logs)
    assert verdict.holds


def test_tenants_and_requests_have_figures_of_their_own() -> None:
    text = (
        HEAD + "run helios\n"
        "assert helios.tenant.big.output_tokens == 2\n"
        "assert helios.request.a_1.worst_gap_ms == 20\n"
        "assert helios.request.b.worst_gap_ms > 0\n"
    )
    verdicts = run_scenario(read_scenario(text, "x"), logs)
    assert [verdict.holds for verdict in verdicts] == [True, True, False]
    assert verdicts[2].detail == "helios.request.b.worst_gap_ms has no value in this run"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x:1: a scenario begins with prose"),
        ("platform synthetic\n", "x:1: a scenario begins with prose"),
        ("# p\n", "x:1: a scenario without a run"),
        ("# p\nplatfrom synthetic\n", "x:2: 'platfrom' is no command; there are platform, "),
        ("# p\nplatform\n", "x:2: platform needs something"),
        ("# p\nplatform a b\n", "x:2: 'b' is not an option; write key=value"),
        ("# p\nplatform a b=1 b=2\n", "x:2: option b is given twice"),
        ("# p\nplatform a=1\n", "x:2: 'a=1' does not begin with a name"),
        ("# p\nseed -1\n", "x:2: seed '-1' is not a whole number"),
        ("# p\nuntil soon\n", "x:2: until 'soon' is not a number of seconds"),
        ("# p\nobjectives speed=1\n", "x:2: objectives have no 'speed'; they have ttft_ms, "),
        ("# p\nobjectives gap_ms=-1\n", "x:2: gap_ms must be positive"),
        ("# p\nobjectives gap_ms=fast\n", "x:2: objective gap_ms is 'fast', not a number"),
        ("# p\nrun helios\n", "x:2: a run needs a platform and a workload"),
        (HEAD + "seed 1\nseed 2\n", "x:5: seed was set at line 4 and never used"),
        (HEAD, "x:2: platform is set and no run below uses it"),
        (HEAD + "run helios\n", "x:4: no assertion looks at run helios"),
        (HEAD + "run helios\nrun helios\n", "x:5: there is a run helios already"),
        (HEAD + "run helios as 2x\n", "x:4: '2x' cannot name a run"),
        (HEAD + "run helios\nassert fcfs.jain > 1\n", "x:5: there is no run 'fcfs' above"),
        (HEAD + "run helios\nassert helios.jain\n", "x:5: .* compares nothing"),
        (HEAD + "run helios\nassert 1 < 2\n", "x:5: .* reads no figure"),
        (HEAD + "run helios\nassert helios.jain is 2\n", "x:5: .* compare with <"),
        (HEAD + "run helios\nassert helios.jain <\n", "x:5: .* is not an assertion"),
        (HEAD + "run helios\nassert open('f').read < 1\n", "x:5: .* does not begin with the name"),
        (HEAD + "run helios\nassert helios.a[0] < 1\n", "x:5: .* is neither a number"),
        (HEAD + "run helios\nassert max(helios.a) < 1\n", "x:5: .* is neither a number"),
        (HEAD + "run helios\nassert 'a' < helios.a\n", "x:5: .* is neither a number"),
        (HEAD + "run helios\nassert helios.a ** 2 < 1\n", "x:5: .* is neither a number"),
        (HEAD + "run helios\nassert True < helios.a\n", "x:5: .* is neither a number"),
    ],
)
def test_what_is_wrong_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_scenario(text, "x")


def test_a_run_of_something_unknown_names_its_line() -> None:
    scenario = read_scenario(HEAD + "run nobody\nassert nobody.jain > 0\n", "x")
    with pytest.raises(ScenarioError, match="x:4: there is no policy 'nobody'"):
        run_scenario(scenario)


@pytest.mark.parametrize(
    ("text", "holds", "detail"),
    [
        ("a.x + 2 * a.y - 1 == 14", True, "a.x + 2 * a.y - 1 = 14"),
        ("-a.x / 2 < 0 <= a.y", True, "-a.x / 2 = -2.5, a.y = 5"),
        ("min(a.x, 3, b.x) != max(1, a.x)", True, "min(a.x, 3, b.x) = 3, max(1, a.x) = 5"),
        ("a.x < a.y < 9", False, "a.x = 5, a.y = 5"),
        ("a.x / (a.x - a.y) > 1", False, "a division by zero"),
        ("a.none > 1", False, "a has no none"),
    ],
)
def test_arithmetic_of_assertions(text: str, holds: bool, detail: str) -> None:
    def figures(run: str, figure: str) -> float:
        if figure == "none":
            raise LookupError(f"{run} has no {figure}")
        return 5.0

    assert judge(assertion_of(text), figures) == (holds, detail)


def test_assertions_know_which_figures_they_read() -> None:
    read = assertion_of("a.x.y < max(b.z, 1) + 2").figures
    assert read == (("a", "x.y"), ("b", "z"))


def test_words_become_values() -> None:
    words = ("1", "1.5", "1e3", "true", "false", "x", "1,2")
    assert [value_of(word) for word in words] == [1, 1.5, 1000.0, True, False, "x", "1,2"]
    assert options_of(["a=1", "b=x=y"]) == {"a": 1, "b": "x=y"}
    assert named_of('trace:"my file.csv" rate=0.5').text == "trace:my file.csv rate=0.5"
    with pytest.raises(SpecError, match="No closing quotation"):
        named_of('"a')


def test_lists_of_numbers_for_platforms() -> None:
    built = platform_of(named_of("synthetic prefills=64,128 widths=4, states=true"))
    names = {graph.name for graph in built.catalog.graphs}
    assert {"prefill-c64", "prefill-c128"} <= names
    assert "prefill-c2048" not in names
    with pytest.raises(SpecError, match="has no option 'slot'"):
        platform_of(named_of("synthetic slot=3"))


def spec(**changes: object) -> RunSpec:
    described: dict[str, object] = {
        "policy": Named("helios"),
        "platform": Named("synthetic"),
        "workload": named_of("poisson duration_s=1"),
        "seed": 5,
    }
    return RunSpec(**(described | changes))  # type: ignore[arg-type]


def test_one_seed_draws_everything() -> None:
    one, same, other = (setup_of(spec(seed=seed)).workload.requests for seed in (5, 5, 6))
    assert one == same != other
    own = spec(seed=6, workload=named_of("poisson duration_s=1 seed=5"))
    assert setup_of(own).workload.requests == one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": Named("heliox")}, "there is no policy 'heliox'; known: helios"),
        ({"policy": Named("helios", {"colour": 1})}, "policy: helios has no option 'colour'"),
        ({"policy": Named("helios", {"output_token_value": -1})}, "output_token_value"),
        ({"platform": Named("abacus")}, "there is no platform 'abacus'"),
        ({"workload": Named("poison")}, "no workload is named 'poison'"),
        ({"workload": Named("poisson", {"rate_per_s": "x"})}, "rate_per_s"),
        ({"faults": {"late": 1}}, "faults: .*late.*; there are late_probability"),
        ({"faults": {"late_probability": 2}}, "late_probability must be 0 to 1"),
        ({"acceptance": Named("magic")}, "magic"),
    ],
)
def test_unknown_names_say_what_there_is(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        setup_of(spec(**changes))


FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
_SLOW = "# slow"


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(
            file,
            id=file.stem,
            marks=[pytest.mark.slow] if _SLOW in file.read_text().splitlines() else [],
        )
        for file in FILES
    ],
)
def test_scenario_files(file: Path) -> None:
    """Field reports as scenarios; a line `# slow` keeps a file out of the fast tests."""
    failed = [
        f"{verdict.place}: {verdict.text} ({verdict.detail})"
        for verdict in run_scenario(read_scenario(file.read_text(), file.name))
        if not verdict.holds
    ]
    assert not failed, "\n".join(failed)
