"""The nixl library (one-sided reads over UCX), behind the few calls that the `nixl` transport makes of it.

It comes as the optional extra `nixl` and is imported when an agent is made. Facts that shaped this file, all tried: a
progress thread burns a core, so the waiting side polls (`Transfer.poll`, `NixlAgent.take_notices`), and so does the
holder where reads are emulated; giving up a transfer does not stop it, so bytes land until it reports that it is
over; an agent that is alive when the interpreter ends crashes it, so agents are closed.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import numpy as np

from kv_transfer.transport.locked_memory import hint, memlock_bytes
from tandem.core.errors import TandemError

_ENVIRONMENT: Final = {
    # Three times the throughput of UCX over TCP.
    "UCX_TCP_RX_SEG_SIZE": "128k",
    "UCX_TCP_TX_SEG_SIZE": "128k",
    "NIXL_LOG_LEVEL": "ERROR",
    "UCX_LOG_LEVEL": "error",
}
"""Environment variables that are set before the library is loaded, unless they are set already."""

_MEMORY: Final = "DRAM"
_DONE: Final = "DONE"
_RUNNING: Final = "PROC"


def address_of(view: memoryview) -> int:
    """The address of a view's bytes in this process."""
    return int(np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0])


class NixlAgent:
    """The nixl agent of this process: other agents read from it, and it reads from them."""

    def __init__(self, name: str) -> None:
        """Raises `bad_setting` when the library is not installed, or does not work here."""
        for variable, value in _ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        try:
            api, bindings = import_module("nixl_cu12._api"), import_module("nixl_cu12._bindings")
        except ImportError as error:
            problem = f"kv.transports has nixl, which cannot be imported ({error}): install the extra `nixl`"
            raise TandemError("bad_setting", problem, param="kv.transports") from error
        kinds = [kind for kind in vars(bindings).values() if isinstance(kind, type) and issubclass(kind, Exception)]
        self._faults: tuple[type[Exception], ...] = (*kinds, RuntimeError)
        """The library's exceptions have no base class of their own."""
        self.name = name
        self._regions: dict[int, tuple[int, Any]] = {}
        try:
            settings = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
            self._agent = api.nixl_agent(name, settings)
        except self._faults as error:
            raise TandemError("bad_setting", f"nixl cannot be used: {error}", param="kv.transports") from error

    def register(self, memory: memoryview) -> int:
        """Let the agent read from and write to this memory until `close`; gives its address. Idempotent.

        Raises `transfer_failed` when it cannot be registered.
        """
        base = address_of(memory)
        if self._regions.get(base, (0, None))[0] < memory.nbytes:
            try:
                region = self._agent.register_memory([(base, memory.nbytes, 0, "")], _MEMORY)
            except self._faults as error:
                why = f"{error}{hint(memory.nbytes, memlock_bytes())}"
                raise TandemError("transfer_failed", f"nixl cannot register KV memory: {why}") from error
            self._regions[base] = memory.nbytes, region
        return base

    def registered(self, address: int, size: int) -> bool:
        """Whether these bytes lie in registered memory."""
        return any(base <= address and address + size <= base + has for base, (has, _) in self._regions.items())

    def metadata(self) -> bytes:
        """The metadata that another agent needs to read the memory registered here so far."""
        return bytes(self._agent.get_agent_metadata())

    def know(self, name: str, metadata: bytes) -> None:
        """Add another agent that may be read from. Raises `transfer_failed` when its metadata is invalid or names
        another agent."""
        if name == self.name:
            return
        try:
            known = self._agent.add_remote_agent(metadata)
        except self._faults as error:
            raise TandemError(
                "transfer_failed", f"the agent {name!r} cannot be reached over nixl: {error}"
            ) from error
        found = known.decode() if isinstance(known, bytes) else str(known)
        if found != name:
            raise TandemError("transfer_failed", f"the holder's agent is {found!r}, not {name!r} as it said")

    def forget(self, name: str) -> None:
        """Nothing is read from this agent any more. One that is gone by itself is fine."""
        if name != self.name:
            try:
                self._agent.remove_remote_agent(name)
            except self._faults:
                return

    def read(
        self, name: str, here: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]], notice: bytes
    ) -> "Transfer":
        """Begin to copy pieces (address, bytes) of another agent's memory to pieces of this one's. Once that is done
        it gets to hear `notice`. Raises `transfer_failed`."""
        local, remote = (
            self._agent.get_xfer_descs([(address, size, 0) for address, size in pieces], _MEMORY)
            for pieces in (here, there)
        )
        try:
            handle = self._agent.initialize_xfer("READ", local, remote, name, notice)
            state = self._agent.transfer(handle)
        except self._faults as error:
            raise TandemError("transfer_failed", f"nixl cannot read from {name!r}: {error}") from error
        return Transfer(self._agent, self._faults, handle, state, name)

    def take_notices(self) -> list[bytes]:
        """Let other agents' operations here progress, and give the notices of what those agents have done. Raises
        `transfer_failed`."""
        try:
            return [notice for notices in self._agent.get_new_notifs().values() for notice in notices]
        except self._faults as error:
            raise TandemError("transfer_failed", f"nixl failed: {error}") from error

    def close(self) -> None:
        """Let go of all memory, and of the library's own. Nothing may be called afterwards."""
        for _, region in self._regions.values():
            try:
                self._agent.deregister_memory(region)
            except self._faults:
                continue  # What cannot be let go of alone goes with the agent.
        self._regions.clear()
        del self._agent


class Transfer:
    """Bytes on their way into this process's memory. They may land until `over`, whatever else happens."""

    def __init__(self, agent: Any, faults: tuple[type[Exception], ...], handle: Any, state: str, name: str) -> None:
        self._agent = agent
        self._faults = faults
        self._handle = handle
        self._name = name
        self.over = False
        self.failure: TandemError | None = None
        """Why they did not come, once it is over."""
        self._judge(state)

    def poll(self) -> bool:
        """Let it get on; whether it is over."""
        if not self.over:
            try:
                self._judge(self._agent.check_xfer_state(self._handle))
            except self._faults as error:
                self._end(TandemError("transfer_failed", f"the KV connection to {self._name!r} broke: {error}"))
        return self.over

    def _judge(self, state: str) -> None:
        if state == _DONE:
            self._end(None)
        elif state != _RUNNING:
            self._end(TandemError("transfer_failed", f"reading from {self._name!r} over nixl failed"))

    def _end(self, failure: TandemError | None) -> None:
        self.over, self.failure = True, failure
        # What the library does not let go of now it lets go of with the agent.
        with suppress(*self._faults):
            self._agent.release_xfer_handle(self._handle)
        self._handle = self._agent = None
