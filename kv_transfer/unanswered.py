"""Tracks which holders leave pulls unanswered, and what that implies for the next pull.

A pull that is called off (its blocks are wanted for another request, its client is gone) proves nothing by itself.
Yet where nothing gets through, and every pull is called off a little before its bound, the fault would never be
found. So the silence adds up: the next pull waits only for the rest of the bound. After a pull that failed, the next
one waits a quarter of the bound; and blocks that are only cheaper to bring than to compute are not requested at all
for a while.
"""

from dataclasses import dataclass, field
from typing import Final

_LEAST: Final = 0.25
"""The share of its bound that a pull always has."""
_SPARED_S: Final = 5.0
"""Seconds after a failure in which a holder is not asked for blocks that can be computed instead."""
_KEPT_MAX: Final = 1024
"""Addresses: workers that are gone never answer again."""


@dataclass(slots=True)
class _Silence:
    seconds: float = 0.0
    until: float = float("-inf")
    """Up to when silence has been counted: what several pulls waited at once counts once."""
    failed: float = float("-inf")


@dataclass
class UnansweredPulls:
    """The silence of holders by address, in seconds of one receiver's clock. A holder that answers is trusted
    again."""

    _by_address: dict[str, _Silence] = field(default_factory=dict)

    def bound_s(self, address: str, bound_s: float) -> float:
        """Seconds to wait for the first answer from `address`, where the wait would otherwise be `bound_s`."""
        silence = self._by_address.get(address)
        return bound_s if silence is None else max(bound_s - silence.seconds, bound_s * _LEAST)

    def spared(self, address: str, now: float) -> str | None:
        """Why not to ask this address for what can be computed instead, or None."""
        silence = self._by_address.get(address)
        ago_s = now - silence.failed if silence is not None else _SPARED_S
        return f"{address} did not answer {ago_s:.1f} s ago" if ago_s < _SPARED_S else None

    def called_off(self, address: str, began: float, now: float) -> None:
        """Nothing had come from `address` between these two times."""
        silence = self._by_address.setdefault(address, _Silence())
        silence.seconds += now - max(began, silence.until)
        silence.until = now

    def failed(self, address: str, bound_s: float, now: float) -> None:
        """Record that the holder at `address` did not answer within `bound_s`, or refused to be reached."""
        silence = self._by_address.setdefault(address, _Silence())
        if len(self._by_address) > _KEPT_MAX:
            del self._by_address[next(iter(self._by_address))]
        silence.seconds = max(silence.seconds, bound_s)
        silence.until = silence.failed = now

    def answered(self, address: str) -> None:
        """Forget the silence of the holder at `address`: it has answered."""
        self._by_address.pop(address, None)
