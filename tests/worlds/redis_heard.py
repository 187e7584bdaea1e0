"""A Redis node on virtual time that notes what it is asked, and does what a test wants of it."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from kv_transfer.index import redis_scripts
from kv_transfer.index.redis_connection import Argument, Connect, RedisConnection
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.apps.simulation.redis_data import RedisData
from tandem.apps.simulation.redis_server import RedisServer

URL: Final = "redis://cache:6379"
NAMES: Final = {
    getattr(redis_scripts, name): name
    for name in ("REGISTER", "RELEASE", "RENEW", "HOLDERS", "CHANGE", "LOOK_UP", "SWEEP")
}
_BY_DIGEST: Final = {hashlib.sha1(script.encode()).hexdigest(): name for script, name in NAMES.items()}


@dataclass(frozen=True)
class Asked:
    """A script that the node was to run, or another command, when, and with what."""

    at_s: float
    name: str
    arguments: tuple[Argument, ...]


class Heard:
    """One node. The server behind it is the simulation's; `start` begins another run."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.asked: list[Asked] = []
        self.connected: list[float] = []
        """When connections were opened."""
        self.open = 0
        self.role = b"master"
        self.refusal: Callable[[], Exception] | None = None
        """What every command ends with."""
        self.hangs = False
        self.takes_s = 0.0
        """How long it runs a script."""
        self._runs = 0
        self.start()

    def start(self) -> None:
        """Another run of the server, without data."""
        self._runs += 1
        clock = LoopClock(self.loop)
        self.server = RedisServer(f"run-{self._runs}", RedisData(), lambda: int(clock.wall() * 1000))

    def connect(self, url: str) -> RedisConnection:
        self.connected.append(self.loop.time())
        self.open += 1
        return _Line(self)

    def scripts(self, *names: str) -> list[Asked]:
        """The runs of these scripts that were asked for."""
        return [each for each in self.asked if each.name in names]

    def times(self, name: str) -> list[float]:
        return [round(each.at_s, 6) for each in self.asked if each.name == name]


class _Line:
    """A connection to the node."""

    def __init__(self, node: Heard) -> None:
        self._node = node

    async def ask(self, *command: Argument) -> object:
        node, name, arguments = self._node, str(command[0]), command[1:]
        runs = name in ("EVALSHA", "EVAL")
        if runs:
            script = str(command[1])
            name, arguments = _BY_DIGEST.get(script) or NAMES[script], command[3:]
        node.asked.append(Asked(node.loop.time(), name, arguments))
        if runs and node.takes_s:
            await asyncio.sleep(node.takes_s)
        if node.hangs:
            await asyncio.Event().wait()
        if node.refusal is not None:
            raise node.refusal()
        if name == "ROLE":
            return [node.role, 0, []]
        return node.server.ask(*command)

    async def run_id(self) -> str:
        return str(await self.ask("INFO", "server"))

    async def close(self) -> None:
        self._node.open -= 1


def several(nodes: dict[str, Heard]) -> Connect:
    """What opens each of these nodes at its URL."""
    return lambda url: nodes[url].connect(url)


def on_stage(main: Callable[[Heard], Coroutine[Any, Any, None]]) -> None:
    """Run `main` beside a node on virtual time."""

    async def whole(loop: VirtualLoop) -> None:
        await main(Heard(loop))

    run(whole)
