"""The part of a fetch that one origin serves: what was asked of it, what it has brought, and what is still open."""

import asyncio
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from kv_transfer.fetch_progress import FetchProgress


class Closable(Protocol):
    """Something that writes into slots until it is closed."""

    async def close(self) -> None:
        """Stop. When this returns nothing can be written any more."""
        ...


Opened = TypeVar("Opened", bound=Closable)


class OriginFetch(Generic[Opened]):
    """One leg of a fetch. A leg is over when nothing of it is open: until then its slots may still be written."""

    def __init__(self, progress: FetchProgress) -> None:
        self.progress = progress
        self.opened: Opened | None = None
        self._closing: asyncio.Future[None] | None = None

    async def close(self) -> None:
        """Close what is open, if anything is. Cancelling the caller does not stop the closing."""
        if self.opened is not None:
            if self._closing is None:
                self._closing = asyncio.ensure_future(self._shut(self.opened))
            await asyncio.shield(self._closing)
            self.opened = self._closing = None

    async def _shut(self, opened: Opened) -> None:
        await opened.close()

    async def close_within(self, bound_s: float) -> None:
        """Close as `close` does, within `bound_s`; `opened` stays set when closing takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                await self.close()
