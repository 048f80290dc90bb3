"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import dataclasses
import itertools
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from flare.errors import FlareError
from ignition.round_shapes import (
    DEFAULT_DRAFT_TOKENS,
    DEFAULT_LEARNED_TOKENS,
    DEFAULT_TOKEN_CAPACITY,
)

DEFAULT_MODEL: Final = "smollm2-135m"
DEFAULT_CONCURRENCY: Final = 16
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b?|b)?", re.IGNORECASE)
_POWERS: Final = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


PRECISION_QUALITY: Final = {
    "int8": "int8 has 1.006 x the perplexity of fp32 and its most likely token in 96 of 100 places",
    "fp32": "fp32 is the reference that the other figures are measured against, and slower",
}
"""Measured on SmolLM2-135M-Instruct and 2,192 tokens of text (docs/decisions/0006)."""


class Precision(StrEnum):
    """Serving precisions (docs/design/programs.md section 4)."""

    INT8 = "int8"
    FP32 = "fp32"


class Backend(StrEnum):
    """Ways to prepare a program; `auto` takes the best one that this machine can."""

    AUTO = "auto"
    NATIVE = "native"
    EAGER = "eager"
    CUDA = "cuda"


class Preset(StrEnum):
    """Named scheduling policies."""

    BALANCED = "balanced"
    THROUGHPUT = "throughput"


class Speculation(StrEnum):
    """Where proposals of output tokens come from."""

    OFF = "off"
    COPY = "copy"
    LEARNED = "learned"
    BOTH = "both"

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of proposals, as catalogs and manifests name them."""
        if self is Speculation.BOTH:
            return ("copy", "learned")
        return () if self is Speculation.OFF else (self.value,)


class RowSharing(StrEnum):
    """Who decides how many of a round's target rows each request gets."""

    OFF = "off"
    HOST = "host"
    DEVICE = "device"


class SpeculationMode(StrEnum):
    """Who decides how many proposals a round verifies."""

    ADAPTIVE = "adaptive"
    FIXED = "fixed"


