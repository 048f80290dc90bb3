"""Helios: prepared-graph scheduling, the engine loop around it, and an OpenAI-compatible server."""

from helios._version import __version__

__all__ = ["__version__"]
