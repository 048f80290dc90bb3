"""Scenario: what a server is loaded with, as a small TOML file describes it.

    title = "Chats"
    requests = 60
    arrivals = { kind = "poisson", rate_per_s = 2 }
    prompt = { tokens = "lognormal:200:0.8" }
    output = { tokens = "uniform:16:128" }

Every key is checked, and an unknown one is named with the nearest that exists.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from flare.bench.prompts import PromptKind
from flare.bench.target import Endpoint
from scheduling_sim.workload.lengths import length_rule

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
MOST_STREAMS: Final = 4096


def _checked_length(text: int | str) -> int | str:
    length_rule(str(text))
    return text


Length = Annotated[int | str, AfterValidator(_checked_length)]
"""Tokens: a number, `uniform:LOW:HIGH`, `lognormal:MEDIAN:SIGMA` or `pareto:MINIMUM:SHAPE`."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Closed(_Part):
    """Streams that each send their next request when the last one ended."""

    kind: Literal["closed"]
    streams: Annotated[int, Field(ge=1, le=MOST_STREAMS)]
    think_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Pause of a stream between two requests."""


class Poisson(_Part):
    """Independent arrivals; they never wait for the server."""

    kind: Literal["poisson"]
    rate_per_s: Positive


class Evenly(_Part):
    """Arrivals at equal distances."""

    kind: Literal["evenly"]
    rate_per_s: Positive


class Gamma(_Part):
    """Arrivals in irregular clumps: gaps with coefficient of variation `cv`; 1 is Poisson."""

    kind: Literal["gamma"]
    rate_per_s: Positive
    cv: Annotated[float, Field(gt=0, le=20)]


class Bursts(_Part):
    """`size` requests at one instant, every `every_s` seconds."""

    kind: Literal["bursts"]
    size: Annotated[int, Field(ge=1, le=MOST_STREAMS)]
    every_s: Positive


Arrivals = Annotated[Closed | Poisson | Evenly | Gamma | Bursts, Field(discriminator="kind")]


class PromptSection(_Part):
    """What is asked."""

    kind: PromptKind = "prose"
    tokens: Length | None = None
    """None is for questions alone, which then come as they are."""
    shared_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Length of a prefix that requests of one group have in common, within `tokens`."""
    shared_groups: Count = 1
    """Requests take turns among so many different prefixes."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokens is None and (self.kind != "questions" or self.shared_tokens):
            raise ValueError("prompt.tokens is needed (only questions without a prefix go without)")
        return self


class OutputSection(_Part):
    """What is ordered."""

    tokens: Length = 128
    exact: bool = True
    """Ask the server to go on after its end token (`ignore_eos`), so that lengths are known."""
    json_schema: dict[str, Any] | None = None
    """Every answer is JSON of this schema (`response_format`), or the beginning of one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.json_schema is not None and self.exact:
            raise ValueError("json_schema needs exact = false: an answer ends where its value ends")
        return self


class MeetingSection(_Part):
    """A long prompt that arrives when every stream has had so many chunks."""

    tokens: Length
    after_chunks: Count = 12
    output_tokens: Count = 64


class Objectives(_Part):
    """What a user would accept; requests that got it are goodput."""

    ttft_ms: Positive | None = None
    gap_ms: Positive | None = None
    """For every gap of a request."""


class Scenario(_Part):
    """One load, and which of its figures tables show first."""

    title: Annotated[str, Field(min_length=1, max_length=60)]
    about: str = ""
    endpoint: Endpoint = "text"
    requests: Count
    """That are sent; with `warm_up_s`, the first of them are not counted."""
    duration_s: Positive | None = None
    """Open arrivals end after this span, even when `requests` have not been sent."""
    warm_up_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    arrivals: Arrivals
    prompt: PromptSection
    output: OutputSection = OutputSection()
    meeting: MeetingSection | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    objectives: Objectives = Objectives()
    headline: tuple[str, ...] = ("output_tokens_per_s", "ttft_ms.p50", "gap_ms.p99")
    """Figures that are compared first; see docs/how-to/bench.md for their names."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        closed = isinstance(self.arrivals, Closed)
        if closed and self.duration_s is not None:
            raise ValueError("duration_s belongs to open arrivals; closed ones end with requests")
        if closed and self.warm_up_s:
            raise ValueError("warm_up_s belongs to open arrivals")
        if isinstance(self.arrivals, Closed) and self.requests < self.arrivals.streams:
            raise ValueError(
                f"{self.arrivals.streams} streams cannot share {self.requests} requests; "
                "order at least one each"
            )
        if self.meeting is not None and not (
            isinstance(self.arrivals, Closed) and self.arrivals.streams == self.requests
        ):
            raise ValueError("a meeting needs closed arrivals with one request per stream")
        return self
