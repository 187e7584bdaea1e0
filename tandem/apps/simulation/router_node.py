"""A simulated router process: the real fleet and dispatcher, which can die and be replaced by a new one."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Final

from kv_transfer.index.redis_index import RedisIndex
from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tickets import Keyring
from router.dispatch.deps import DispatchDeps
from router.dispatch.dispatcher import Dispatcher
from router.fleet.fleet import Fleet
from router.fleet.prober import PairProber
from router.generation import Generation, Running, Sink
from router.placement import CostModel
from router.settings import RouterSettings
from tandem.apps.simulation.checks import CheckingSink, Violation
from tandem.apps.simulation.loop import Process, VirtualLoop
from tandem.apps.simulation.redis_node import RedisNode
from tandem.apps.simulation.restless import RestlessPlanner
from tandem.apps.simulation.watch import Broken, WatchedIndex
from tandem.apps.simulation.watch_shared import WatchedKnowledge, WatchedRedisIndex
from tandem.core.clock import Clock
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.core.spans import Recorder
from tandem.link.memory_link import MemoryLinks

_LATE_S: Final = 0.001
"""Seconds by which an answer of Redis may miss its bound; in virtual time every timer is punctual."""


@dataclass(frozen=True)
class RouterEnvironment:
    """The environment that every incarnation of a router runs in. `names` are the blocks that its index may hold,
    None for any; `redis` is None in a world without Redis."""

    loop: VirtualLoop
    clock: Clock
    links: MemoryLinks
    keyring: Keyring
    settings: RouterSettings
    meter: Meter
    recorder: Recorder
    members: tuple[str, ...]
    names: frozenset[bytes] | None
    broken: Broken
    redis: RedisNode | None
    redis_settings: RedisSettings


@dataclass(eq=False)
class RouterLife:
    """One incarnation of a router's process. `tasks` are its roots, and requests that are on their way in."""

    name: str
    fleet: Fleet
    dispatcher: Dispatcher
    index: WatchedIndex
    shared: RedisIndex | None
    process: Process
    tasks: dict[asyncio.Task[None], None]


