"""`flare chat`: a conversation with a server from a terminal.

Commands begin with a slash; everything else is said to the model. Ctrl-C stops an answer (what
came so far stays in the conversation), Ctrl-D leaves.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from flare.chat_stream import Answer, AnswerError, error_text, stream_answer
from flare.errors import FlareError

HELP = """\
/system TEXT  give the model its instructions (without TEXT: drop them)
/reset        forget the conversation
/history      show the conversation
/help         show this
/quit         leave (also Ctrl-D)"""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_POLL_S = 0.25


def chat(
    url: str = "http://127.0.0.1:8000",
    *,
    model: str | None = None,
    api_key: str | None = None,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    console: Console | None = None,
    read_line: Callable[[], str] | None = None,
    start_timeout_s: float = 120.0,
) -> None:
    """Talk to the server at `url` until the person leaves.

    `model` None takes the first that is served. `read_line` returns what was typed and raises
    EOFError at the end. Raises FlareError when no server answers, it is not ready within
    `start_timeout_s`, or refuses the key or the model.
    """
    console = console or Console(highlight=False)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    timeout = httpx.Timeout(10.0, read=None)
    try:
        base = httpx.URL(_base(url))
        # A proxy of the environment could not reach a server on this machine.
        local = base.host in {"localhost", "127.0.0.1", "::1"}
        http = httpx.Client(base_url=base, headers=headers, timeout=timeout, trust_env=not local)
    except (httpx.InvalidURL, ValueError) as error:
        raise FlareError(f"{url} is not a URL: {error}") from None
    with http:
        _wait_until_ready(http, url, console, start_timeout_s)
        name = _pick_model(http, model)
        body: dict[str, Any] = {"model": name}
        if temperature is not None:
            body["temperature"] = temperature
        if max_tokens is not None:
            body["max_completion_tokens"] = max_tokens
        console.print(f"{name} at {url}; /help shows the commands.", style="dim", markup=False)
        _Conversation(http, console, body, system).run(read_line or _typed(console))


def _base(url: str) -> str:
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/v1")


def _typed(console: Console) -> Callable[[], str]:
    """Read from the terminal, or from a pipe without prompting."""
    prompt = "> " if sys.stdin.isatty() else ""
    return lambda: console.input(prompt, markup=False)


def _wait_until_ready(http: httpx.Client, url: str, console: Console, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with console.status("waiting for the server to be ready"):
        while (state := _health(http, url)) == "starting":
            if time.monotonic() > deadline:
                raise FlareError(f"the server at {url} is still starting after {timeout_s:g} s")
            time.sleep(_POLL_S)
    if state != "ready":
        raise FlareError(f"the server at {url} takes no requests: it is {state}")


def _health(http: httpx.Client, url: str) -> str:
    try:
        response = http.get("/health", timeout=10.0)
    except httpx.ConnectError:
        raise FlareError(
            f"no server answers at {url}; start one with `flare run`, or name another with --url"
        ) from None
    except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
        raise FlareError(f"{url} does not answer as a server: {error}") from None
    try:
        return str(response.json()["status"])
    except (ValueError, KeyError, TypeError):
        # Servers of other makers answer /health in their own way; any success will do.
        return "ready" if response.status_code in {200, 404} else f"status {response.status_code}"


def _pick_model(http: httpx.Client, wanted: str | None) -> str:
    response = http.get("/v1/models", timeout=10.0)
    if response.status_code != 200:
        raise FlareError(f"the server refuses: {error_text(response)}")
    try:
        served = [str(card["id"]) for card in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        raise FlareError("the server's list of models cannot be read") from None
    if not served:
        raise FlareError("the server serves no model")
    if wanted is not None and wanted not in served:
        raise FlareError(f"the model {wanted!r} is not served there; served: {', '.join(served)}")
    return wanted or served[0]


class _Conversation:
    """The messages so far and the commands that act on them."""

    def __init__(
        self, http: httpx.Client, console: Console, body: dict[str, Any], system: str | None
    ) -> None:
        self._http = http
        self._console = console
        self._body = body
        self._system = system
        self._turns: list[dict[str, str]] = []

    def run(self, read_line: Callable[[], str]) -> None:
        """Read lines until the person leaves."""
        while True:
            try:
                line = read_line().strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if line.startswith("/"):
                if self._command(line) == "quit":
                    return
            elif line:
                self._say(line)

    def _command(self, line: str) -> str | None:
        name, _, rest = line[1:].partition(" ")
        match name:
            case "quit" | "exit":
                return "quit"
            case "reset":
                self._turns.clear()
                self._note("The conversation is forgotten.")
            case "system":
                self._system = rest.strip() or None
                self._note("Instructions set." if self._system else "No instructions.")
            case "history":
                for message in self._messages():
                    self._note(f"{message['role']}: {message['content']}")
            case "help":
                self._note(HELP)
            case _:
                self._note(f"There is no command /{name}.\n{HELP}")
        return None

    def _messages(self) -> list[dict[str, str]]:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return system + self._turns

    def _say(self, line: str) -> None:
        answer = Answer(asked_ns=time.monotonic_ns())
        question = {"role": "user", "content": line}
        messages = [*self._messages(), question]
        try:
            pieces = stream_answer(self._http, self._body, messages, answer)
            with contextlib.closing(pieces):
                self._print_pieces(pieces)
        except AnswerError as error:
            self._console.print()
            self._console.print(Text(_printable(str(error)), style="red"))
        except KeyboardInterrupt:
            self._console.print()
            self._note("stopped")
        else:
            self._console.print()
        if answer.texts:
            self._note(answer.measures())
            self._turns += [question, {"role": "assistant", "content": answer.text}]

    def _print_pieces(self, pieces: Iterator[str]) -> None:
        for piece in pieces:
            self._console.print(
                Text(_printable(piece)), end="", soft_wrap=True, overflow="ignore", crop=False
            )

    def _note(self, text: str) -> None:
        self._console.print(Text(_printable(text), style="dim"))


def _printable(text: str) -> str:
    """Keep what a model writes from steering the terminal."""
    return _CONTROL.sub("\ufffd", text)
