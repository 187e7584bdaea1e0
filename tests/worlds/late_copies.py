"""A device whose copies take as long as a test wants: `Copies` that keep to the letter of the seam and to no more.

A save reads the engine's block, and a load writes to it, at the moment in which it is allowed to end and not before;
saves end in order, loads end in order, and neither waits for the other. Nothing here ever waits for the device, but a
fence, which ends the saves before the engine computes on.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tandem.engine.vllm.connector.orders import PageTarget

Content = str | None


class LateCopying:
    def __init__(self, count: int, copy: Callable[[], None]) -> None:
        self.bytes = count
        self.seconds = 1.0
        self.over = False
        self._copy = copy

    def end(self) -> None:
        self._copy()
        self.over = True


class LateCopies:
    """Blocks and slots hold one content per layer, of which there are two, each a group."""

    groups = (range(1), range(1, 2))

    def __init__(self, blocks: int, slots: int) -> None:
        self.blocks: list[list[Content]] = [[None, None] for _ in range(blocks)]
        self.slots: list[list[Content]] = [[None, None] for _ in range(slots)]
        self.owned: set[int] = set()
        """Slots that may be written to."""
        self.fences = 0
        self._saves: deque[LateCopying] = deque()
        self._loads: deque[LateCopying] = deque()

    @property
    def under_way(self) -> int:
        return len(self._saves) + len(self._loads)

    def end_some(self, saves: int, loads: int) -> None:
        """Let so many of each kind end."""
        for line, count in ((self._saves, saves), (self._loads, loads)):
            for _ in range(min(count, len(line))):
                line.popleft().end()

    # -- the seam --

    def map_slots(self, memory: memoryview) -> None:
        """The slots are here."""

    def begin_step(self, *, fence: bool) -> None:
        if fence:
            self.fences += 1
            self.end_some(len(self._saves), 0)

    def blank(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.blocks[block] = [None, None]

    def save(self, targets: Sequence[PageTarget], layers: range) -> LateCopying:
        assert targets, "a call for nothing"

        def copy() -> None:
            for target in targets:
                assert target.slot in self.owned, "a slot is written to that was given back"
                for layer in layers:
                    self.slots[target.slot][layer] = self.blocks[target.block][layer]

        copying = LateCopying(len(targets), copy)
        self._saves.append(copying)
        return copying

    def load(self, targets: Sequence[PageTarget]) -> LateCopying:
        assert targets, "a call for nothing"

        def copy() -> None:
            for target in targets:
                self.blocks[target.block] = list(self.slots[target.slot])

        copying = LateCopying(len(targets), copy)
        self._loads.append(copying)
        return copying

    def close(self) -> None:
        """Nothing is open."""
