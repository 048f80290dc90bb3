"""The engine process by itself: idle without turning, quick while running, gone with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helios.engine.messages import Delta, Finished
from helios.runtime.client import EngineClient
from tests.engine.world import request
from tests.runtime.counting import counting_settings

pytestmark = pytest.mark.timeout(90)
ROOT = Path(__file__).parents[2]


def process_of(client: EngineClient) -> int:
    process = client._supervisor._process
    assert process is not None
    assert process.pid is not None
    return process.pid


def switches_of(pid: int) -> int:
    """How often the threads of a process went to sleep or were put to sleep."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if "ctxt_switches" in line:
                total += int(line.split()[1])
    return total


def is_running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_idle_engine_sleeps() -> None:
    """It waits in one poll without a timeout: no thread of it is ever switched to."""

    async def run() -> None:
        client = await EngineClient.start(counting_settings())
        async for _ in client.submit(request("a", max_output_tokens=3)):
            pass
        await client.stats()
        pid = process_of(client)
        await asyncio.sleep(0.2)
        before = switches_of(pid)
        await asyncio.sleep(0.5)
        assert switches_of(pid) == before
        await client.close()

    asyncio.run(run())


def test_commands_are_answered_while_a_program_runs() -> None:
    """Snapshots and refusals do not wait for the frame in flight, however long it takes."""

    async def run() -> None:
        client = await EngineClient.start(counting_settings(step_s=1.0))
        task = asyncio.create_task(anext(client.submit(request("slow", max_output_tokens=2))))
        for _ in range(20):
            stats = await client.stats()
            if stats.gauges["flare_frames_in_flight"]:
                break
        completed = stats.counters["flare_scheduler_completes_total"]
        for _ in range(20):
            stats = await client.stats()
        (rejected,) = [event async for event in client.submit(request("bad", prompt=[]))]
        assert rejected.param == "prompt"  # type: ignore[union-attr]
        stats = await client.stats()
        assert stats.gauges["flare_frames_in_flight"] == 1
        assert stats.counters["flare_scheduler_completes_total"] == completed
        task.cancel()
        await client.close()

    asyncio.run(run())


ORPHAN = """
import asyncio, os, signal, sys
from helios.runtime.client import EngineClient
from tests.engine.world import request
from tests.runtime.counting import counting_settings

async def run():
    client = await EngineClient.start(counting_settings(step_s={step_s}))
    stream = client.submit(request("a", max_output_tokens=120))
    await anext(stream)
    print(client._supervisor._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    asyncio.run(run())
"""


@pytest.mark.parametrize("step_s", [0.005, 1.0])
def test_the_engine_dies_with_its_parent(step_s: float, tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN.format(step_s=step_s))
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    parent = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)

    async def gone() -> None:
        while is_running(pid):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(gone(), 30))


def test_ctrl_c_reaches_the_parent_alone() -> None:
    """A terminal interrupts the whole group; what it means is the HTTP side's decision."""

    async def run() -> None:
        client = await EngineClient.start(counting_settings(step_s=0.005))
        stream = client.submit(request("a", prompt=[5], max_output_tokens=10))
        assert isinstance(await anext(stream), Delta)
        os.kill(process_of(client), signal.SIGINT)
        rest = [event async for event in stream]
        assert isinstance(rest[-1], Finished)
        assert rest[-1].output_tokens == 10
        assert client.restarts == 0
        await client.close()

    asyncio.run(run())
