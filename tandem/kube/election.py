"""Leader election over a Lease: of several operators only one acts.

`acquire` returns once this process leads; `hold` renews and returns when it no longer does, and then the process has
to end, since something it began may still be under way. `release` lets another one take over at once.
"""

import asyncio

from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.kube.backoff import Backoff
from tandem.kube.cluster import Cluster, Conflict, NotFound
from tandem.kube.kinds import LEASE, Json, Ref
from tandem.kube.lease import LeaseSettings, ObservedLease, next_move, observe_lease
from tandem.kube.times import micro_timestamp


class Election:
    """One candidate. `identity` must be another in each process that runs."""

    def __init__(
        self, cluster: Cluster, settings: LeaseSettings, identity: str, clock: Clock, entropy: Entropy
    ) -> None:
        assert identity, "an empty holder means that nobody holds the lease"
        self._cluster = cluster
        self._settings = settings
        self._identity = identity
        self._clock = clock
        self._entropy = entropy
        self._ref = Ref(LEASE, settings.namespace, settings.name)
        self._seen: ObservedLease | None = None
        self._leads_until: float | None = None

    @property
    def leading(self) -> bool:
        """Whether this process may act now."""
        return self._leads_until is not None and self._clock.now() < self._leads_until

    async def acquire(self) -> None:
        """Wait until this process leads; an API server that cannot be reached is waited for."""
        pause = Backoff(self._settings.retry_s, self._settings.retry_s)
        while True:
            if await self._tried():
                return
            await asyncio.sleep(pause.jittered_s(1, self._entropy))

    async def hold(self) -> str:
        """Renew until that fails for too long or another one has taken over; why this process leads no longer."""
        while self.leading:
            await asyncio.sleep(self._settings.retry_s)
            if not await self._tried() and self._seen is not None and self._seen.holder != self._identity:
                self._leads_until = None
                return f"{self._seen.holder or 'nobody'} holds {self._ref} now"
        self._leads_until = None
        return f"{self._ref} could not be renewed within {self._settings.renew_within_s:g} s"

    async def release(self) -> None:
        """Give the Lease back if this process holds it, so that no candidate has to wait for its end."""
        self._leads_until = None
        try:
            async with asyncio.timeout(self._settings.call_s):
                lease = await self._cluster.get(self._ref)
                if lease.get("spec", {}).get("holderIdentity") == self._identity:
                    await self._cluster.update({**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (TandemError, TimeoutError):
            # It ends by itself: the others only wait longer.
            return

    async def _tried(self) -> bool:
        """Take or renew once; whether this process leads after it."""
        begun = self._clock.now()
        try:
            async with asyncio.timeout(min(self._settings.call_s, self._left_s())):
                mine = await self._claim()
        except (TandemError, TimeoutError):
            return False
        if mine:
            self._leads_until = begun + self._settings.renew_within_s
        return mine

    def _left_s(self) -> float:
        return self._settings.call_s if self._leads_until is None else max(0.0, self._leads_until - self._clock.now())

    async def _claim(self) -> bool:
        try:
            lease = await self._cluster.get(self._ref)
        except NotFound:
            await self._cluster.create(self._lease({}, taken=True))
            return True
        self._seen = observe_lease(lease, self._seen, self._clock.now())
        move = next_move(self._seen, self._identity, self._clock.now())
        if move == "wait":
            return False
        try:
            await self._cluster.update(
                {**lease, **self._lease(lease.get("spec", {}), taken=move == "take", old=lease)}
            )
        except Conflict:
            return False
        return True

    def _lease(self, spec: Json, *, taken: bool, old: Json | None = None) -> Json:
        now = micro_timestamp(self._clock.wall())
        metadata = old["metadata"] if old else {"name": self._ref.name, "namespace": self._ref.namespace}
        transitions = spec.get("leaseTransitions", 0) + 1 if taken and spec else spec.get("leaseTransitions", 0)
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                **spec,
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self._settings.duration_s),
                "acquireTime": now if taken else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }
