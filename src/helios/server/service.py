"""What the endpoints share: engine, text, settings, counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from helios.engine.backend import EngineBackend
from helios.engine.messages import Ready, Submit
from helios.server.calls import Admission
from helios.server.choices import SubmitCall
from helios.server.config import ServerConfig
from helios.server.encoding import PromptEncoder
from helios.server.errors import ApiError, shown
from helios.server.http_metrics import HttpMetrics
from helios.server.logprobs import TokenNames
from helios.server.ports import TextModel
from helios.server.shapes import AnswerShape


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that lives as long as the application."""

    backend: EngineBackend
    text: TextModel
    config: ServerConfig
    admission: Admission
    encoder: PromptEncoder
    names: TokenNames
    metrics: HttpMetrics
    created: int
    """Unix time at which the service came up, for model cards."""

    def model_names(self, engine: Ready) -> tuple[str, ...]:
        """Return the names that the model is served under."""
        return self.config.model_names or (engine.model,)

    def check_model(self, model: str, engine: Ready) -> None:
        """Raise ApiError (404) unless the model is served here."""
        names = self.model_names(engine)
        if model not in names:
            raise ApiError(
                404,
                f"the model {shown(model)} is not served here; served: {', '.join(names)}",
                param="model",
                code="model_not_found",
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request that is ready for the engine."""

    submit: SubmitCall
    submits: Sequence[Submit]
    """One per choice."""
    shape: AnswerShape
    stream: bool
    prompt_tokens: int
