"""The nodes of one worker: the leader waits for the others, the others find the leader, and each node ends when it
loses what it needs.

All waits are bounded. A node that ends says why, so that the same sentence appears on all nodes.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Final

from tandem.core.errors import TandemError
from tandem.engine.vllm.group_wire import Begin, Join, Message, Over, Wire
from tandem.engine.vllm.settings import Nodes

Facts = Mapping[str, str]
"""The facts that have to be the same on all nodes, as text by name."""
_REDIAL_S: Final = 0.5
_CONNECT_S: Final = 5.0


def difference(mine: Facts, theirs: Facts) -> str | None:
    """The first facts in which two nodes differ, in words; None where they agree."""
    names = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
    if not names:
        return None
    return ", ".join(f"{name} is {theirs.get(name)} there and {mine.get(name)} here" for name in names[:3])


class Leader:
    """The first node's end of a group of nodes. `on_lost` is called with one sentence when the group is no longer
    complete."""

    def __init__(self, nodes: Nodes, facts: Facts, on_lost: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._facts = facts
        self._on_lost = on_lost
        self._server: asyncio.Server | None = None
        self._followers: dict[int, Wire] = {}
        self._strangers: dict[Wire, None] = {}
        """Connections that have not identified themselves."""
        self._complete = asyncio.Event()
        self._begun = False
        self.problem: str | None = None
        """Why the group is not whole any more."""

    async def gather(self, timeout_s: float) -> int:
        """Wait for all followers and have them begin; gives the port at which ranks find each other.

        Raises `bad_setting` for nodes that do not fit together, `engine_failed` when not all come.
        """
        nodes, loop = self._nodes, asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, nodes.host, nodes.port)
        except OSError as error:
            why = f"cannot listen for other nodes at {nodes.host}:{nodes.port}: {error.strerror or error}"
            raise TandemError("bad_setting", why, param="nodes.port") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._complete.wait()
        if self.problem is not None:
            raise TandemError("bad_setting", self.problem)
        missing = [str(rank) for rank in range(1, nodes.count) if rank not in self._followers]
        if missing:
            which = f"node {', '.join(missing)} of {nodes.count}"
            raise TandemError("engine_failed", f"{which} did not come within {timeout_s:g} s")
        self._begun = True
        port = _free_port(nodes.host)
        for wire in self._followers.values():
            wire.tell(Begin(port))
        return port

    def close(self, why: str) -> None:
        """Tell the followers that this worker ends, and hang up. Idempotent."""
        for wire in (*self._followers.values(), *self._strangers):
            wire.tell(Over(why))
            wire.close()
        self._followers.clear()
        self._strangers.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self) -> Wire:
        wire = Wire(self._heard, self._gone)
        self._strangers[wire] = None
        return wire

    def _heard(self, wire: Wire, message: Message) -> None:
        match message:
            case Join() if wire in self._strangers:
                self._join(wire, message)
            case Over() if message.why:
                self._gone(wire, f"failed: {message.why}")
            case _:
                self._gone(wire, "is ending")

    def _join(self, wire: Wire, join: Join) -> None:
        refusal = self._refusal(join)
        if refusal is not None:
            self._strangers.pop(wire)
            wire.tell(Over(refusal))
            wire.close()
            return
        del self._strangers[wire]
        self._followers[join.rank] = wire
        if len(self._followers) == self._nodes.count - 1:
            self._complete.set()

    def _refusal(self, join: Join) -> str | None:
        if not 0 < join.rank < self._nodes.count or join.rank in self._followers or self._begun:
            return f"the leader does not wait for a node {join.rank} of {self._nodes.count}"
        differs = difference(self._facts, join.facts)
        if differs is None:
            return None
        self.problem = f"node {join.rank} of {self._nodes.count} does not fit: {differs}"
        self._complete.set()
        return self.problem

    def _gone(self, wire: Wire, why: str) -> None:
        self._strangers.pop(wire, None)
        rank = next((rank for rank, each in self._followers.items() if each is wire), None)
        if rank is None:
            return
        wire.close()
        del self._followers[rank]
        # Until all are there, one that is gone may come again.
        if self._begun and self.problem is None:
            self.problem = f"node {rank} of {self._nodes.count} ({wire.peer}) {why}"
            self._on_lost(self.problem)


class GroupMember:
    """The end of a node that is not the leader, in a group of nodes."""

    def __init__(self, nodes: Nodes, facts: Facts) -> None:
        self._nodes = nodes
        self._facts = facts
        self._wire: Wire | None = None
        self._begin: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self.problem: str | None = None
        """Why the leader is not there any more; None for an orderly end, and while it is there."""

    async def join(self, timeout_s: float) -> int:
        """Find the leader, and wait until all nodes are there; gives the port at which ranks find each other.

        Raises `engine_failed` when the leader does not come, ends, or does not want this node.
        """
        where = f"{self._nodes.leader}:{self._nodes.port}"
        try:
            async with asyncio.timeout(timeout_s):
                self._wire = await self._dial()
                self._wire.tell(Join(self._nodes.rank, self._facts))
                over = asyncio.ensure_future(self._over.wait())
                try:
                    await asyncio.wait((self._begin, over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    over.cancel()
        except TimeoutError:
            did = "cannot be reached" if self._wire is None else "does not have all nodes"
            raise TandemError("engine_failed", f"the leader {where} {did} after {timeout_s:g} s") from None
        if self._over.is_set():
            raise TandemError("engine_failed", self.problem or f"the leader {where} ended before it began")
        return self._begin.result()

    async def over(self) -> str | None:
        """Wait for the leader's end; gives why, or None when it was an orderly one."""
        await self._over.wait()
        return self.problem

    def close(self, why: str) -> None:
        """Tell the leader that this node ends, and hang up. Idempotent."""
        if self._wire is not None:
            self._wire.tell(Over(why))
            self._wire.close()

    async def _dial(self) -> Wire:
        """Connect to the leader, trying again until it answers: its name may not be known yet, and it may not listen
        yet."""
        loop, nodes = asyncio.get_running_loop(), self._nodes
        while True:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    _, wire = await loop.create_connection(
                        lambda: Wire(self._heard, self._gone), nodes.leader, nodes.port
                    )
                    return wire
            except OSError:  # A timeout is one, too.
                await asyncio.sleep(_REDIAL_S)

    def _heard(self, wire: Wire, message: Message) -> None:
        match message:
            case Begin() if not self._begin.done():
                self._begin.set_result(message.store_port)
            case Over():
                wire.close()
                self._end(f"the leader ended: {message.why}" if message.why else None)
            case _:
                wire.close()
                self._end("the leader says what no leader would")

    def _gone(self, _wire: Wire, why: str) -> None:
        self._end(f"the leader {self._nodes.leader}:{self._nodes.port} {why}")

    def _end(self, problem: str | None) -> None:
        if not self._over.is_set():
            self.problem = problem
            self._over.set()


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
