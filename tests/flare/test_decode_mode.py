"""Which decode mode a package is served in: what was asked for, what it has programs for."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from flare.decode_mode import check_draft, decode_mode, served_sources
from flare.errors import FlareError
from flare.options import Backend, PackageOptions, Speculation, SpeculationMode
from flare.request import PackageRequest, package_request
from helios.scheduler import DecodeMode, SpeculationConfig
from tests.flare.test_run import HAS_COMPILER

PLAIN = SimpleNamespace(graphs=[SimpleNamespace(source="none", token_capacity=1)])
ROUNDS = SimpleNamespace(
    graphs=[
        SimpleNamespace(source="none", token_capacity=1),
        *[SimpleNamespace(source="copy", token_capacity=width) for width in (2, 4, 8, 2, 4)],
    ]
)
ADAPTIVE, FIXED = SpeculationMode.ADAPTIVE, SpeculationMode.FIXED
COPY, OFF = Speculation.COPY, Speculation.OFF


def asked(speculation: Speculation | None, backend: str = "eager", **more: Any) -> PackageRequest:
    fields = {"concurrency": 4, "threads": 1, **more}
    return package_request(
        PackageOptions(backend=Backend(backend), speculation=speculation, **fields)
    )


def mode_of(package: Any, request: PackageRequest, mode: SpeculationMode) -> SpeculationConfig:
    return decode_mode(package, request, mode, served_sources(package, request, mode))


@pytest.mark.parametrize(
    ("package", "speculation", "mode", "expected"),
    [
        (ROUNDS, None, ADAPTIVE, SpeculationConfig(mode=DecodeMode.ADAPTIVE)),
        (ROUNDS, COPY, ADAPTIVE, SpeculationConfig(mode=DecodeMode.ADAPTIVE)),
        (ROUNDS, OFF, ADAPTIVE, SpeculationConfig()),
        (PLAIN, None, ADAPTIVE, SpeculationConfig()),
        (PLAIN, OFF, ADAPTIVE, SpeculationConfig()),
        (ROUNDS, None, FIXED, SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=8)),
        (ROUNDS, COPY, FIXED, SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=8)),
    ],
)
def test_what_is_asked_for_and_there_is_served(package, speculation, mode, expected) -> None:
    assert mode_of(package, asked(speculation), mode) == expected


def test_a_fixed_width_is_that_of_the_draft_tokens() -> None:
    found = mode_of(ROUNDS, asked(COPY, draft_tokens=3), FIXED)
    assert found == SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=4)
    with pytest.raises(FlareError, match="programs for 1, 3, 7 proposals, none for 5"):
        mode_of(ROUNDS, asked(COPY, draft_tokens=5), FIXED)


@pytest.mark.parametrize(
    ("package", "speculation", "mode", "message"),
    [
        (PLAIN, COPY, ADAPTIVE, "no programs for copied proposals"),
        (PLAIN, None, FIXED, "--speculation-mode fixed needs --speculation copy"),
        (ROUNDS, OFF, FIXED, "--speculation-mode fixed needs --speculation copy"),
    ],
)
def test_what_is_not_there_is_refused(package, speculation, mode, message) -> None:
    with pytest.raises(FlareError, match=message):
        mode_of(package, asked(speculation), mode)


@pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler")
def test_a_plain_package_is_served_where_native_programs_would_have_had_rounds() -> None:
    """The default asks for nothing: only `flare prepare` and `flare run MODEL` act on it."""
    request = asked(None, "native")
    assert request.draft_tokens == 7
    assert mode_of(PLAIN, request, ADAPTIVE) == SpeculationConfig()
    with pytest.raises(FlareError, match="no programs for copied"):
        mode_of(PLAIN, request, FIXED)


LEARNED, BOTH = Speculation.LEARNED, Speculation.BOTH
DRAFTING = SimpleNamespace(
    graphs=[SimpleNamespace(source="learned", token_capacity=width) for width in (2, 4)]
)
EVERYTHING = SimpleNamespace(graphs=[*ROUNDS.graphs, *DRAFTING.graphs])


@pytest.mark.parametrize(
    ("package", "speculation", "expected"),
    [
        (PLAIN, None, ()),
        (ROUNDS, None, ("copy",)),
        (DRAFTING, None, ("learned",)),
        (EVERYTHING, None, ("copy", "learned")),
        (EVERYTHING, OFF, ()),
        (EVERYTHING, COPY, ("copy",)),
        (EVERYTHING, LEARNED, ("learned",)),
        (EVERYTHING, BOTH, ("copy", "learned")),
    ],
)
def test_a_package_is_served_with_the_sources_that_were_asked_for(
    package, speculation, expected
) -> None:
    request = asked(speculation)
    assert served_sources(package, request, ADAPTIVE) == expected
    mode = DecodeMode.ADAPTIVE if expected else DecodeMode.ORDINARY
    assert mode_of(package, request, ADAPTIVE).mode is mode


@pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler")
def test_draft_tokens_alone_ask_for_no_source() -> None:
    """The sources stay the package's own; without any there is nothing to bound."""
    request = asked(None, "native", draft_tokens=3)
    for package, expected in ((DRAFTING, ("learned",)), (EVERYTHING, ("copy", "learned"))):
        assert served_sources(package, request, ADAPTIVE) == expected
    assert mode_of(DRAFTING, request, FIXED).fixed_width == 4
    with pytest.raises(FlareError, match="programs for 1, 3 proposals, none for 2"):
        mode_of(DRAFTING, asked(None, "native", draft_tokens=2), FIXED)
    with pytest.raises(FlareError, match="--draft-tokens: the package has no programs"):
        mode_of(PLAIN, request, ADAPTIVE)


