"""The simulated Redis node: a server that dies, hangs, forgets and falls behind, and connections to it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from kv_transfer.index.redis_connection import Argument, Connect, RedisFailed
from tandem.apps.simulation.names import REDIS
from tandem.apps.simulation.redis_data import RedisData
from tandem.apps.simulation.redis_server import RedisServer
from tandem.core.clock import Clock
from tandem.link.memory_stream import LinkPolicy

_NETWORK: Final = Context()
"""The context of messages in flight. They belong to neither process and arrive whatever becomes of their sender."""


@dataclass(eq=False)
class _Call:
    """A command on its way, and back."""

    line: "RedisLine"
    command: tuple[Argument, ...]
    answered: "asyncio.Future[object]"


class RedisNode:
    """Commands reach the server in the order in which they were sent, and are answered in that order."""

    def __init__(self, policy: LinkPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._server: RedisServer | None = None
        self._runs = 0
        self._open: dict[_Call, None] = {}
        self._late: deque[_Call] = deque()
        """Commands that wait for the network or for a server that hangs."""
        self._due: dict[tuple[str, str], float] = {}
        self._hanging = 0
        self.mute = 0
        """The number of reasons for which every answer of the server gets lost."""

    @property
    def data(self) -> RedisData | None:
        """The data that the server holds now; None while no server runs."""
        return None if self._server is None else self._server.data

    @property
    def runs(self) -> int:
        """The number of times that a server was started."""
        return self._runs

    def now_ms(self) -> int:
        """The server's own clock."""
        return int(self._clock.wall() * 1000)

    # -- life and death --

    def start(self, data: RedisData | None = None) -> None:
        """Start another run of the server, with this data or none."""
        assert self._server is None, "the node runs already"
        self._runs += 1
        self._server = RedisServer(f"run-{self._runs}", data or RedisData(), self.now_ms)

    def kill(self) -> None:
        """The server is gone, and every connection breaks."""
        self._server = None
        self._break(tuple(self._open))

    def flush(self) -> None:
        """Make the server lose all its data without notice."""
        if self._server is not None:
            self._server.data = RedisData()

    def hang(self) -> None:
        """The server reads nothing, for one reason more."""
        self._hanging += 1

    def go_on(self) -> None:
        """One reason less."""
        self._hanging -= 1
        self.reconsider()

    def forget_scripts(self) -> None:
        if self._server is not None:
            self._server.forget_scripts()

    def reconsider(self) -> None:
        """Send the calls that were held up: the network, or the server, carries again."""
        late, self._late = self._late, deque()
        for call in late:
            self._send(call)

    # -- connections --

    def connect(self, client: str) -> Connect:
        """Give the function with which a process on node `client` opens a connection to this node."""
        return lambda _url: RedisLine(self, client)

    def call(self, line: "RedisLine", command: tuple[Argument, ...]) -> "asyncio.Future[object]":
        """Send a command; the future is its answer."""
        call = _Call(line, command, asyncio.get_running_loop().create_future())
        self._open[call] = None
        call.answered.add_done_callback(lambda _: self._open.pop(call, None), context=_NETWORK)
        self._send(call)
        return call.answered

    def leave(self, line: "RedisLine") -> None:
        """A client closes its connections."""
        self._break([call for call in self._open if call.line is line])

    def _send(self, call: _Call) -> None:
        if not self._travel(call.line.client, REDIS, lambda: self._arrive(call)):
            self._late.append(call)

    def _arrive(self, call: _Call) -> None:
        if self._hanging:
            self._late.append(call)
            return
        answer: object = RedisFailed("connection refused")
        if self._server is not None:
            try:
                answer = self._server.ask(*call.command)
            except RedisFailed as refusal:
                answer = refusal
        # An answer that is lost, or held up for long, is waited for no more when it comes.
        if not self.mute:
            self._travel(REDIS, call.line.client, lambda: _answer(call, answer))

    def _travel(self, source: str, target: str, arrive: Callable[[], None]) -> bool:
        """Whether it gets through now."""
        delay_s = self._policy.delay_s(source, target)
        if delay_s is None:
            return False
        loop = asyncio.get_running_loop()
        due = self._due[source, target] = max(self._due.get((source, target), 0.0), loop.time() + delay_s)
        loop.call_at(due, arrive, context=_NETWORK)
        return True

    def _break(self, calls: Sequence[_Call]) -> None:
        for call in calls:
            _answer(call, RedisFailed("the connection broke"))


def _answer(call: _Call, answer: object) -> None:
    if call.answered.done():
        return
    if isinstance(answer, RedisFailed):
        call.answered.set_exception(answer)
    else:
        call.answered.set_result(answer)


class RedisLine:
    """`kv_transfer.index.redis_connection.RedisConnection` of one process to the node."""

    def __init__(self, node: RedisNode, client: str) -> None:
        self._node = node
        self.client = client

    async def ask(self, *command: Argument) -> object:
        return await self._node.call(self, command)

    async def run_id(self) -> str:
        return str(await self._node.call(self, ("INFO", "server")))

    async def close(self) -> None:
        self._node.leave(self)
