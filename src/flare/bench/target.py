"""A server under test: its name in the tables, its address, and how it wants to be asked."""

from __future__ import annotations

import dataclasses
from typing import Literal
from urllib.parse import urlsplit

from flare.bench.errors import BenchError

Endpoint = Literal["text", "chat"]
ROUTES: dict[Endpoint, str] = {"text": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server under test. Raises BenchError for a URL that is not http or https."""

    name: str
    url: str
    """Such as http://127.0.0.1:8000, with or without /v1."""
    model: str | None = None
    """None until the server was asked what it serves."""
    api_key: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            port_is_right = parts.port is None or 0 < parts.port < 65536
        except ValueError:
            port_is_right = False
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_right:
            raise BenchError(
                f"the URL of a server begins with http:// or https:// and names a host, as in "
                f"http://127.0.0.1:8000; {self.url!r} does not"
            )

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return urlsplit(self.url).scheme == "https"

    @property
    def host(self) -> str:
        """Host name to connect to."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port to connect to."""
        return urlsplit(self.url).port or (443 if self.is_tls else 80)

    @property
    def path(self) -> str:
        """Prefix of every route, without a slash at its end and without /v1."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1")

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them; an IPv6 address stands in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def base(self) -> str:
        """The URL that routes such as /metrics are appended to, without credentials."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"

    @property
    def headers(self) -> dict[str, str]:
        """What authorises a request."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def split_pair(text: str, what: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises BenchError, saying that `what` is given so."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise BenchError(f"a server is given as {what}, not {text!r}")
    return name.strip(), value.strip()
