"""Grouping of the rows of a step for shared attention calls: pure decisions on lengths.

Rows that compute one token are attended together, padded to the longest row of their group. Padding costs memory
traffic, and each further group costs a fixed number of operator calls per layer. Both costs stay bounded.
"""

from collections.abc import Sequence

SPARE_BLOCKS = 16
"""Padding up to this many blocks is cheaper than another group's operator calls."""


def group_by_blocks(counts: Sequence[int]) -> list[list[int]]:
    """Indices of `counts` (blocks per row) in groups, longest first.

    A row opens a new group when it is shorter than half of its group's longest row and the group's padding,
    this row's included, exceeds `SPARE_BLOCKS`. The number of groups is thus logarithmic in the longest row.
    """
    order = sorted(range(len(counts)), key=lambda index: (-counts[index], index))
    groups: list[list[int]] = []
    longest = waste = 0
    for index in order:
        waste += longest - counts[index]
        if not groups or (2 * counts[index] < longest and waste > SPARE_BLOCKS):
            groups.append([])
            longest, waste = counts[index], 0
        groups[-1].append(index)
    return groups
