"""FlareError: what a command says on one line when it cannot do what was asked."""

from __future__ import annotations


class FlareError(Exception):
    """The command cannot be carried out as asked; the message is for the person who typed it."""
