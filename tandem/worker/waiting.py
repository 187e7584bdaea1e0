"""Waits of a worker's host, with what ends them."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tandem.core.errors import TandemError

T = TypeVar("T")


async def unless_lost(receiving: Awaitable[T]) -> T | None:
    """What a link brings, or None when it is lost."""
    try:
        return await receiving
    except TandemError as error:
        if error.code != "link_lost":
            raise
        return None


async def at_most(waiting: Awaitable[object], seconds: float) -> None:
    """Wait for something, but no longer than that."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return
