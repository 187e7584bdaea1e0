"""Prefixes that tenants have pinned: what of their quota of KV bytes is taken, and until when. Decisions only; time
comes in.

Room is taken before a prefix is computed and given back when that fails, so that requests at the same time cannot
both have the last of it. Each router keeps its own, as it keeps its own quotas; workers bound what a tenant has of
their tiers altogether.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from router.generation import PrefixReplica
from tandem.core.errors import TandemError


@dataclass(frozen=True)
class PrefixSettings:
    """Bounds on what clients may have kept for them."""

    ttl_s: float = 3600.0
    """Seconds for which a prefix is kept when the client does not say."""
    ttl_s_max: float = 7 * 86400.0
    replicas_max: int = 8
    prefixes_max: int = 1024
    """Upper bound on the pinned prefixes of all tenants together."""


class Prefix(msgspec.Struct):
    """A pinned prefix. `tokens` are those of its whole blocks, `names` are theirs; `kv_bytes` those of all holders.
    `expires` is on the router's clock, the other times are wall-clock."""

    id: str
    tenant: str
    tenant_salt: str
    model: str
    digest: bytes
    """Digest that identifies the prefix, exact to the token."""
    tokens: int
    blocks: int
    kv_bytes: int
    priority: int
    ttl_s: float
    created_wall: float
    expires: float
    expires_wall: float
    holders: tuple[PrefixReplica, ...] = ()
    names: bytes = b""


@dataclass
class QuotaReservation:
    """A share of a tenant's quota, taken until `Prefixes.keep` or `Prefixes.give_back`."""

    tenant: str
    bytes: int


class Prefixes:
    """All prefixes pinned through one router, by id."""

    def __init__(self, settings: PrefixSettings) -> None:
        self._settings = settings
        self._kept: dict[str, Prefix] = {}
        self._rooms: dict[int, QuotaReservation] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, tenant: str, digest: bytes, size: int, bytes_max: int | None, now: float) -> QuotaReservation:
        """Room for `size` bytes; of the same prefix only what it does not have already. Raises `over_quota`."""
        self._expire(now)
        same = next((each for each in self._of(tenant) if each.digest == digest), None)
        room = QuotaReservation(tenant, max(0, size - (same.kv_bytes if same is not None else 0)))
        used = self.used(tenant, now)
        if bytes_max is not None and used + room.bytes > bytes_max:
            raise self._over(tenant, room.bytes, used, bytes_max, now)
        if same is None and len(self._kept) + len(self._rooms) >= self._settings.prefixes_max:
            most = self._settings.prefixes_max
            raise TandemError(
                "over_quota", f"this router keeps {most} prefixes, which is its bound", retry_after_s=60
            )
        self._rooms[id(room)] = room
        return room

    def keep(self, room: QuotaReservation, prefix: Prefix, now: float) -> Prefix | None:
        """The prefix is computed and pinned. Where it was before it keeps its id; gives what it was then."""
        self.give_back(room)
        self._expire(now)
        before = next((each for each in self._of(prefix.tenant) if each.digest == prefix.digest), None)
        if before is not None:
            prefix.id = before.id
        self._kept[prefix.id] = prefix
        return before

    def give_back(self, room: QuotaReservation) -> None:
        """Nothing came of it. Idempotent."""
        self._rooms.pop(id(room), None)

    def used(self, tenant: str, now: float) -> int:
        """Bytes of the tenant's prefixes, pinned or on their way."""
        self._expire(now)
        taken = sum(room.bytes for room in self._rooms.values() if room.tenant == tenant)
        return taken + sum(prefix.kv_bytes for prefix in self._of(tenant))

    def of(self, tenant: str, now: float) -> tuple[Prefix, ...]:
        """The tenant's own, the oldest first."""
        self._expire(now)
        return tuple(self._of(tenant))

    def find(self, tenant: str, prefix_id: str, now: float) -> Prefix:
        """Raises `not_found`, also for another tenant's id."""
        self._expire(now)
        prefix = self._kept.get(prefix_id)
        if prefix is None or prefix.tenant != tenant:
            raise TandemError("not_found", f"no prefix {prefix_id!r} is pinned here")
        return prefix

    def forget(self, prefix: Prefix) -> bytes:
        """Let go of it; gives the packed names that no other prefix of the tenant wants kept."""
        del self._kept[prefix.id]
        others = dict[bytes, None]()
        for other in self._of(prefix.tenant):
            others |= dict.fromkeys(_names(other.names))
        # Names chain: what others share is at the front.
        return b"".join(name for name in _names(prefix.names) if name not in others)

    def _of(self, tenant: str) -> Iterable[Prefix]:
        return (prefix for prefix in self._kept.values() if prefix.tenant == tenant)

    def _expire(self, now: float) -> None:
        for prefix_id in [each.id for each in self._kept.values() if each.expires <= now]:
            del self._kept[prefix_id]

    def _over(self, tenant: str, size: int, used: int, bytes_max: int, now: float) -> TandemError:
        wait_s = min((prefix.expires - now for prefix in self._of(tenant)), default=None)
        return TandemError(
            "over_quota",
            f"pinning this takes {size} bytes of KV, and {used} of the quota of {bytes_max} bytes (kv_bytes_max) are"
            " taken: delete a pinned prefix, let one expire, or pin fewer tokens on fewer workers",
            retry_after_s=wait_s,
        )


def _names(packed: bytes) -> Iterable[bytes]:
    return (packed[at : at + 16] for at in range(0, len(packed), 16))
