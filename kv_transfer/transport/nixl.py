"""The `nixl` transport: one-sided reads over UCX (RDMA, shared memory or TCP, whatever it finds), for clusters.

Tickets, offers and acknowledgements travel over a TCP connection of ours; the bytes of the blocks do not. A receiver
with an accepted ticket learns the holder's agent, which lets it read any block of the pool. As with `shm`, a pool is
therefore shown to workers of one service only, and the network between them must be trusted.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kv_transfer.transport import sockets
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.nixl_agent import NixlAgent
from kv_transfer.transport.nixl_receiving import KnownAgents, NixlReceiver
from kv_transfer.transport.nixl_serving import AgentPoller, NixlCarrier, numbered
from kv_transfer.transport.protocol import BlockSink, ExportSource, PullEvent, PullOpen
from kv_transfer.transport.pulling import Connection, PullClient, StreamPull
from kv_transfer.transport.serving import PullServer
from kv_transfer.transport.wire import Wire

SCHEME: Final = "nixl"


@dataclass(frozen=True)
class NixlSettings:
    """Where the control connections listen, as in `kv_transfer.transport.tcp`. `name` distinguishes this process's
    agent from all others. `fabric` is how UCX is expected to carry the bytes; the address states it."""

    name: str
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    fabric: str = ""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class NixlTransport:
    """`kv_transfer.transport.protocol.Transport` over nixl. The agent is made when it is first needed."""

    def __init__(self, settings: NixlSettings, make_agent: Callable[[str], NixlAgent] = NixlAgent) -> None:
        self._settings = settings
        self._make_agent = make_agent
        self._known: KnownAgents | None = None
        self._progress: AgentPoller | None = None
        self._client = PullClient(self._connect, settings.limits)
        self._server: PullServer | None = None
        self._pulls: dict[NixlPull, None] = {}

    @property
    def scheme(self) -> str:
        return SCHEME

    async def serve(self, source: ExportSource) -> str:
        """Listen, with the pool registered. Raises `bad_setting`: no library, an address that cannot be bound."""
        assert self._server is None, "already serving"
        settings, agent, memory = self._settings, self._agents().agent, source.memory
        agent.register(memory.buffer)
        progress = self._progress = AgentPoller(agent, settings.limits.stall_s)
        listener = await sockets.listen(settings.host, settings.port, settings.limits.connections_max)
        carrier = numbered(lambda number: NixlCarrier(agent, memory, progress, number))
        self._server = PullServer(listener, source, carrier, settings.limits, lambda sock: sockets.tune(sock, None))
        self._server.start()
        address = sockets.shown(SCHEME, settings.advertise or settings.host, listener.getsockname()[1])
        return f"{address}/{settings.fabric}" if settings.fabric else address

    async def withdraw(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        progress, self._progress = self._progress, None
        if progress is not None:
            await progress.close()

    async def open(self, address: str, request: PullOpen, sink: BlockSink, timeout_s: float) -> "NixlPull":
        pull = NixlPull(await self._client.open(address, request, sink, timeout_s), self._pulls)
        self._pulls[pull] = None
        return pull

    async def close(self) -> None:
        """Reads that are still under way get `stall_s` to end. After that the agent goes, and they with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.limits.stall_s):
                await asyncio.gather(*(pull.close() for pull in tuple(self._pulls)))
        await self._client.close()
        await self.withdraw()
        known, self._known = self._known, None
        if known is not None:
            known.agent.close()

    def _agents(self) -> KnownAgents:
        if self._known is None:
            self._known = KnownAgents(self._make_agent(self._settings.name))
        return self._known

    async def _connect(self, address: str) -> Connection:
        stall_s = self._settings.limits.stall_s
        landing = NixlReceiver(self._agents(), stall_s)
        return Connection(Wire(await sockets.connect(address, SCHEME, None), address, stall_s), landing)


class NixlPull:
    """A pull that is closed once nothing of it can land any more, however long that takes."""

    def __init__(self, pull: StreamPull, open_pulls: "dict[NixlPull, None]") -> None:
        self._pull = pull
        self._open_pulls = open_pulls

    def events(self) -> AsyncGenerator[PullEvent, None]:
        return self._pull.events()

    async def acknowledge(self) -> None:
        await self._pull.acknowledge()

    async def refuse(self, index: int) -> None:
        await self._pull.refuse(index)

    async def close(self) -> None:
        landing = self._pull.connection.landing
        assert isinstance(landing, NixlReceiver), "a nixl pull lands over nixl"
        await landing.settle()
        self._open_pulls.pop(self, None)
        await self._pull.close()
