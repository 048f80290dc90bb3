"""How long a server of ours has been inside prepared programs, by its own metrics."""

from __future__ import annotations

import httpx

from flare.load.http_stream import Target

_METRIC = "flare_replay_nanoseconds_total"


async def replay_ns(target: Target) -> float | None:
    """Return the total replay time so far; None for a server that does not export it."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    base = f"http://{target.host}:{target.port}{target.path}"
    try:
        async with httpx.AsyncClient(headers=headers, timeout=10, trust_env=False) as client:
            answer = await client.get(f"{base}/metrics")
    except httpx.HTTPError:
        return None
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in answer.text.splitlines()
        if line.startswith((f"{_METRIC} ", f"{_METRIC}{{"))
    ]
    return sum(values) if values else None
