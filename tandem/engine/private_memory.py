"""Block memory that only this process can see: for the simulator and for engines whose KV is elsewhere."""


class PrivateMemory:
    """`tandem.engine.protocol.BlockMemory` over a bytearray, zeroed at the start."""

    def __init__(self, block_bytes: int, blocks: int) -> None:
        assert block_bytes > 0
        assert blocks > 0
        self._block_bytes = block_bytes
        self._blocks = blocks
        self._buffer = memoryview(bytearray(block_bytes * blocks))

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    @property
    def blocks(self) -> int:
        return self._blocks

    @property
    def buffer(self) -> memoryview:
        return self._buffer

    @property
    def fd(self) -> int | None:
        return None

    def block(self, slot: int) -> memoryview:
        """The bytes of one slot, writable."""
        assert 0 <= slot < self._blocks, f"slot {slot} of {self._blocks}"
        start = slot * self._block_bytes
        return self._buffer[start : start + self._block_bytes]

    def close(self) -> None:
        """The bytes live as long as someone looks at them; there is nothing to give back early."""
