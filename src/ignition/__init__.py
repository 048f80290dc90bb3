"""Ignition: loads a model, plans and prepares fixed-shape programs, writes and opens packages."""
