"""Plots of runs, drawn without a display, readable in print and by colour-blind people."""
