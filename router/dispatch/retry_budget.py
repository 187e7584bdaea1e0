"""The share of traffic that may be retries. Pure; one owner changes it in place."""

from typing import Final

from router.settings import RetrySettings

_DOUBLED_MAX: Final = 64


class RetryBudget:
    """Each first attempt earns `share` of a retry, up to `burst`; each charged retry costs one."""

    def __init__(self, settings: RetrySettings) -> None:
        self._share = settings.share
        self._burst = float(settings.burst)
        self._left = self._burst
        self._firsts = self._retries = 0

    def earn(self) -> None:
        self._firsts += 1
        self._left = min(self._burst, self._left + self._share)

    def spend(self) -> bool:
        """Take one retry; False when none is left."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        self._retries += 1
        return True

    def check(self) -> None:
        """Raise `AssertionError` when more was spent than was ever there."""
        most = self._burst + self._share * self._firsts
        assert self._retries <= most + 1e-6, (
            f"{self._retries} retries for {self._firsts} requests: {most:.1f} are due"
        )


def backoff_s(settings: RetrySettings, fruitless: int) -> float:
    """Seconds to wait before the attempt that follows `fruitless` attempts in a row without a token: none before the
    first retry, then doubling."""
    if fruitless <= 1:
        return 0.0
    return min(settings.backoff_max_s, settings.backoff_first_s * 2.0 ** min(fruitless - 2, _DOUBLED_MAX))
