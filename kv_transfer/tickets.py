"""Tickets: the right of one decode incarnation to read the blocks of one lease on one prefill incarnation.

HMAC-SHA256 over (key id, tenant, holder epoch, lease, receiver epoch, expiry). All fields
travel in the ticket, so that a refusal can say which one does not fit; the MAC is checked before any is believed.
"""

import hmac
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tandem.core.errors import TandemError

SKEW_S: Final = 30.0
"""Seconds by which the clocks of issuer and holder may differ before a ticket is refused as expired."""

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<BQQd")
_LENGTH: Final = struct.Struct("<H")
_MAC_BYTES: Final = 32
_TEXTS: Final = 3
_SECRET_BYTES_MIN: Final = 16


@dataclass(frozen=True)
class TicketKey:
    """A shared secret of at least 16 bytes under a name that may be public."""

    key_id: str
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) < _SECRET_BYTES_MIN:
            raise TandemError(
                "bad_setting",
                f"ticket key {self.key_id!r} has {len(self.secret)} bytes; at least {_SECRET_BYTES_MIN} are needed",
                param="ticket_key",
            )

    @cached_property
    def keyed(self) -> hmac.HMAC:
        """The keyed HMAC, to be copied for each use: absorbing the key is most of the cost of a MAC over a short
        message."""
        return hmac.new(self.secret, digestmod="sha256")

    def __repr__(self) -> str:
        return f"TicketKey({self.key_id!r})"


@dataclass(frozen=True)
class Keyring:
    """Tickets are issued under `current`; those of `other` stay valid while keys are being rotated.

    To rotate without refusals: first give every holder the new key as `other`, then make it `current`
    everywhere with the old one as `other`, then drop the old one.
    """

    current: TicketKey
    other: TicketKey | None = None

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The current key first."""
        return (self.current.secret,) if self.other is None else (self.current.secret, self.other.secret)

    def find(self, key_id: str) -> TicketKey | None:
        if key_id == self.current.key_id:
            return self.current
        if self.other is not None and key_id == self.other.key_id:
            return self.other
        return None


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims that a ticket makes. `expires` is in wall-clock seconds since the Unix epoch."""

    tenant: str
    holder_epoch: int
    lease_id: str
    receiver_epoch: int
    expires: float


def issue(keyring: Keyring, claims: Claims) -> bytes:
    """A ticket for `claims`, signed with the current key."""
    body = _encode(keyring.current.key_id, claims)
    return body + _mac(keyring.current, body)


def check(
    keyring: Keyring, ticket: bytes, *, holder_epoch: int, lease_id: str, receiver_epoch: int, wall: float
) -> Claims:
    """The claims of a ticket that is genuine and fits what is asked for at wall-clock time `wall`.

    Raises `ticket_refused` with the first reason that applies.
    """
    key_id, claims = _decode(ticket)
    key = keyring.find(key_id)
    if key is None:
        raise _refused(f"it is signed with key {key_id!r}, which is not in use here")
    if not hmac.compare_digest(_mac(key, ticket[:-_MAC_BYTES]), ticket[-_MAC_BYTES:]):
        raise _refused("its signature does not fit its contents")
    if claims.holder_epoch != holder_epoch:
        raise _refused(f"it is for holder epoch {claims.holder_epoch:x}, not {holder_epoch:x}")
    if claims.lease_id != lease_id:
        raise _refused(f"it is for lease {claims.lease_id!r}, not {lease_id!r}")
    if claims.receiver_epoch != receiver_epoch:
        raise _refused(f"it is for receiver epoch {claims.receiver_epoch:x}, not {receiver_epoch:x}")
    if not wall <= claims.expires + SKEW_S:
        raise _refused(f"it expired {wall - claims.expires:.1f} s ago (a skew of {SKEW_S:.0f} s is allowed)")
    return claims


def _refused(reason: str) -> TandemError:
    return TandemError("ticket_refused", f"the KV ticket is refused: {reason}")


def _mac(key: TicketKey, body: bytes) -> bytes:
    keyed = key.keyed.copy()
    keyed.update(body)
    return keyed.digest()


def _encode(key_id: str, claims: Claims) -> bytes:
    assert math.isfinite(claims.expires), f"a ticket needs a finite expiry, got {claims.expires}"
    head = _HEAD.pack(_VERSION, claims.holder_epoch, claims.receiver_epoch, claims.expires)
    key, tenant, lease = key_id.encode(), claims.tenant.encode(), claims.lease_id.encode()
    size = _LENGTH.pack
    return b"".join((head, size(len(key)), key, size(len(tenant)), tenant, size(len(lease)), lease))


def _decode(ticket: bytes) -> tuple[str, Claims]:
    if len(ticket) < _HEAD.size + _TEXTS * _LENGTH.size + _MAC_BYTES:
        raise _refused("it is too short to be one" if ticket else "none was presented")
    version, holder_epoch, receiver_epoch, expires = _HEAD.unpack_from(ticket)
    if version != _VERSION:
        raise _refused(f"its format version is {version}, this worker reads {_VERSION}")
    try:
        (key_id, tenant, lease_id), end = _texts(ticket, _HEAD.size)
    except (struct.error, UnicodeDecodeError):
        raise _refused("it is malformed") from None
    if end + _MAC_BYTES != len(ticket) or not math.isfinite(expires):
        raise _refused("it is malformed")
    return key_id, Claims(tenant, holder_epoch, lease_id, receiver_epoch, expires)


def _texts(ticket: bytes, at: int) -> tuple[tuple[str, ...], int]:
    texts = []
    for _ in range(_TEXTS):
        (size,) = _LENGTH.unpack_from(ticket, at)
        at += _LENGTH.size
        texts.append(ticket[at : at + size].decode())
        at += size
    return tuple(texts), at
