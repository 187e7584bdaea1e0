"""Blocks that lie one after the other on both sides of a copy: small ones go together, in one call for all of them.

A call that lets other threads run has to wait for its turn afterwards, which for a small block takes longer than the
copy itself.
"""

from collections.abc import Iterator, Sequence


def runs(slots: Sequence[int], places: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """The beginning and end of each run. Neighbours in a run have neighbouring slots and places, in the same order.
    No run is longer than `most`."""
    if most <= 1:
        yield from ((start, start + 1) for start in range(len(slots)))
        return
    start, slot, place = 0, -1, -1
    for number, (to, at) in enumerate(zip(slots, places, strict=True)):
        if number and (number - start == most or to != slot + 1 or at != place + 1):
            yield start, number
            start = number
        slot, place = to, at
    if slots:
        yield start, len(slots)
