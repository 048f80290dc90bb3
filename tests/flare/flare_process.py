"""A real `flare run` in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx


@contextlib.contextmanager
def running(arguments: list[str], log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `flare run` in a process; yields its URL once it is ready."""
    command = [sys.executable, "-m", "flare", "run", "--port", "0", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ.copy())
        try:
            yield _ready_url(process, log), process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _ready_url(process: subprocess.Popen[bytes], log: Path) -> str:
    while process.poll() is None:
        found = re.search(r"opening on (http://\S+)", log.read_text())
        if found:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{found[1]}/health", timeout=5).status_code == 200:
                    return found[1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
    raise AssertionError(f"flare run ended with {process.returncode}:\n{log.read_text()}")
