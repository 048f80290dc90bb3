"""A server process over the scripted engine, for tests that send it signals."""

from __future__ import annotations

import logging
import sys

from helios.server.app import create_app
from helios.server.config import ServerConfig
from helios.server.serve import bind, run
from tests.server.scripted import ByteText, ScriptedBackend


def main() -> None:
    logging.basicConfig()
    backend = ScriptedBackend(reply="x" * 8000, step_tokens=1, delay_s=0.002)
    listener = bind("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    drain_timeout_s = float(sys.argv[1])
    run(create_app(backend, ByteText(), ServerConfig()), listener, drain_timeout_s=drain_timeout_s)
    print("backend closed" if backend.closed else "backend open", flush=True)


if __name__ == "__main__":
    main()
