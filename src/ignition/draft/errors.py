"""The one error of draft heads: their files, their targets, their training."""

from __future__ import annotations


class DraftError(Exception):
    """A draft head, or a training of one, that cannot be used as asked.

    The message names the file and the field, what was found and what would be right.
    """
