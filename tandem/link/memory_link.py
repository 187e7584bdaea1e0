"""`Link` in memory, for tests and simulation: ordered queues whose delays and faults a policy decides.

`MemoryLinks` is one network. Nodes are known by name: a dialer's name, a server's address. Only the running
loop's time is used, so everything holds on a virtual-time loop too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context

from tandem.core.errors import TandemError
from tandem.link.memory_stream import LinkPolicy, Pair, WorkerEnd
from tandem.link.protocol import RouterLink, WorkerLink
from tandem.link.queue import LinkLimits


class InstantPolicy:
    """A network without delay or fault."""

    def delay_s(self, source: str, target: str) -> float | None:
        return 0.0

    def repeats(self, source: str, target: str) -> bool:
        return False


class MemoryLinks:
    """One simulated network of routers and workers."""

    def __init__(self, policy: LinkPolicy | None = None, limits: LinkLimits | None = None) -> None:
        self.policy: LinkPolicy = policy or InstantPolicy()
        self.limits = limits or LinkLimits()
        self._servers: dict[str, MemoryLinkServer] = {}
        self._pairs: dict[int, Pair] = {}
        self._held: dict[int, Callable[[], None]] = {}
        self._count = 0

    def dialer(self, name: str) -> "MemoryDialer":
        return MemoryDialer(self, name)

    def server(self, address: str) -> "MemoryLinkServer":
        return MemoryLinkServer(self, address)

    def reconsider(self) -> None:
        """The policy's answers may have changed: ask again about everything that is held."""
        held, self._held = self._held, {}
        for retry in held.values():
            retry()

    def cut(self, one: str, other: str, reason: str) -> None:
        """Break every link between two nodes; both ends learn of it at once, what is in flight is lost."""
        for pair in list(self._pairs.values()):
            if {pair.router, pair.worker} == {one, other}:
                pair.broken(reason)

    def kill(self, name: str) -> None:
        """End a node's process: it receives nothing more, and its peers see a reset after the network's delay."""
        self._servers.pop(name, None)
        for pair in list(self._pairs.values()):
            if name in (pair.router, pair.worker):
                pair.died(name)

    # -- for the parts of this module --

    def listen(self, server: "MemoryLinkServer") -> None:
        if server.address in self._servers:
            raise TandemError("bad_setting", f"link.bind {server.address!r} is in use", param="link.bind")
        self._servers[server.address] = server

    def unlisten(self, server: "MemoryLinkServer") -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def find(self, address: str) -> "MemoryLinkServer | None":
        return self._servers.get(address)

    def join(self, router: str, worker: str) -> "Pair":
        self._count += 1
        number = self._count

        def over() -> None:
            self._pairs.pop(number, None)

        self._pairs[number] = pair = Pair(self, router, worker, over)
        return pair

    def hold(self, retry: Callable[[], None]) -> None:
        self._count += 1
        self._held[self._count] = retry

    async def travel(self, source: str, target: str) -> None:
        """Take as long as one message does."""
        while (delay := self.policy.delay_s(source, target)) is None:
            healed = asyncio.get_running_loop().create_future()
            self.hold(lambda healed=healed: None if healed.done() else healed.set_result(None))  # type: ignore[misc]
            await healed
        await asyncio.sleep(delay)


class MemoryDialer:
    """`tandem.link.protocol.Dialer` of one router."""

    def __init__(self, links: MemoryLinks, name: str) -> None:
        self._links = links
        self._name = name

    async def dial(self, address: str, timeout_s: float) -> RouterLink:
        try:
            async with asyncio.timeout(timeout_s):
                await self._links.travel(self._name, address)
                server = self._links.find(address)
                await self._links.travel(address, self._name)
        except TimeoutError:
            raise TandemError("link_lost", f"worker {address} did not answer within {timeout_s:g} s") from None
        if server is None or self._links.find(address) is not server:
            raise TandemError("link_lost", f"worker {address} cannot be reached: connection refused")
        pair = self._links.join(self._name, address)
        server.accepted(pair.worker_end)
        return pair.router_end


class MemoryLinkServer:
    """`tandem.link.protocol.LinkServer` of one worker."""

    def __init__(self, links: MemoryLinks, address: str) -> None:
        self._links = links
        self.address = address
        self._accept: Callable[[WorkerLink], Awaitable[None]] | None = None
        self._accepting: dict[asyncio.Task[None], WorkerEnd] = {}
        self._context = copy_context()

    async def start(self, accept: Callable[[WorkerLink], Awaitable[None]]) -> str:
        self._links.listen(self)
        self._accept = accept
        self._context = copy_context()
        return self.address

    async def stop(self) -> None:
        self._links.unlisten(self)
        for link in list(self._accepting.values()):
            link.close("the worker stopped")
        if self._accepting:
            await asyncio.wait(list(self._accepting), timeout=self._links.limits.flush_s)
        late = list(self._accepting)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def accepted(self, link: "WorkerEnd") -> None:
        """A link was dialed. It is served in the context of the process that listens, not of the one that dials."""
        name = f"accept {link.peer} at {self.address}"
        task = asyncio.get_running_loop().create_task(self._run(link), name=name, context=self._context.copy())
        self._accepting[task] = link
        task.add_done_callback(self._accepting.pop)

    async def _run(self, link: "WorkerEnd") -> None:
        assert self._accept is not None
        try:
            await self._accept(link)
        finally:
            link.close("the worker ended the link")
