"""The plots of a measurement, drawn with the simulator's: distributions, and figures by round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from matplotlib.ticker import MaxNLocator

from flare.bench.comparison import by_round, runs_of
from flare.bench.figures import FIGURES, SAMPLES, sample_ms
from flare.bench.rounds import Outcome
from flare.bench.scenario_files import NamedScenario
from scheduling_sim.metrics.distribution import Floats
from scheduling_sim.report.plots.by_parameter import Line, parameter_figure
from scheduling_sim.report.plots.cdf import Sample, cdf_figure
from scheduling_sim.report.plots.figure import Plot

MOST_CURVES: Final = 8
"""More curves in one plot than the palette has colours tell nothing."""
_DRAWN: Final = ("ttft_ms", "gap_ms")
_LEAST_VALUES: Final = 4
"""A distribution of fewer values is a table."""


def plots(outcome: Outcome) -> Iterator[Plot]:
    """Yield the plots that have something to show."""
    for named in outcome.settings.scenarios:
        for sample in _DRAWN:
            yield from _distributions(outcome, named, sample)
    if outcome.settings.rounds > 1:
        for named in outcome.settings.scenarios:
            for figure in named.scenario.headline:
                yield from _by_round(outcome, named, figure)


def _distributions(outcome: Outcome, named: NamedScenario, sample: str) -> Iterator[Plot]:
    samples = []
    for one in outcome.settings.contenders[:MOST_CURVES]:
        values = _values(outcome, one.name, named.name, sample)
        if values.size >= _LEAST_VALUES:
            samples.append(Sample(one.name, values))
    if samples:
        title = SAMPLES[sample].title
        figure = cdf_figure(samples, f"{named.scenario.title}: {title}", f"{title}, ms")
        caption = f"{named.scenario.title}: {title} of all rounds together; a marker is the worst."
        yield Plot(f"{named.name}-{sample.removesuffix('_ms')}", caption, figure)


def _values(outcome: Outcome, server: str, scenario: str, sample: str) -> Floats:
    runs = runs_of(outcome, server, scenario)
    return np.concatenate([np.zeros(0), *(sample_ms(run.records, sample) for run in runs)])


def _by_round(outcome: Outcome, named: NamedScenario, figure: str) -> Iterator[Plot]:
    meaning, lines = FIGURES[figure], []
    for one in outcome.settings.contenders[:MOST_CURVES]:
        values = by_round(outcome, one.name, named.name, figure)
        if values:
            places = tuple(float(number) for number in values)
            lines.append(Line(one.name, places, tuple(values.values())))
    if any(len(line.places) > 1 for line in lines):
        title = f"{named.scenario.title}: {meaning.title}"
        unit = f"{meaning.title}, {meaning.unit}" if meaning.unit else meaning.title
        drawn = parameter_figure(lines, title, "round", unit)
        drawn.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
        caption = f"{title} in every round: how much of a difference is noise."
        yield Plot(f"{named.name}-{figure.replace('.', '-')}-by-round", caption, drawn)
