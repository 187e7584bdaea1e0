"""Idempotency keys: a client that does not know how its request ended may ask again and pays once.

Under one key of one tenant one request runs at a time; asking again meanwhile is a `conflict`. Once it has ended
the same request may be asked again for a while: it runs again, but is charged only for what was not charged before.
Each router keeps its own keys, as it keeps its own quotas. Decisions only; time comes in.
"""

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from tandem.core.errors import TandemError

HEADER: Final = "Idempotency-Key"
_VALID: Final = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class IdempotencySettings:
    """`window_s` after its end a key is still known, unless more than `keys_max` are: then the oldest are forgotten.

    `repeats_max` bounds how often a request may run again without being charged in full.
    """

    window_s: float = 600.0
    keys_max: int = 65_536
    repeats_max: int = 10


class Claim(msgspec.Struct):
    """One request's hold on its key, and what has been charged under it so far."""

    tenant: str
    key: str
    fingerprint: bytes
    admitted: bool = False
    """The request and its prompt have been charged."""
    output_tokens: int = 0
    """Output tokens that have been charged."""
    repeats: int = 0
    live: bool = True
    ended_at: float = 0.0

    def uncharged(self, output_tokens: int) -> int:
        """The number of the tokens just delivered that must still be charged; from now on they count as charged."""
        more = max(0, output_tokens - self.output_tokens)
        self.output_tokens += more
        return more


def fingerprint(kind: str, body: bytes) -> bytes:
    """Digest of what two requests must have in common to be the same one: the interface and every byte of the
    body."""
    return hashlib.sha256(kind.encode() + b"\x00" + body).digest()


class IdempotencyKeys:
    """All keys of a router. Ended ones are in order of their end, so the oldest are found first."""

    def __init__(self, settings: IdempotencySettings) -> None:
        self._settings = settings
        self._live: dict[tuple[str, str], Claim] = {}
        self._ended: OrderedDict[tuple[str, str], Claim] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    def claim(self, tenant: str, key: str, asked: bytes, now: float) -> Claim:
        """Hold a key for a request with the fingerprint `asked`. Raises `conflict` and `invalid_request`."""
        if not _VALID.fullmatch(key):
            raise _refused("it must be 1 to 255 printable ASCII characters without spaces")
        self._forget(now)
        held = self._live.get((tenant, key))
        known = held or self._ended.get((tenant, key))
        if known is not None and known.fingerprint != asked:
            raise _refused("it was used for another request; every request needs a key of its own")
        if held is not None:
            raise TandemError("conflict", f"a request with this {HEADER} is still running", param=HEADER)
        if known is None:
            known = Claim(tenant, key, asked)
        elif known.repeats >= self._settings.repeats_max:
            raise TandemError("conflict", f"this {HEADER} has been repeated {known.repeats} times", param=HEADER)
        else:
            known.repeats += 1
            known.live = True
            del self._ended[tenant, key]
        self._live[tenant, key] = known
        return known

    def release(self, claim: Claim, now: float) -> None:
        """The request is over. A key under which nothing was charged is forgotten at once. Idempotent."""
        if not claim.live:
            return
        claim.live, claim.ended_at = False, now
        del self._live[claim.tenant, claim.key]
        if claim.admitted:
            self._ended[claim.tenant, claim.key] = claim
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._ended:
            key, oldest = next(iter(self._ended.items()))
            if oldest.ended_at + self._settings.window_s > now and len(self._ended) <= self._settings.keys_max:
                return
            del self._ended[key]


def _refused(problem: str) -> TandemError:
    return TandemError("invalid_request", f"{HEADER}: {problem}", param=HEADER)