def test_every_source_has_a_depth_of_its_own() -> None:
    request = asked(BOTH)
    assert (request.draft_tokens, request.learned_tokens) == (7, 3)
    assert asked(BOTH, draft_tokens=5).depth_of("learned") == 5
    assert asked(LEARNED).sources == ("learned",)
    found = mode_of(DRAFTING, asked(LEARNED), FIXED)
    assert found == SpeculationConfig(mode=DecodeMode.FIXED, fixed_width=4)


@pytest.mark.parametrize(
    ("package", "speculation", "mode", "message"),
    [
        (ROUNDS, LEARNED, ADAPTIVE, "no programs for learned proposals.*--speculation learned"),
        (DRAFTING, BOTH, ADAPTIVE, "no programs for copied proposals"),
        (EVERYTHING, BOTH, FIXED, "fixed needs one source"),
        (EVERYTHING, None, FIXED, "fixed needs one source"),
    ],
)
def test_sources_that_are_not_there_are_refused(package, speculation, mode, message) -> None:
    with pytest.raises(FlareError, match=message):
        mode_of(package, asked(speculation), mode)


def test_a_named_head_asks_for_learned_proposals_and_must_be_the_packages(tmp_path) -> None:
    head = tmp_path / "head.safetensors"
    head.write_bytes(b"a head")
    request = asked(None, draft=head)
    assert (request.sources, request.is_speculation_asked) == (("learned",), True)
    for speculation in (OFF, COPY):
        with pytest.raises(FlareError, match="--draft needs --speculation learned or both"):
            asked(speculation, draft=head)
    held = hashlib.sha256(b"a head").hexdigest()
    check_draft(SimpleNamespace(draft=SimpleNamespace(sha256=held)), request)
    check_draft(SimpleNamespace(draft=None), asked(COPY))
    another = SimpleNamespace(sha256="1" * 64, model=None)
    model = SimpleNamespace(sha256="1" * 64, model=SimpleNamespace(name="small"))
    for draft, name in ((None, "no draft"), (another, "head 1111"), (model, "model small 1111")):
        with pytest.raises(FlareError, match=f"the package has .*{name}.*prepare it again"):
            check_draft(SimpleNamespace(draft=draft), request)
