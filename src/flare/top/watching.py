"""Asks a server for its metrics again and again, and shows the last view while it is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import httpx

from flare.top.errors import TopError
from flare.top.reading import Reading, Window, read_metrics
from flare.top.view import View, view_of

_ANSWER_S: Final = 5.0
_SHOWN_LETTERS: Final = 120


class Frame(NamedTuple):
    """What there is to show."""

    view: View | None
    """None until the server has answered once."""
    trouble: str = ""
    """Why the view is not up to date."""


class Server:
    """A server whose metrics are read."""

    def __init__(self, url: str, api_key: str | None) -> None:
        base = url.rstrip("/").removesuffix("/v1").removesuffix("/metrics")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            parsed = httpx.URL(base)
        except httpx.InvalidURL as error:
            raise TopError(f"{url!r} is not a URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise TopError(f"a server's URL is like http://127.0.0.1:8000, not {url!r}")
        self.url = base
        self._client = httpx.Client(
            headers=headers,
            timeout=_ANSWER_S,
            trust_env=False,
            verify=parsed.scheme == "https",
        )

    def read(self) -> Reading:
        """Return the metrics of now. Raises TopError."""
        try:
            answer = self._client.get(f"{self.url}/metrics")
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            raise TopError(f"no server answers at {self.url} ({words})") from error
        if answer.status_code in (401, 403):
            raise TopError(f"{self.url} wants an API key: --api-key or FLARE_API_KEY")
        if answer.status_code != 200:
            text = " ".join(answer.text.split())[:_SHOWN_LETTERS]
            raise TopError(f"{self.url}/metrics answers {answer.status_code}: {text}")
        return read_metrics(answer.text, time.monotonic())


def frames(
    read: Callable[[], Reading],
    *,
    interval_s: float,
    window_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Frame]:
    """Yield a frame per interval for ever; a server that is away makes a frame of trouble."""
    window, view, away_since = Window(window_s), None, None
    while True:
        begin = clock()
        try:
            window.add(read())
        except TopError as error:
            away_since = begin if away_since is None else away_since
            trouble = f"{error}; {begin - away_since:.0f} s so far" if view else str(error)
            yield Frame(view, trouble)
        else:
            away_since, view = None, view_of(window)
            yield Frame(view)
        sleep(max(0.0, interval_s - (clock() - begin)))