class RouterNode:
    """A machine with a router on it."""

    def __init__(self, name: str, ground: RouterEnvironment, entropy: SeededEntropy) -> None:
        self.name = name
        self._ground = ground
        self._entropy = entropy
        self._incarnations = 0
        self._clients: dict[str, CheckingSink] = {}
        self.life: RouterLife | None = None
        self.deaths: list[tuple[float, str]] = []
        """Time of each death of a router, and the name of the incarnation that died."""
        self.frozen_since: float | None = None
        self.freezes: list[tuple[float, float]] = []
        """The intervals (from, to) in which a router's process was stopped."""

    def start(self) -> None:
        """Begin a new incarnation."""
        assert self.life is None, f"{self.name} runs already"
        self._incarnations += 1
        ground, name = self._ground, f"{self.name}-{self._incarnations}"
        settings, process = ground.settings, Process(name)
        index, shared = WatchedIndex(ground.names, ground.broken), self._shared(name)
        dialer = ground.links.dialer(name)
        entropy, clock, pairs = self._entropy.fork(name), ground.clock, settings.fleet.pairs
        prober = PairProber(pairs, ground.keyring, clock, entropy.fork("pairs"), settings.deadlines, ground.meter)
        fleet = Fleet(
            dialer,
            clock,
            settings.deadlines,
            index,
            ground.meter,
            settings.fleet,
            prober,
            shared,
            knowledge=partial(WatchedKnowledge, broken=ground.broken),
        )
        tools = DispatchDeps(
            ground.loop,
            ground.clock,
            entropy,
            ground.keyring,
            settings,
            CostModel(settings.priors),
            ground.recorder,
            ground.meter,
            RestlessPlanner,
        )
        dispatcher = Dispatcher(fleet, tools)
        fleet.set_members(ground.members)
        self.life = RouterLife(name, fleet, dispatcher, index, shared, process, {})
        self._run(self.life, fleet.run(dispatcher), name)
        if shared is not None:
            self._run(self.life, shared.run(), f"{name} shared index")

    def _shared(self, name: str) -> RedisIndex | None:
        ground = self._ground
        if ground.redis is None:
            return None
        connect = ground.redis.connect(name)
        return WatchedRedisIndex(ground.redis_settings, ground.meter, connect, ground.clock.now, self._asked_redis)

    def _asked_redis(self, began: float) -> None:
        """A look-up that began then is over, one way or the other."""
        now, bound_s = self._ground.clock.now(), self._ground.redis_settings.look_up_s
        if now - began - self.frozen_s(began) > bound_s + _LATE_S:
            self._ground.broken(
                Violation(f"{self.name} waited {now - began:.3f} s for Redis, {bound_s} s are allowed")
            )

    def _run(self, life: RouterLife, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = self._ground.loop.create_task(work, name=name, context=life.process.context)
        life.tasks[task] = None
        task.add_done_callback(partial(self._over, life))
        return task

    def _over(self, life: RouterLife, task: asyncio.Task[None]) -> None:
        del life.tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ground.broken(Violation(f"{task.get_name()} ended by itself: {error!r}"))

    def kill(self) -> None:
        """The process is gone, and with it the connections of all its clients."""
        if self.frozen_since is not None:
            self.thaw()
        life, self.life = self.life, None
        assert life is not None, f"{self.name} is dead already"
        self.deaths.append((self._ground.clock.now(), life.name))
        self._ground.links.kill(life.name)
        clients, self._clients = self._clients, {}
        for sink in clients.values():
            if sink.outcome.end == "running":
                sink.disconnected()
        for task in tuple(life.tasks):
            task.cancel()
        life.dispatcher.close(TandemError("internal", "this process is dead"))

    async def ask(self, generation: Generation, sink: CheckingSink, way_out: Sink | None = None) -> Running | None:
        """Start a generation for a client whose connection lives no longer than this router. What it yields goes
        through `way_out` to the client's sink, if there is one. None when the router dies before it begins; raises
        what it refuses with."""
        life = self.life
        assert life is not None, "nobody listens"
        assert self.frozen_since is None, "a stopped process takes no requests"
        self._clients[generation.request_id] = sink
        start = partial(life.dispatcher.start, generation, way_out or sink)
        if life.shared is None:
            return life.process.context.copy().run(start)
        begun = list[Running | TandemError]()

        async def arrive() -> None:
            await life.dispatcher.seek(generation)
            try:
                begun.append(start())
            except TandemError as refusal:
                begun.append(refusal)

        await asyncio.wait((self._run(life, arrive(), f"arrival of {generation.request_id}"),))
        for found in begun:
            if isinstance(found, TandemError):
                raise found
            return found
        return None

    async def rejoin(self, generation: Generation, sink: CheckingSink, way_out: Sink) -> Running:
        """Go on with a resumable request after what the client's sink has. Raises what the router refuses with."""
        life = self.life
        assert life is not None, "nobody listens"
        finding = life.dispatcher.resume(generation.request_id, generation.tenant)
        found = await self._ground.loop.create_task(finding, context=life.process.context)
        if life is not self.life:
            raise TandemError("draining", "the router died meanwhile")
        self._clients[generation.request_id] = sink
        return life.process.context.copy().run(found.listen, way_out, sink.positions)

    def cancel(self, running: Running | None, reason: str) -> None:
        """A client has gone away; the router's process learns of it, if it is still the one that was asked."""
        if self.life is not None and running is not None:
            self.life.process.context.copy().run(running.cancel, reason)

    def can_be_asked(self) -> bool:
        """Whether a load balancer would send requests here."""
        return self.life is not None and self.frozen_since is None and bool(self.life.dispatcher.models())

    @property
    def lease_s(self) -> float:
        """Seconds for which resumable requests wait for their clients."""
        return self._ground.settings.deadlines.resumable_lease_s

    def freeze(self) -> None:
        """Stop the process where it stands."""
        assert self.life is not None
        self._ground.loop.freeze(self.life.process)
        self.frozen_since = self._ground.clock.now()

    def thaw(self) -> None:
        """Let it go on, late."""
        assert self.life is not None
        assert self.frozen_since is not None
        self._ground.loop.thaw(self.life.process)
        self.freezes.append((self.frozen_since, self._ground.clock.now()))
        self.frozen_since = None

    def frozen_s(self, since: float) -> float:
        """Seconds for which a router's process has been stopped after the time `since`."""
        now = self._ground.clock.now()
        current = [] if self.frozen_since is None else [(self.frozen_since, now)]
        return sum(max(0.0, end - max(since, start)) for start, end in (*self.freezes, *current))

    def check(self) -> None:
        """The router's invariants, unless it is stopped or has just gone on and has timers to catch up with."""
        late = self.freezes and self._ground.clock.now() - self.freezes[-1][1] < 0.05
        if self.life is not None and self.frozen_since is None and not late:
            self.life.dispatcher.check()
