"""What raw nixl makes of the same pull: no tickets, no leases, no digests, a holder that polls without pause.

`pull` describes the blocks to the library as each transfer begins; `prepared` has described all of them beforehand,
as vLLM's own connector does, and names them by number. Either starts one read and polls until it is over.
"""

import os
import random
from collections.abc import Sequence
from importlib import import_module, util
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

_MEMORY: Final = "DRAM"


def available() -> bool:
    return util.find_spec("nixl_cu12") is not None


def _agent(name: str) -> Any:
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    os.environ.setdefault("UCX_LOG_LEVEL", "error")
    api = import_module("nixl_cu12._api")
    return api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))


def hold(size: int, pieces: int, pipe: Connection) -> None:
    """The other process: shows its memory, then polls whenever it is told to, until it is told to stop."""
    agent, memory = _agent("bench-holder"), np.full(pieces * size, 7, np.uint8)
    base = memory.ctypes.data
    region = agent.register_memory([(base, memory.nbytes, 0, "")], _MEMORY)
    pipe.send((agent.get_agent_metadata(), base))
    while pipe.recv() == "poll":
        pipe.send("polling")
        while not pipe.poll(0):
            agent.get_new_notifs()
        assert pipe.recv() == "rest"
        pipe.send("resting")
    agent.deregister_memory(region)


class RawNixl:
    """This side: `pull` brings `pieces` scattered blocks."""

    def __init__(self, size: int, pieces: int, pipe: Connection) -> None:
        self._pipe = pipe
        metadata, base = pipe.recv()
        self._memory = np.zeros(2 * pieces * size, np.uint8)
        self._agent = agent = _agent("bench-receiver")
        address = self._memory.ctypes.data
        self._region = agent.register_memory([(address, self._memory.nbytes, 0, "")], _MEMORY)
        found = agent.add_remote_agent(metadata)
        self._holder = found.decode() if isinstance(found, bytes) else str(found)
        slots = random.Random(1).sample(range(2 * pieces), pieces)
        self._targets = [(address + slot * size, size, 0) for slot in slots]
        self._sources = [(base + number * size, size, 0) for number in range(pieces)]
        self._here = agent.prep_xfer_dlist("", self._targets, _MEMORY)
        self._there = agent.prep_xfer_dlist(self._holder, self._sources, _MEMORY)
        self._numbers: Sequence[int] = list(range(pieces))

    def poll(self) -> None:
        """The holder begins to poll, which takes a core."""
        self._pipe.send("poll")
        self._pipe.recv()

    def rest(self) -> None:
        """The holder stops polling, so that others have the core."""
        self._pipe.send("rest")
        self._pipe.recv()

    async def pull(self) -> None:
        here, there = (self._agent.get_xfer_descs(blocks, _MEMORY) for blocks in (self._targets, self._sources))
        self._carry(self._agent.initialize_xfer("READ", here, there, self._holder, b"x"))

    async def prepared(self) -> None:
        numbers = self._numbers
        self._carry(self._agent.make_prepped_xfer("READ", self._here, numbers, self._there, numbers, b"x"))

    def _carry(self, handle: Any) -> None:
        agent = self._agent
        state = agent.transfer(handle)
        while state != "DONE":
            assert state == "PROC", state
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)

    def close(self) -> None:
        self._pipe.send("stop")
        self._agent.remove_remote_agent(self._holder)
        self._agent.deregister_memory(self._region)
        del self._agent
