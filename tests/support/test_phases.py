"""`make test` leaves no test out."""

from __future__ import annotations

import re

from tests.conftest import ALONE, TESTS


def test_the_makefile_looks_where_tests_may_be_alone() -> None:
    (named,) = re.findall(r"^ALONE := (.*)$", (TESTS.parent / "Makefile").read_text(), re.M)
    assert named.split() == [f"tests/{package}" for package in ALONE]
