"""The golden scenario runner: prose, commands and their complete expected output in one text file.

A file is a sequence of blocks separated by blank lines:

    # Prose that says what the next command shows and why.
    command positional key=value
    ----
    expected output, without blank lines

A command is one line, and positional arguments come before named ones. The handler must read every
argument: one that nobody read fails the test, so a misspelt argument cannot silently do nothing.
With `rewrite` the expected output is replaced by the actual one instead of being compared.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

SEPARATOR = "----"


class ScenarioError(Exception):
    """The scenario file itself is wrong; the message names file and line."""


class Arguments:
    """The arguments of one command; remembers which of them were read."""

    def __init__(self, words: list[str]) -> None:
        self._positional = [word for word in words if "=" not in word]
        self._named = dict(word.split("=", 1) for word in words if "=" in word)
        if len(self._positional) + len(self._named) != len(words):
            raise ScenarioError("an argument is given twice")
        self._unread = set(self._positional) | set(self._named)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a named argument."""
        self._unread.discard(name)
        if name in self._named:
            return self._named[name]
        if default is None:
            raise ScenarioError(f"argument {name}= is missing")
        return default

    def number(self, name: str, default: int | None = None) -> int:
        """Return a named integer argument."""
        return int(self.text(name, None if default is None else str(default)))

    def real(self, name: str, default: float | None = None) -> float:
        """Return a named real argument."""
        return float(self.text(name, None if default is None else repr(default)))

    def flag(self, name: str) -> bool:
        """Return whether the positional word `name` is given."""
        self._unread.discard(name)
        return name in self._positional

    def rest(self) -> list[str]:
        """Return all positional words."""
        self._unread -= set(self._positional)
        return list(self._positional)

    def named(self) -> dict[str, str]:
        """Return all named arguments."""
        self._unread -= set(self._named)
        return dict(self._named)

    def named_without_reading(self) -> dict[str, str]:
        """Return all named arguments and leave them unread."""
        return dict(self._named)

    def unread(self) -> list[str]:
        """Return what no handler has read."""
        return sorted(self._unread)


@dataclasses.dataclass
class Block:
    """One command of a scenario with the prose above it and its expected output."""

    prose: list[str]
    command: str
    expected: list[str]
    line: int


Handler = Callable[[str, Arguments], str]


def parse(path: pathlib.Path) -> tuple[list[Block], list[str]]:
    """Return the blocks of a file and the prose that follows the last one."""
    blocks: list[Block] = []
    prose: list[str] = []
    lines = path.read_text().splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        if not line.strip() or line.startswith("#"):
            prose.append(line)
            index += 1
            continue
        block = Block(prose, line.strip(), [], index + 1)
        prose = []
        index += 1
        if index >= len(lines) or lines[index] != SEPARATOR:
            raise ScenarioError(f"{path.name}:{index + 1}: expected {SEPARATOR}")
        index += 1
        while index < len(lines) and lines[index].strip():
            block.expected.append(lines[index])
            index += 1
        blocks.append(block)
    return blocks, prose


def run_file(path: pathlib.Path, handler: Handler, *, rewrite: bool) -> None:
    """Run every block; compare its output, or rewrite the file with what came out."""
    blocks, tail = parse(path)
    for block in blocks:
        where = f"{path.name}:{block.line}: {block.command}"
        name, *words = block.command.split()
        try:
            arguments = Arguments(words)
            actual = handler(name, arguments).splitlines()
        except ScenarioError as error:
            raise ScenarioError(f"{where}: {error}") from error
        if arguments.unread():
            raise ScenarioError(f"{where}: nobody read {', '.join(arguments.unread())}")
        if any(not line.strip() for line in actual):
            raise ScenarioError(f"{where}: output must not hold blank lines")
        if rewrite:
            block.expected = actual
        elif block.expected != actual:
            expected_text, actual_text = "\n".join(block.expected), "\n".join(actual)
            message = f"{where}\n--- expected\n{expected_text}\n--- actual\n{actual_text}"
            raise AssertionError(message)
    if rewrite:
        path.write_text(_format(blocks, tail))


def _format(blocks: list[Block], tail: list[str]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += [*block.prose, block.command, SEPARATOR, *block.expected]
    return "\n".join([*lines, *tail]).rstrip("\n") + "\n"
