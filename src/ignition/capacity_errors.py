"""What is wrong with options that cannot be planned."""

from __future__ import annotations


class CapacityError(ValueError):
    """The options cannot be planned; the message names the option and what would fit."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option
