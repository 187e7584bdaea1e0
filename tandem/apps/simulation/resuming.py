"""Clients of resumable requests: their connection breaks, with the router or by itself, and they return or stay away.

A client is one checking sink over all its connections, so a later connection must continue exactly where the earlier
one ended: nothing twice, nothing missing, the right tokens and text.
"""

import asyncio
from contextlib import suppress
from typing import Final

from router.generation import Generation, Running, Usage
from tandem.apps.simulation.checks import CheckingSink, Violation
from tandem.apps.simulation.router_node import RouterNode
from tandem.apps.simulation.routers import Routers
from tandem.apps.simulation.traffic import SimRequest
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

_RETRY_S: Final = 0.3
_LATE_S: Final = 3.0
"""Seconds by which the end of a request may miss its deadline when the client has been away: finding the request
again takes time."""
_FREED_S: Final = 1.0
"""Seconds after the end of a lease within which everything is released."""


class Connection:
    """A `router.generation.Sink`: what comes reaches the client until the connection breaks."""

    def __init__(self, sink: CheckingSink) -> None:
        self._sink = sink
        self.broken = asyncio.Event()

    def output(self, output: SequenceOutput) -> None:
        if not self.broken.is_set():
            self._sink.output(output)

    def done(self, usage: Usage) -> None:
        if not self.broken.is_set():
            self._sink.done(usage)

    def failed(self, error: TandemError) -> None:
        if not self.broken.is_set():
            self._sink.failed(error)


class ResumingClient:
    """One client with its request."""

    def __init__(self, request: SimRequest, sink: CheckingSink, routers: Routers, clock: Clock) -> None:
        self._request = request
        self._sink = sink
        self._routers = routers
        self._router: RouterNode | None = None
        self._clock = clock
        self._lease_s = routers.lease_s
        self._connection = Connection(sink)
        self._running: Running | None = None
        self._drops_at = None if request.drops_after_s is None else clock.now() + request.drops_after_s
        sink.cut = self._cut

    async def live(self, generation: Generation, router: RouterNode) -> None:
        """Ask, listen, lose the connection, come back, until the end. Raises `Violation` when there is none."""
        self._router, asked = router, self._clock.now()
        ended = asyncio.Event()
        self._sink.ended = ended.set
        try:
            self._running = await router.ask(generation, self._sink, self._connection)
        except TandemError as error:
            self._sink.failed(error)
            return
        while await self._broken(ended, asked + generation.timeout_s):
            back_after_s = self._request.back_after_s
            if back_after_s is None:
                self._sink.cut = None
                self._sink.disconnected()
                await asyncio.sleep(self._lease_s + _FREED_S)
                return
            await self._come_back(generation, back_after_s)

    def _cut(self) -> None:
        self._connection.broken.set()

    async def _broken(self, ended: asyncio.Event, deadline: float) -> bool:
        """Wait for the end (False), or until the connection breaks."""
        while not ended.is_set() and not self._connection.broken.is_set():
            now, late_s = self._clock.now(), _LATE_S + self._sink.outcome.away_s + self._routers.frozen_s(0.0)
            if now > deadline + late_s:
                request_id = self._request.request_id
                raise Violation(f"{request_id} had no end {late_s:g} s after its deadline", request_id)
            if self._drops_at is not None and now >= self._drops_at:
                self._drop()
                continue
            until = min(deadline + late_s + 0.01, self._drops_at if self._drops_at is not None else deadline + late_s)
            await _either(ended, self._connection.broken, max(0.001, until - now))
        return not ended.is_set()

    def _drop(self) -> None:
        """The connection breaks by itself; the router learns of it."""
        self._drops_at = None
        self._cut()
        if self._router is not None and self._router.can_be_asked():
            self._router.cancel(self._running, "client disconnected")

    async def _come_back(self, generation: Generation, after_s: float) -> None:
        """Ask routers for the rest of the answer until one of them has it or the lease has expired."""
        gone = left = self._clock.now()
        tries = 0
        await asyncio.sleep(after_s)
        refused = TandemError("not_found", "no router was there")
        while self._clock.now() - gone < self._lease_s:
            router = self._routers.choose(self._request.request_id, tries)
            tries += 1
            if router is not None:
                self._router = router
                self._sink.outcome.routers.append(router.name)
                self._connection = connection = Connection(self._sink)
                self._sink.outcome.away_s += self._clock.now() - left
                left = self._clock.now()
                self._sink.resumed()
                try:
                    self._running = await router.rejoin(generation, self._sink, connection)
                    return
                except TandemError as error:
                    refused = error
                    if connection.broken.is_set():
                        return
            await asyncio.sleep(_RETRY_S)
        self._sink.failed(refused)


async def _either(one: asyncio.Event, other: asyncio.Event, within_s: float) -> None:
    """Wait until one of them is set, or for so long."""
    waits = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
