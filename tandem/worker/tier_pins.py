"""Tells a worker's own tiers which blocks may be copied, which are pinned, and how much a tenant may have."""

from collections.abc import Callable

from kv_transfer.tiers.protocol import OffloadCandidate, Pinning, Tiers
from tandem.core.kv import NAME_BYTES, quota_tenant
from tandem.core.messages import Submit, Unpin
from tandem.engine.protocol import BlockSpace, KvChange


class TierPins:
    """Pins of a worker's own tiers; owned by the `AttemptManager`. `tenant_of` gives the tenant salt of a request,
    None when it is not known here."""

    def __init__(self, space: BlockSpace | None, tiers: Tiers | None, tenant_of: Callable[[int], str | None]) -> None:
        self._space = space
        self._tiers = tiers
        self._tenant_of = tenant_of

    def begin(self, work_id: int, submit: Submit) -> int:
        """A work has been submitted. Gives how many leading blocks of its prompt are kept as it asks."""
        if self._tiers is None or self._space is None or submit.canary:
            return 0
        tenant = quota_tenant(submit.tenant_salt)
        self._tiers.limit(tenant, submit.kv_bytes_max)
        prefix = self._space.prefix(work_id) if submit.pin is not None else None
        if submit.pin is None or prefix is None:
            return 0
        pinning = Pinning(submit.pin.priority, submit.pin.ttl_s, tenant)
        return self._tiers.pin(prefix.names, pinning)

    def unpin(self, unpin: Unpin) -> None:
        """Unpin blocks that no longer need to be kept."""
        if self._tiers is not None:
            packed = unpin.names
            self._tiers.unpin([packed[at : at + NAME_BYTES] for at in range(0, len(packed), NAME_BYTES)])

    def stored(self, change: KvChange) -> None:
        """Blocks are complete: they may be copied."""
        if self._tiers is None or not change.stored:
            return
        offers = []
        for name, maker in zip(change.stored, change.makers, strict=True):
            tenant = self._tenant_of(maker)
            if tenant is not None:
                offers.append(OffloadCandidate(name=name, tenant=quota_tenant(tenant)))
        self._tiers.offer(offers)
