"""What an operator can set about the HTTP service, and the fixed limits of the API.

Everything that a client can make large has its limit here.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

MAX_STOP_STRINGS: Final = 64
"""Stop strings per request. Each is searched at every token of the request."""
MAX_STOP_LENGTH: Final = 1024
"""Characters per stop string."""
MAX_CHOICES: Final = 128
"""`n`, and choices of one request in all (prompts times `n`)."""
MAX_PROMPTS: Final = 128
"""Prompts in one completion request."""
MAX_MESSAGES: Final = 4096
"""Messages in one chat request."""
MAX_TENANT_LENGTH: Final = 256
"""Characters of `user`."""
MAX_TOKENS_FIELD: Final = 2**31 - 1
"""Largest `max_tokens` that is a number; what does not fit the context is cut to it."""

_ORIGIN = re.compile(r"\*|https?://[^/\s]+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP service. Raises ValueError naming the field."""

    model_names: tuple[str, ...] = ()
    """Names that the model is served under; empty: the name that the engine reports."""
    api_key: str | None = None
    """When set, everything but /health wants `Authorization: Bearer <key>`."""
    allow_origins: tuple[str, ...] = ()
    """Origins that browsers may call from (CORS); empty: none, `*`: all."""
    max_body_bytes: int = 4 * 1024 * 1024
    """Larger bodies are refused with 413."""
    max_buffered_bytes: int = 256 * 1024 * 1024
    """Bodies of all requests that are being answered, together; beyond it 503."""
    max_requests: int = 2048
    """Inference requests inside the HTTP process, queued ones included; beyond it 503."""
    body_timeout_s: float = 30.0
    """A body that takes longer to arrive is refused with 408."""
    write_timeout_s: float = 60.0
    """A client that takes nothing of its stream for this long is cut off and its request
    cancelled."""
    retry_after_s: int = 1
    """Retry-After of 503 answers."""
    stream_buffer_events: int = 64
    """Events per request that may wait for a slow reader before the engine link is left unread."""
    inline_text_length: int = 2000
    """Longer texts are tokenised on a thread, so that they do not hold up running streams."""

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes",
            "max_buffered_bytes",
            "max_requests",
            "body_timeout_s",
            "write_timeout_s",
            "retry_after_s",
            "stream_buffer_events",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("api_key must be printable ASCII")
        if self.api_key == "":
            raise ValueError("api_key must not be empty; leave it out to serve without one")
        for origin in self.allow_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"allow_origins: {origin!r} is not an origin such as https://host")
        if any(not name for name in self.model_names):
            raise ValueError("model_names must not hold an empty name")
