"""A worker's own canary: before it takes work it pulls blocks from itself, over every transport it has.

Nothing is played: the engine computes a prompt, its blocks get digests and a lease, a ticket is signed, a transport
carries the bytes to the fetcher, the engine receives what verifies in slots of its own. Only the router is missing:
`SelfCanary` gives the commands that one would give, to a host that takes them as from any session.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kv_transfer.tickets import Claims, issue
from tandem.core.canary import CANARY, canary_prompt, canary_submit
from tandem.core.errors import TandemError
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    Cancel,
    Export,
    RemoteKv,
    RouterMessage,
    Transferred,
)
from tandem.process.logs import event
from tandem.worker.deps import WorkerDeps
from tandem.worker.host import WorkerHost
from tandem.worker.kv_side import KvSide

_log = logging.getLogger(__name__)

_TRIES: Final = 2
"""A process that was frozen in the middle of its canary has proved nothing yet."""


@dataclass(frozen=True)
class CanaryResult:
    """The state of a worker's own KV path: `carried` gives seconds by transport, `broken` the reasons."""

    carried: Mapping[str, float] = field(default_factory=dict)
    broken: Mapping[str, TandemError] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence per transport that does not work."""
        return tuple(f"{path}: {error.code}: {error.message}" for path, error in self.broken.items())

    def check(self) -> None:
        """When no transport works, raise an error with the code of the first failure and a message that names all."""
        if self.broken and not self.carried:
            code = next(iter(self.broken.values())).code
            raise TandemError(code, f"this worker's own canary failed on every transport: {'; '.join(self.problems)}")


class SelfCanary:
    """Proves the transports of one worker, one after the other."""

    def __init__(self, host: WorkerHost, side: KvSide, parts: WorkerDeps) -> None:
        self._host = host
        self._side = side
        self._parts = parts
        info = host.identity.info
        # Both sides of the hand-off have to fit in the one pool.
        self._prompt = canary_prompt(info.layout.block_tokens, max(1, info.blocks // 2), info.context_tokens)
        self._handles = 0

    async def prove(self) -> CanaryResult:
        """Try every transport, each within the setting `canary_s`; nothing of it is held afterwards."""
        carried, broken = dict[str, float](), dict(self._side.failed)
        for path, address in self._side.served.items():
            began = self._parts.clock.now()
            error = await self._over(address)
            if error is None:
                carried[path] = self._parts.clock.now() - began
            else:
                broken[path] = error
        self._tell(carried, broken)
        return CanaryResult(carried, broken)

    def _tell(self, carried: Mapping[str, float], broken: Mapping[str, TandemError]) -> None:
        meter, worker = self._parts.meter, self._host.identity.worker_id
        for path in carried:
            meter.add("tandem_canaries_total", 1.0, "self", path, "ok")
            meter.set("tandem_kv_transport_usable", 1.0, path)
        for path, error in broken.items():
            meter.add("tandem_canaries_total", 1.0, "self", path, error.code)
            meter.set("tandem_kv_transport_usable", 0.0, path)
            event(
                _log,
                "kv_transport_broken",
                level=logging.WARNING,
                worker=worker,
                path=path,
                code=error.code,
                reason=error.message,
            )

    async def _over(self, address: str) -> TandemError | None:
        bound_s = self._parts.settings.canary_s
        error: TandemError | None = None
        try:
            async with asyncio.timeout(bound_s):
                for _ in range(_TRIES):
                    error = await self._once(address)
                    if error is None:
                        break
        except TimeoutError:
            return error or TandemError("deadline_exceeded", f"the canary had no result within {bound_s:g} s")
        return error

    async def _once(self, address: str) -> TandemError | None:
        """One hand-off from this worker to itself; gives why it failed."""
        trip = _Trip(self._handles + 1, self._handles + 2)
        self._handles += 2
        self._host.hear_canary(trip.hear)
        try:
            self._send(trip, address)
            await trip.judged.wait()
            self._cancel(trip)
            await trip.freed.wait()
        finally:
            self._cancel(trip)
            self._host.hear_canary(None)
        return trip.error

    def _send(self, trip: "_Trip", address: str) -> None:
        parts, epoch = self._parts, self._host.incarnation.epoch
        bound_s = parts.settings.canary_s
        nonce = parts.entropy.token(12).hex()
        claims = Claims(CANARY, epoch, nonce, epoch, parts.clock.wall() + bound_s)
        remote = RemoteKv(self._host.identity.worker_id, epoch, (address,), nonce, issue(self._side.keyring, claims))
        export = Export(nonce, epoch, parts.deadlines.lease_s)
        prompt, send = self._prompt, self._host.send_canary
        send(canary_submit(trip.prefill, "prefill", prompt, nonce, bound_s, export=export))
        send(canary_submit(trip.decode, "decode", prompt, nonce, bound_s, remote=remote))

    def _cancel(self, trip: "_Trip") -> None:
        """Let go of whatever is still held for it, the lease too."""
        while trip.open:
            self._host.send_canary(Cancel(trip.open.pop()))


class _Trip:
    """One canary in progress, under two handles. `judged` is set once its result is known, `freed` once both of its
    requests are over."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.prefill = prefill
        self.decode = decode
        self.open = [prefill, decode]
        self.judged = asyncio.Event()
        self.freed = asyncio.Event()
        self.error: TandemError | None = TandemError("stale_epoch", "the canary was broken off")
        self._over: dict[int, None] = {}

    def hear(self, message: RouterMessage) -> None:
        """Take a message that the host sends to a session."""
        match message:
            case Transferred(handle=self.decode):
                self._judge(TandemError(message.code, message.message) if message.code else None)
            case AttemptFailed():
                self._judge(TandemError(message.code, message.message))
            case AttemptReport():
                self._over[message.handle] = None
                if len(self._over) == 2:
                    self._judge(self.error)
                    self.freed.set()
            case _:
                pass

    def _judge(self, error: TandemError | None) -> None:
        if not self.judged.is_set():
            self.error = error
            self.judged.set()
