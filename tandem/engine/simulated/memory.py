"""The simulated engine's own block memory: it remembers which slots may have been written to from outside the
engine."""

from tandem.engine.private_memory import PrivateMemory


class WatchedMemory(PrivateMemory):
    """Block memory that notes which slots' bytes were handed out: a caller that asks for a slot's bytes may change
    them, so what was known of that slot must not be relied on.

    A view has to be written to before control returns to the engine. A caller that needs a view for longer takes
    `buffer`, after which nothing is known of any slot, ever.
    """

    def __init__(self, block_bytes: int, blocks: int) -> None:
        super().__init__(block_bytes, blocks)
        self.open = False
        """The whole memory was given away."""
        self._touched: dict[int, None] = {}

    @property
    def buffer(self) -> memoryview:
        self.open = True
        return super().buffer

    def block(self, slot: int) -> memoryview:
        self._touched[slot] = None
        return super().block(slot)

    def own_buffer(self) -> memoryview:
        """All blocks, for the engine itself, which knows what it writes."""
        return super().buffer

    def take_touched(self) -> list[int]:
        """Slots whose bytes were given out since the last call."""
        if not self._touched:
            return []
        touched, self._touched = list(self._touched), {}
        return touched
