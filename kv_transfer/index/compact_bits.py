"""Assigns bits to holders. A dropped bit means nothing at once, and is assigned again when its entries have been
cleared."""

from typing import Final

from kv_transfer.index.leading import bits
from kv_transfer.index.protocol import TIERS

GROUP: Final = 64
"""Holders in one word."""


class HolderBits:
    """The bits of all holders. Bit numbers count through all groups; low ones are assigned first, as the first group
    costs least."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._holders: list[str] = []
        self._free: list[int] = []
        self.live = 0
        """Mask of the bits that stand for a holder."""
        self.dropped = 0
        """The bits whose entries are still to be cleared."""

    def __contains__(self, holder: str) -> bool:
        return holder in self._numbers

    @property
    def groups(self) -> int:
        """Groups with a bit that was ever given out; at least one."""
        return max(1, -(-len(self._holders) // GROUP))

    def holder(self, number: int) -> str:
        """Whom a live bit stands for."""
        assert self.live >> number & 1, f"bit {number} stands for nobody"
        return self._holders[number]

    def number(self, holder: str) -> int:
        """The holder's bit, a new one for a new holder."""
        known = self._numbers.get(holder)
        if known is not None:
            return known
        if self._free:
            number = min(self._free)
            self._free.remove(number)
            self._holders[number] = holder
        else:
            number = len(self._holders)
            self._holders.append(holder)
        self._numbers[holder] = number
        self.live |= 1 << number
        return number

    def drop(self, holder: str) -> None:
        """The holder has nothing any more."""
        number = self._numbers.pop(holder, None)
        if number is not None:
            self.live &= ~(1 << number)
            self.dropped |= 1 << number

    def cleared(self, numbers: int) -> None:
        """Free these dropped bits, which no entry has any more."""
        self.dropped &= ~numbers
        self._free.extend(bits(numbers))


def column_of(number: int, tier: str) -> int:
    """Bit and tier as one number: the bit within its word in the low 6 bits, above that the word."""
    return (number // GROUP * len(TIERS) + TIERS.index(tier)) * GROUP + number % GROUP
