"""Tenants' quotas: token buckets over requests and tokens per minute. Decisions only; time comes in.

A bucket holds one minute's worth. A request is charged when it arrives (1 request, its prompt tokens) and again
when it ends (its output tokens), which may leave the bucket in debt: then the next request waits for the refill.
A request that is refused for what is in it is charged as well, by the bytes of its body.
Each router keeps its own buckets.
"""

from dataclasses import dataclass
from typing import Final

from tandem.core.errors import TandemError

MINUTE_S: Final = 60.0
_BYTES_PER_TOKEN: Final = 4
"""Bytes of a refused body that are charged as one token, since such a body has no tokens."""


@dataclass(frozen=True)
class Quota:
    """Limits of a tenant: requests and tokens per minute, KV bytes in workers' tiers, and priority. None means no
    bound."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    kv_bytes_max: int | None = None
    priority_max: int | None = None


UNBOUNDED: Final = Quota()


class Bucket:
    """Refills at `per_minute` / 60 units a second up to `per_minute`, starting full."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` could be taken; an amount over a whole minute's worth needs a full bucket."""
        self._refill(now)
        missing = min(amount, self._per_minute) - self._level
        return max(0.0, missing * MINUTE_S / self._per_minute)

    def take(self, amount: float, now: float) -> None:
        """Take it, into debt if need be."""
        self._refill(now)
        self._level -= amount

    def _refill(self, now: float) -> None:
        self._level = min(self._per_minute, self._level + (now - self._at) * self._per_minute / MINUTE_S)
        self._at = now


class Quotas:
    """All tenants' buckets. Tenants without a quota cost nothing."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def admit(self, tenant: str, quota: Quota, prompt_tokens: int, now: float) -> None:
        """Charge an arriving request. Raises `over_quota` with the wait, and then charges nothing."""
        asked = self._asked(tenant, quota, prompt_tokens, now)
        self._refuse(asked, now)
        for _, bucket, amount, _ in asked:
            bucket.take(amount, now)

    def check(self, tenant: str, quota: Quota, now: float) -> None:
        """Raises `over_quota` when the tenant could not even have a request without a prompt."""
        self._refuse(self._asked(tenant, quota, 0, now), now)

    def fine(self, tenant: str, quota: Quota, body_bytes: int, now: float) -> None:
        """Charge a request that was refused for what is in its body, into debt if need be."""
        for _, bucket, amount, _ in self._asked(tenant, quota, body_bytes // _BYTES_PER_TOKEN, now):
            bucket.take(amount, now)

    def spend(self, tenant: str, quota: Quota, output_tokens: int, now: float) -> None:
        """Charge what a request has produced."""
        if quota.tokens_per_minute is not None:
            self._bucket(tenant, "tokens", quota.tokens_per_minute, now).take(output_tokens, now)

    def _refuse(self, asked: list[tuple[str, Bucket, float, int]], now: float) -> None:
        for unit, bucket, amount, per_minute in asked:
            wait_s = bucket.wait_s(amount, now)
            if wait_s > 0:
                raise TandemError(
                    "over_quota",
                    f"the quota of {per_minute} {unit} per minute is used up; try again in {wait_s:.1f} s",
                    retry_after_s=wait_s,
                )

    def _asked(
        self, tenant: str, quota: Quota, prompt_tokens: int, now: float
    ) -> list[tuple[str, Bucket, float, int]]:
        asked: list[tuple[str, Bucket, float, int]] = []
        for unit, per_minute, amount in (
            ("requests", quota.requests_per_minute, 1),
            ("tokens", quota.tokens_per_minute, prompt_tokens),
        ):
            if per_minute is not None:
                asked.append((unit, self._bucket(tenant, unit, per_minute, now), amount, per_minute))
        return asked

    def _bucket(self, tenant: str, unit: str, per_minute: int, now: float) -> Bucket:
        bucket = self._buckets.get((tenant, unit))
        if bucket is None:
            bucket = self._buckets[tenant, unit] = Bucket(per_minute, now)
        return bucket
