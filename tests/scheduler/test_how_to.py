"""The how-to's code runs, block after block, as it stands on the page."""

from __future__ import annotations

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "how-to" / "drive-the-scheduler.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[int, str]]:
    """Every Python block of the page with the line that it starts on."""
    text = PAGE.read_text()
    return [(text[: m.start(1)].count("\n") + 1, m.group(1)) for m in BLOCK.finditer(text)]


def test_every_block_runs_in_order() -> None:
    """A newcomer who types the page in gets what it claims: the claims are its assertions."""
    namespace: dict[str, object] = {}
    claims = 0
    for line, source in blocks():
        # The padding makes a failure point at the page's own line.
        code = compile("\n" * (line - 1) + source, str(PAGE), "exec")
        exec(code, namespace)
        claims += source.count("assert ")
    assert claims >= 20


def test_a_wrong_claim_would_fail() -> None:
    """The blocks are executed with their assertions, not only compiled."""
    line, source = blocks()[0]
    assert line > 1
    with pytest.raises(AssertionError):
        exec(compile(source + "\nassert not COST_MS", str(PAGE), "exec"), {})


def test_the_page_uses_the_public_names_only() -> None:
    """Nobody needs a private name, or anything but our package, to drive it."""
    for _, source in blocks():
        assert not re.search(r"\._[a-z]", source)
        imports = re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE)
        assert all(name in ("helios.scheduler", "numpy") for name in imports), imports
