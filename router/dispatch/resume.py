"""Finds the requests that clients come back for: this router's own, and those that workers hold for any router."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from router.dispatch.deps import DispatchDeps
from router.dispatch.failover import Failover
from router.dispatch.recovery import Recovery
from router.dispatch.resumables import Resumable, Resumables
from router.dispatch.resume_token import resume_key, resume_keys
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from tandem.core.errors import TandemError
from tandem.core.messages import ResumeAttempt


class Adopter(Protocol):
    """The dispatcher, as a returning client sees it."""

    def reserve(self) -> int:
        """A place for one more request; gives its key. Raises `queue_full` or `draining`."""
        ...

    def give_back(self, key: int) -> None:
        """The place is not needed after all."""
        ...

    def adopt(self, key: int, failover: Failover) -> Resumable:
        """The request is this router's from now on."""
        ...


class ResumeManager:
    """`router.generation.Resumer` over the fleet. Claims of the same request wait for each other's outcome."""

    def __init__(self, fleet: Fleet, tools: DispatchDeps, resumables: Resumables, adopter: Adopter) -> None:
        self._fleet = fleet
        self._tools = tools
        self._resumables = resumables
        self._adopter = adopter
        self._pending: dict[tuple[str, str], asyncio.Task[Resumable | None]] = {}
        self._claims: list[Recovery] = []

    async def resume(self, request_id: str, tenant: str) -> Resumable:
        """`router.generation.Resumer.resume`."""
        found = self._resumables.find(tenant, request_id) or await self._adopted(tenant, request_id)
        if found is None:
            reason = f"the request {request_id!r} is not known, or too long ago: it cannot be resumed"
            raise TandemError("not_found", reason)
        return found

    def joined(self, peer: Peer) -> None:
        """A worker connected: it may hold what is being looked for, or what was given up when its link broke."""
        for resumable in self._resumables.all():
            if resumable.request.failed_on(peer):
                self._let_go(peer, resumable)
        for claims in self._claims:
            claims.ask(peer)

    def close(self) -> None:
        """The router stops; what is being claimed stays with the workers."""
        for task in self._pending.values():
            task.cancel()

    async def _adopted(self, tenant: str, request_id: str) -> Resumable | None:
        """Ask the workers. A task of its own, so that a client who leaves meanwhile does not stop it half-way."""
        key = (tenant, request_id)
        task = self._pending.get(key)
        if task is None:
            task = self._tools.loop.create_task(self._adopt(tenant, request_id), name=f"claim {request_id}")
            self._pending[key] = task
            task.add_done_callback(lambda _: self._pending.pop(key, None))
            task.add_done_callback(_heard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise TandemError("draining", "the router is stopping", retry_after_s=1.0) from None
            raise

    async def _adopt(self, tenant: str, request_id: str) -> Resumable | None:
        place = self._adopter.reserve()
        adopted = None
        try:
            with self._claiming(tenant, request_id) as claims:
                settings = self._tools.settings
                await claims.settled(lambda: bool(self._fleet.problems()), settings.claim_s)
                failover = claims.take(self._tools.clock, settings.deadlines.total_s)
            if failover is not None:
                adopted = self._adopter.adopt(place, failover)
        finally:
            if adopted is None:
                self._adopter.give_back(place)
        return adopted

    @contextmanager
    def _claiming(self, tenant: str, request_id: str) -> Iterator[Recovery]:
        keyring = self._tools.keyring
        claims = Recovery(request_id, tenant, resume_keys(keyring, tenant, request_id), keyring)
        self._claims.append(claims)
        try:
            for peer in self._fleet.peers():
                claims.ask(peer)
            yield claims
        except BaseException:
            claims.release()
            raise
        finally:
            self._claims.remove(claims)

    def _let_go(self, peer: Peer, resumable: Resumable) -> None:
        """Claim a request that was given up but that the worker may still hold for a client to resume. It is claimed
        under a handle without an owner, so `Peer` cancels it at once."""
        handle = peer.reserve()
        keys = (resume_key(self._tools.keyring, resumable.generation),)
        peer.send(ResumeAttempt(handle, keys))


def _heard(task: "asyncio.Task[Resumable | None]") -> None:
    """Consume the error of a finished task. The error is for the callers that wait; when none is left, it is
    dropped."""
    if not task.cancelled():
        task.exception()