def size_bytes(text: str) -> int:
    """Read a size such as 512MiB, 2G or 1048576 (powers of 1024). Raises FlareError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise FlareError(f"{text!r} is not a size; write 512MiB or 2GiB")
    power = _POWERS[(match[2] or "b")[0].lower()]
    size = int(float(match[1]) * 1024**power)
    if size < 1:
        raise FlareError(f"a size must be positive, not {text!r}")
    return size


def capacity_list(text: str, option: str) -> tuple[int, ...]:
    """Read an increasing list such as 1,2,4,8. Raises FlareError naming the option."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise FlareError(f"{option}: {text!r} is not a list of numbers such as 1,2,4") from error
    if numbers[0] < 1 or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise FlareError(f"{option}: {text!r} must be positive and increasing")
    return tuple(numbers)


ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A known name, a GGUF file, a Hugging Face directory, or a prepared package."
    ),
]
_PREPARING = "What is prepared"
PrecisionOption = Annotated[
    Precision | None,
    typer.Option(
        rich_help_panel=_PREPARING,
        help="int8 or fp32 (default: int8 where native programs can be had). On the default model "
        f"{PRECISION_QUALITY['int8']}.",
    ),
]
BackendOption = Annotated[
    Backend,
    typer.Option(
        rich_help_panel=_PREPARING,
        help="native: compiled for this machine; eager: PyTorch, slow, no compiler; cuda: a GPU.",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_PREPARING,
        help="Budget for weights, cache and buffers, such as 2GiB (default: what the plan needs).",
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        rich_help_panel=_PREPARING,
        help=f"Requests that can run at the same time (default: {DEFAULT_CONCURRENCY}).",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1, rich_help_panel=_PREPARING, help="Compute threads (default: one per usable core)."
    ),
]
MixedPrefillOption = Annotated[
    bool,
    typer.Option(
        "--mixed-prefill/--no-mixed-prefill",
        rich_help_panel=_PREPARING,
        help="Prepare (and run) programs that consume a prompt's chunk and generate for running "
        "requests in one step.",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=16,
        rich_help_panel=_PREPARING,
        help="Longest prompt plus output, in tokens (default: the model's own).",
    ),
]
BucketsOption = Annotated[
    str | None,
    typer.Option(
        "--request-buckets",
        rich_help_panel=_PREPARING,
        help="Batch capacities of the decode graphs, such as 1,2,4,8,16 (default: powers of two).",
    ),
]
CapacitiesOption = Annotated[
    str | None,
    typer.Option(
        "--prefill-capacities",
        rich_help_panel=_PREPARING,
        help="Prompt capacities of the prefill graphs, such as 16,64,256 (default: by the plan).",
    ),
]
_SPECULATION = "Speculation"
SpeculationOption = Annotated[
    Speculation | None,
    typer.Option(
        rich_help_panel=_SPECULATION,
        help="Propose tokens and check several at once; the output stays the same, token by token. "
        "copy: what followed the same words before, so that answers which repeat their prompt come "
        "up to several times faster; learned: what a draft head or a smaller model proposes; both "
        "(default: learned with --draft, else copy with native programs and off with others).",
    ),
]
DraftOption = Annotated[
    Path | None,
    typer.Option(
        "--draft",
        rich_help_panel=_SPECULATION,
        help="What makes learned proposals: the file of a draft head (default: the one that comes "
        "with flare, or that `flare train-draft` has left in the cache), or a smaller model with "
        "the same tokenizer, such as smaller-model.gguf or a Hugging Face directory.",
    ),
]
SpeculationModeOption = Annotated[
    SpeculationMode,
    typer.Option(
        rich_help_panel=_SPECULATION,
        help="adaptive: the scheduler picks the width of every step; fixed: every step verifies "
        "up to --draft-tokens, which is there to compare with.",
    ),
]
DraftTokensOption = Annotated[
    int | None,
    typer.Option(
        "--draft-tokens",
        min=1,
        rich_help_panel=_SPECULATION,
        help="Most proposals of a request at once; programs are prepared for powers of two of "
        f"target rows up to it (default: {DEFAULT_DRAFT_TOKENS} copied, "
        f"{DEFAULT_LEARNED_TOKENS} learned).",
    ),
]
TokenCapacityOption = Annotated[
    int | None,
    typer.Option(
        "--speculative-token-capacity",
        min=2,
        rich_help_panel=_SPECULATION,
        help="Most target rows of all requests in one program "
        f"(default: {DEFAULT_TOKEN_CAPACITY}, or what one request needs).",
    ),
]
RowSharingOption = Annotated[
    RowSharing,
    typer.Option(
        "--row-sharing",
        rich_help_panel=_SPECULATION,
        help="Prepare (and run) rounds whose requests share target rows. host: the scheduler deals "
        "--speculative-token-capacity of them by what was accepted before, where so many requests "
        "run that not all can have the widest round; device: programs of learned proposals also "
        "deal them themselves, for two requests or more, by the draft head's confidence in each: "
        "half of what the widest round has, at most that capacity.",
    ),
]
SurvivalOption = Annotated[
    bool | None,
    typer.Option(
        "--survival/--no-survival",
        rich_help_panel=_SPECULATION,
        help="Prepare rounds that also tell the scheduler the chance of every prefix of proposals, "
        "which says more of sampled requests than what was drawn once; some percent of their "
        "rounds' time.",
    ),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackageOptions:
    """What a command line says of a package: to prepare it, to plan it, or to serve it."""

    precision: PrecisionOption = None
    backend: BackendOption = Backend.AUTO
    memory: MemoryOption = None
    concurrency: ConcurrencyOption = None
    threads: ThreadsOption = None
    context: ContextOption = None
    request_buckets: BucketsOption = None
    prefill_capacities: CapacitiesOption = None
    mixed_prefill: MixedPrefillOption = False
    speculation: SpeculationOption = None
    draft: DraftOption = None
    draft_tokens: DraftTokensOption = None
    speculative_token_capacity: TokenCapacityOption = None
    row_sharing: RowSharingOption = RowSharing.OFF
    survival: SurvivalOption = None
