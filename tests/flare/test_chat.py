"""`flare chat` against the real HTTP service over a scripted engine."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Iterable

import pytest
from rich.console import Console

from flare.chat import chat
from flare.chat_stream import Answer
from flare.errors import FlareError
from helios.server.config import ServerConfig
from tests.server.live import Live, live, until
from tests.server.scripted import ScriptedBackend


def typing(lines: Iterable[str | Callable[[], object]]) -> Callable[[], str]:
    pending = iter(lines)

    def read_line() -> str:
        for line in pending:
            if isinstance(line, str):
                return line
            line()
        raise EOFError

    return read_line


def talk(server: Live, *lines: str | Callable[[], object], **options: object) -> str:
    out = io.StringIO()
    chat(
        server.url,
        console=Console(file=out, width=100, highlight=False),
        read_line=typing(lines),
        **options,
    )
    return out.getvalue()


def prompts(server: Live) -> list[str]:
    return [
        bytes(token for token in submit.prompt_token_ids if token < 256).decode()
        for submit in server.backend.submitted
    ]


def test_streams_keeps_history_and_measures():
    with live() as server:
        shown = talk(server, "one", "two", "/reset", "three", "/quit", "never said")
        assert shown.count("Hello from the script.") == 3
        assert re.search(r"TTFT \d+ ms, 22 tokens, [\d.]+ tokens/s", shown)
        first, second, third = prompts(server)
        assert first == "user\noneassistant\n"
        assert second == "user\noneassistant\nHello from the script.user\ntwoassistant\n"
        assert third == "user\nthreeassistant\n"


def test_system_and_other_commands():
    with live() as server:
        shown = talk(server, "/system be kind", "a", "/history", "/system", "b", "/wrong", "")
        assert prompts(server)[0] == "system\nbe kinduser\naassistant\n"
        assert prompts(server)[1].startswith("user\na")
        assert "system: be kind" in shown
        assert "assistant: Hello from the script." in shown
        assert "There is no command /wrong." in shown
        assert "/reset" in shown


def test_options_reach_the_server():
    with live() as server:
        talk(server, "a", system="s", temperature=0.5, max_tokens=3, model="scripted")
        submit = server.backend.submitted[0]
        assert submit.sampling.temperature == 0.5
        assert submit.max_output_tokens == 3
        assert prompts(server)[0].startswith("system\ns")


def test_cut_answers_say_so():
    with live() as server:
        assert "cut at the length limit" in talk(server, "a", max_tokens=3)


def test_a_model_cannot_steer_the_terminal():
    with live(ScriptedBackend(reply="a\x1b[2Jb\x07\nc")) as server:
        shown = talk(server, "x")
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "a\ufffd[2Jb\ufffd\nc" in shown


def test_markup_in_answers_is_text():
    with live(ScriptedBackend(reply="[bold]x[/bold]")) as server:
        assert "[bold]x[/bold]" in talk(server, "x")


def test_refused_question_is_not_kept():
    with live() as server:
        shown = talk(server, "x" * 9000, "short")
        assert "8191" in shown
        assert prompts(server) == ["user\nshortassistant\n"]


def test_engine_failure_is_shown():
    with live(ScriptedBackend(fail_after_steps=1)) as server:
        shown = talk(server, "x")
        assert "Hell" in shown
        assert "the engine failed" in shown


def test_waits_while_the_server_starts():
    backend = ScriptedBackend()
    greeting, backend.greeting = backend.greeting, None
    with live(backend) as server:
        server.call(lambda: asyncio.get_running_loop().call_later(0.05, _greet, backend, greeting))
        assert "Hello" in talk(server, "x")


def _greet(backend: ScriptedBackend, greeting: object) -> None:
    backend.greeting = greeting


def test_clear_errors():
    with pytest.raises(FlareError, match=r"no server answers at http://127.0.0.1:1; start one"):
        chat("http://127.0.0.1:1", read_line=typing([]))
    with pytest.raises(FlareError, match="ftp://x does not answer as a server"):
        chat("ftp://x", read_line=typing([]))
    with pytest.raises(FlareError, match="is not a URL"):
        chat("http://x:port", read_line=typing([]))
    starting = ScriptedBackend(greeting=None)
    with live(starting) as server, pytest.raises(FlareError, match="still starting after 0 s"):
        talk(server, start_timeout_s=0)
    with live(config=ServerConfig(api_key="k")) as server:
        with pytest.raises(FlareError, match="an API key is required"):
            talk(server)
        with pytest.raises(FlareError, match="the API key is wrong"):
            talk(server, api_key="nope")
        assert "Hello" in talk(server, "x", api_key="k")
    with live() as server, pytest.raises(FlareError, match="not served there; served: scripted"):
        talk(server, model="other")


def test_an_interrupted_answer_stays_and_stops_the_request():
    backend = ScriptedBackend(reply="x" * 5000, delay_s=0.002)
    with live(backend) as server:
        out = InterruptingOutput()
        console = Console(file=out, width=100, highlight=False)
        chat(server.url, console=console, read_line=typing(["go", "/history"]))
        assert "stopped" in out.getvalue()
        assert re.search(r"assistant: x+", out.getvalue())
        until(lambda: len(backend.cancelled) == 1)


class InterruptingOutput(io.StringIO):
    """Presses Ctrl-C once, when some of the answer has been shown."""

    armed = True

    def write(self, text: str) -> int:
        if self.armed and "xxxx" in text:
            self.armed = False
            raise KeyboardInterrupt
        return super().write(text)


def test_measures_without_output_or_usage():
    assert Answer(asked_ns=0).measures() == "no output"
    assert Answer(asked_ns=0, first_ns=2_000_000, last_ns=2_000_000).measures() == "TTFT 2 ms"


def test_broken_connection_is_told():
    with live() as server:
        shown = talk(server, server.stop, "x")
        assert "the connection broke" in shown
