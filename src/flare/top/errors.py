"""TopError: why there is no view of a server."""

from __future__ import annotations

from flare.errors import FlareError


class TopError(FlareError):
    """The server is away, or is not one of ours; the message says which."""
