"""Plot: a drawn figure, its file name and its caption."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure


class Plot(NamedTuple):
    """One figure of a report."""

    name: str
    """File name without its ending."""
    caption: str
    figure: Figure
