"""Scenarios: small text files of prose, commands and assertions about simulated runs."""

from scheduling_sim.scenario.reader import Scenario, ScenarioError, read_scenario
from scheduling_sim.scenario.running import Verdict, run_scenario, simulated

__all__ = ["Scenario", "ScenarioError", "Verdict", "read_scenario", "run_scenario", "simulated"]
