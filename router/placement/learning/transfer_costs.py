"""Learns how fast blocks come: from other workers, from stores, and from the tiers of a worker itself."""

from math import exp, log
from typing import Final

from tandem.core.messages import TierCost

_SHARE: Final = 0.2
_BYTES_MIN: Final = 1 << 16
"""Less than this shows no rate."""


_CARRIED_SHARE: Final = 0.9
"""Share of the pulls that are slower than the rate a way is taken to carry, as a pull may wait for what is computed
or share the way;"""
_CARRIED_STEP: Final = 0.1
"""and this, of the logarithm, bounds what one pull changes."""


class TransferCosts:
    """Bytes per second by the kind of holder, `peer` or `store`; and of tiers by worker, as the worker itself
    reported them until reads have been seen."""

    def __init__(self, bytes_per_s: float) -> None:
        self._prior = bytes_per_s
        self._rates: dict[str, float] = {}
        self._carried = log(bytes_per_s)
        self._tiers: dict[tuple[str, str], float] = {}

    def rate(self, kind: str) -> float:
        return self._rates.get(kind, self._prior)

    def carried(self) -> float:
        """Bytes per second that the way between two workers carries, whatever waits for it."""
        return exp(self._carried)

    def observe(self, kind: str, moved_bytes: int, bytes_per_s: float) -> None:
        """Learn from a finished pull."""
        if moved_bytes >= _BYTES_MIN and bytes_per_s > 0.0:
            known = self.rate(kind)
            self._rates[kind] = known + _SHARE * (bytes_per_s - known)
            if kind == "peer":
                above = log(bytes_per_s) > self._carried
                self._carried += _CARRIED_STEP * (_CARRIED_SHARE if above else _CARRIED_SHARE - 1.0)

    def observe_read(self, worker_id: str, tier: str, read_bytes: int, bytes_per_s: float) -> None:
        """Learn from blocks that a worker read back from a tier of its own."""
        if read_bytes >= _BYTES_MIN and bytes_per_s > 0.0:
            known = self._tiers.get((worker_id, tier), bytes_per_s)
            self._tiers[worker_id, tier] = known + _SHARE * (bytes_per_s - known)

    def read_ms(self, worker_id: str, tier: TierCost, read_bytes: int) -> float:
        """Milliseconds to read so many bytes from one tier of a worker."""
        rate = self._tiers.get((worker_id, tier.name), tier.bytes_per_s)
        return 1e3 * (tier.latency_s + read_bytes / rate) if rate > 0.0 else float("inf")

    def forget(self, worker_id: str) -> None:
        self._tiers = {key: rate for key, rate in self._tiers.items() if key[0] != worker_id}
