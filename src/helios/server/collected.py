"""What one choice has produced so far."""

from __future__ import annotations

import dataclasses

from helios.engine.messages import Delta, Finished, LogprobEntry, PromptLogprobs
from helios.server.wire import FinishReason, Usage


@dataclasses.dataclass(slots=True)
class Collected:
    """The parts of one choice in the order in which they came."""

    texts: list[str] = dataclasses.field(default_factory=list)
    logprobs: list[LogprobEntry] = dataclasses.field(default_factory=list)
    prompt_logprobs: tuple[LogprobEntry, ...] = ()
    output_tokens: int = 0
    finish_reason: FinishReason = "length"
    stop_reason: str | int | None = None

    def add(self, event: Delta | PromptLogprobs | Finished) -> None:
        """Take in one event."""
        if isinstance(event, Delta):
            self.texts.append(event.text)
            self.logprobs.extend(event.logprobs)
            self.output_tokens += len(event.token_ids)
        elif isinstance(event, PromptLogprobs):
            self.prompt_logprobs = event.entries
        else:
            self.finish_reason = finish_reason(event)
            self.stop_reason = event.stop_matched
            self.output_tokens = event.output_tokens


def finish_reason(event: Finished) -> FinishReason:
    """Return why a choice ended; cancelled and failed ones never get here."""
    return "stop" if event.reason == "stop" else "length"


def usage(prompt_tokens: int, output_tokens: int) -> Usage:
    """Return the usage record."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=output_tokens,
        total_tokens=prompt_tokens + output_tokens,
    )
