"""Striking a process, and making sure that the blow landed."""

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.apps.cli.registry import MemberEntry, PlatformEntry
from tandem.core.errors import TandemError

_LOOK_S: Final = 0.01
_SIGNALS: Final = {
    "kill-prefill": signal.SIGKILL,
    "kill-decode": signal.SIGKILL,
    "restart-router": signal.SIGKILL,
    "freeze-decode": signal.SIGSTOP,
    "corrupt-kv": signal.SIGUSR1,
    "cut-link": signal.SIGUSR2,
}
_TOLD: Final = {"corrupt-kv": "drill_flipped_bit", "cut-link": "drill_cut_links"}
"""The event that a worker logs when it has carried out a fault, by the kind of fault."""


@dataclass(frozen=True)
class Injection:
    """A strike at `at_s` (loop clock). `log_from` is where the victim's log ended then."""

    kind: str
    victim: MemberEntry
    at_s: float
    log: Path
    log_from: int

    @property
    def kills(self) -> bool:
        return _SIGNALS[self.kind] == signal.SIGKILL

    def landed(self) -> bool:
        """Whether the victim has carried out the fault; true at once for kinds that the victim does not have to carry
        out itself."""
        told = _TOLD.get(self.kind)
        if told is None:
            return True
        with self.log.open("rb") as log:
            log.seek(self.log_from)
            return told.encode() in log.read()

    def thaw(self) -> None:
        """Let a frozen process go on."""
        _signal(self.victim, signal.SIGCONT)


def inject(kind: str, victim: MemberEntry, platform: PlatformEntry) -> Injection:
    """Do it now. Raises `engine_failed` when the victim does not run."""
    log = Path(platform.run_directory) / "logs" / f"{victim.name}.log"
    size = log.stat().st_size if log.exists() else 0
    blow = Injection(kind, victim, asyncio.get_running_loop().time(), log, size)
    _signal(victim, _SIGNALS[kind])
    return blow


async def effective_within(blow: Injection, within_s: float) -> bool:
    """Wait for the blow to land."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not blow.landed():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def _signal(victim: MemberEntry, number: int) -> None:
    if victim.pid is None:
        raise TandemError("engine_failed", f"{victim.name} does not run now; it is {victim.state}")
    try:
        os.kill(victim.pid, number)
    except ProcessLookupError:
        raise TandemError("engine_failed", f"{victim.name} (pid {victim.pid}) is gone already") from None
