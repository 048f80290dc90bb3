"""EngineSettings: everything that an engine process is started with; picklable as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from helios.engine.ports import DetokenizerFactory, PreparedModel
from helios.runtime.grammars import GrammarCompiler
from helios.scheduler import PolicyConfig, SpeculationConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What the engine tells its clients about the model, and what admission needs of it."""

    name: str
    """The name that the API serves it under."""
    vocabulary_size: int
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens; they stop every request that does not ignore them."""
    backend: str
    """native, eager or cuda."""
    precision: str
    """int8 or fp32."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How to open and run an engine.

    The factories run inside the engine process, so they must be importable: module-level
    functions, or functools.partial of such with picklable arguments.
    """

    open_model: Callable[[], PreparedModel]
    open_detokenizers: Callable[[], DetokenizerFactory]
    model: ModelIdentity
    open_grammars: Callable[[], GrammarCompiler] | None = None
    """Opens what constrained output needs, on a thread; None refuses constrained requests."""
    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    speculation: SpeculationConfig = dataclasses.field(default_factory=SpeculationConfig)
    """How decoders generate. Outside the ordinary mode proposals are copied for programs that take
    copies; the model must have graphs of the mode."""
    draft_survivals: tuple[float, ...] = ()
    """How often the first 1, 2, ... proposals of the model's draft head are expected to be all
    accepted; empty: nobody knows, or there is no head."""
    waiting_limit: int = 1024
    """Requests that may wait for a row; one more is refused with `queue_full`."""
    trace_path: Path | None = None
    """Where to write the trace (docs/design/trace.md); None writes none."""
    ready_timeout_s: float = 120.0
    """How long opening the model may take before the start counts as failed."""
    restart_limit: int = 5
    """Failures in a row after which the engine is given up."""
    restart_delay_s: float = 0.1
    """Pause before the first restart; doubles with every failure in a row, up to 10 s."""
