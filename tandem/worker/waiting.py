"""Waits of a worker's host, with what bounds them."""

import asyncio
from collections.abc import Awaitable


async def at_most(waiting: Awaitable[object], seconds: float) -> None:
    """Wait for something, but no longer than that."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return
