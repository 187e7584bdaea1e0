"""A node that follows, as a service: no links and no blocks, only ranks of an engine whose worker is on another node.

It has the settings of the worker that it is a part of, and the same pages for probes; it is ready when its ranks are
there, which they are when the leader's engine is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tandem.engine.vllm.headless import HeadlessNode
from tandem.process.health import Health


class HeadlessService:
    """`tandem.process.run.Service` of a following node."""

    def __init__(self, node: HeadlessNode, health: Health) -> None:
        self._node = node
        self._health = health
        self._over = asyncio.Event()
        """The leader has come to an orderly end."""

    async def start(self) -> None:
        """Raises `bad_model`, `bad_setting`, `engine_failed`."""
        await self._node.start()

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {"ranks": self._run}

    async def _run(self) -> None:
        await self._node.run()
        self._over.set()
        # What ends by itself counts as failed; this is the end that was hoped for.
        await asyncio.Event().wait()

    async def serve(self) -> None:
        self._health.alive()

    async def drain_requested(self) -> float | None:
        await self._over.wait()
        return 0.0

    async def drain(self, within_s: float) -> None:
        """Wait until the leader has ended: streams need these ranks until it has released them. Ending a group means
        asking all of its nodes."""
        await self._over.wait()

    def held(self) -> Mapping[str, int]:
        return {} if self._over.is_set() else {"leaders": 1}

    async def stop(self) -> None:
        await self._node.stop()
