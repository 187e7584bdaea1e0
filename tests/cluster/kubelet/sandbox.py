"""The network of one pod: a namespace that a sleeping process holds, plugged into the bridge of the lab."""

import asyncio
import os
import signal
from contextlib import suppress

from tests.cluster.lab.network import BRIDGE, GATEWAY, PREFIX_BITS

_BOUND_S = 30.0


class Sandbox:
    """Network and host name of a pod. `number` tells its link from all others of the bridge."""

    def __init__(self, name: str, address: str, number: int) -> None:
        self.address = address
        self._name = name
        self._link = f"tp{number}"
        self._holder: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Raises OSError where that does not work."""
        holder = ("sh", "-c", 'hostname "$0"; exec sleep infinity', self._name[:63])
        self._holder = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--uts", "--", *holder),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        async with asyncio.timeout(_BOUND_S):
            while not self._apart():  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.005)
        await run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", str(self._pid))
        await run("ip", "link", "set", self._link, "master", BRIDGE, "up")
        inside = (
            "link set lo up",
            f"addr add {self.address}/{PREFIX_BITS} dev eth0",
            "link set eth0 up",
            f"route add default via {GATEWAY}",
        )
        await run(*self.enter, "ip", "-batch", "-", told="\n".join(inside) + "\n")

    @property
    def enter(self) -> tuple[str, ...]:
        """The start of a command line that runs in here."""
        return ("nsenter", f"--net=/proc/{self._pid}/ns/net", f"--uts=/proc/{self._pid}/ns/uts", "--")

    def stop(self) -> None:
        """The kernel removes the network with its last process."""
        if self._holder is not None and self._holder.returncode is None:
            with suppress(ProcessLookupError):
                self._holder.send_signal(signal.SIGKILL)

    @property
    def _pid(self) -> int:
        assert self._holder is not None
        return self._holder.pid

    def _apart(self) -> bool:
        if self._holder is not None and self._holder.returncode is not None:
            raise OSError("no network namespace for a pod")
        try:
            return all(
                os.readlink(f"/proc/{self._pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
                for kind in ("net", "uts")
            )
        except OSError:
            return False


async def run(*argv: str, told: str | None = None) -> str:
    """A command that ends soon; OSError with what it says when it fails."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL if told is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_BOUND_S):
            said, _ = await process.communicate(None if told is None else told.encode())
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise OSError(f"{' '.join(argv)}: {said.decode(errors='replace').strip()}")
    return said.decode(errors="replace")
