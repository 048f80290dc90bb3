"""Ends work when its client is gone, whether the answer is streamed, whole, or still queued."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from helios.server.errors import ClientGoneError


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or cancel it when the client hangs up.

    Must be called after the body was read. Returns only when `work` has ended, cleanup included.
    Raises ClientGoneError when it was cancelled, and whatever `work` raises.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
