"""A machine on which one process runs at a time, which can die, freeze and come back as another incarnation."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from kv_transfer.index.redis_publisher import RedisPublisher
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.memory_backend import MemoryDisk
from tandem.apps.simulation.loop import Process, VirtualLoop
from tandem.apps.simulation.watch import WatchedTransport
from tandem.core.clock import Clock
from tandem.link.memory_link import MemoryLinks

Names = Mapping[str, Sequence[bytes]]
"""Names of blocks by tier."""


class Service(Protocol):
    """`tandem.process.run.Service`, as far as a simulated process lives it."""

    async def start(self) -> None: ...

    def roots(self) -> Mapping[str, Callable[[], Awaitable[None]]]: ...

    async def serve(self) -> None: ...

    async def drain_requested(self) -> float | None: ...

    async def drain(self, within_s: float) -> None: ...


@dataclass(eq=False, kw_only=True)
class Life:
    """One life of a process. Frozen references, so that a late task of a dead one cannot touch its successor."""

    process: Process
    transport: WatchedTransport
    drain_s: float
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    loaded: bool = False
    left: bool = False
    """Whether the process was asked to leave and has left."""
    thawed_s: float = float("-inf")
    """When the process last resumed after being frozen; minus infinity if it never has."""
    failure: BaseException | None = None

    @property
    def broken_down(self) -> bool:
        """Whether the process ended because it was made to fail."""
        return False


L = TypeVar("L", bound=Life)


class ProcessNode(Generic[L]):
    """A node that runs a process. `name` is both its address and its name on the KV fabric. A subclass defines what
    the process runs."""

    def __init__(self, name: str, loop: VirtualLoop, links: MemoryLinks, clock: Clock) -> None:
        self.name = name
        self.incarnations = 0
        self.disks = {"dram": MemoryDisk(), "nvme": MemoryDisk()}
        """The disks of the node's own tiers: what they contain and how they misbehave."""
        self._loop = loop
        self._links = links
        self._clock = clock
        self.publisher: RedisPublisher | None = None
        """The publisher that reports to Redis what the process has, in a world with Redis."""
        self._tiers: LocalTiers | None = None
        self.on_left: Callable[[L], None] = lambda now: None
        """Called when a process has left because it was asked to."""
        self._now: L | None = None
        self._living: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._now is not None

    @property
    def frozen(self) -> bool:
        return self._now is not None and self._now.process.frozen

    @property
    def incarnation(self) -> L | None:
        """The running process, once it has loaded."""
        return self._now if self._now is not None and self._now.loaded else None

    def start(self) -> None:
        """Begin a new incarnation."""
        assert not self.alive, f"{self.name} runs already"
        self.incarnations += 1
        self.disks = {"dram": MemoryDisk(), "nvme": self.disks["nvme"].copy()}
        self._now, service = self._begin(Process(f"{self.name}/{self.incarnations}"))
        living = _live(self._now, service, self.on_left)
        self._living = self._loop.create_task(living, name=f"process {self.name}", context=self._now.process.context)

    def _begin(self, process: Process) -> tuple[L, Service]:
        """Create what runs in a new process."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process between two instructions: nothing that it would still do reaches another node."""
        assert self._now is not None, f"{self.name} is dead already"
        assert self._living is not None
        self._links.kill(self.name)
        self._now.transport.kill()
        self._living.cancel()
        if self._tiers is not None:
            self._tiers.abandon()
        if self._now.process.frozen:
            self._loop.thaw(self._now.process)
        self._now = self._living = self._tiers = self.publisher = None

    def freeze(self) -> None:
        """Stop the process where it stands."""
        assert self._now is not None
        self._loop.freeze(self._now.process)

    def thaw(self) -> None:
        """Let it go on, late."""
        assert self._now is not None
        self._now.thawed_s = self._clock.now()
        self._loop.thaw(self._now.process)

    def check(self) -> None:
        """Raises `AssertionError` when the process has ended by itself, or holds what it must not."""
        now = self._now
        if now is None:
            return
        if now.failure is not None and not now.broken_down:
            raise AssertionError(f"{self.name} ended by itself: {now.failure!r}") from now.failure
        if now.loaded and now.failure is None:
            self._check(now)

    def _check(self, now: L) -> None:
        raise NotImplementedError

    def held(self) -> str | None:
        """What the node still holds on behalf of others, in one sentence; None when everything is free."""
        raise NotImplementedError

    def names(self) -> Names:
        """The blocks there are now."""
        raise NotImplementedError

    def names_in_sync(self, epoch: int, count: int) -> Names | None:
        """The blocks there are, if event number `count` of `epoch` was the last there is; None otherwise."""
        raise NotImplementedError

    def _publishes(self, publisher: RedisPublisher) -> None:
        self.publisher = publisher

    def _lower_names(self) -> Names:
        return self._tiers.snapshot() if self._tiers is not None else {}


async def _live(now: L, service: Service, on_left: Callable[[L], None]) -> None:
    try:
        await service.start()
        now.loaded = True
        async with asyncio.TaskGroup() as group:
            roots = [group.create_task(_run(root), name=name) for name, root in service.roots().items()]
            await service.serve()
            within_s = await service.drain_requested()
            await service.drain(within_s if within_s is not None else now.drain_s)
            for task in roots:
                task.cancel()
        now.left = True
        now.ended.set()
        on_left(now)
    except Exception as error:  # noqa: BLE001 - the edge of a simulated process
        now.failure = error
        now.ended.set()


async def _run(root: Callable[[], Awaitable[None]]) -> None:
    await root()
