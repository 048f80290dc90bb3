"""Simulation of the production scheduler and engine loop on a virtual clock."""
