"""Block memory that other processes on this host can map: an anonymous file behind a descriptor."""

import mmap
import os

from tandem.core.errors import TandemError


class HostMemory:
    """`tandem.engine.protocol.BlockMemory` over a memfd, zeroed at the start, backed page by page on first touch.

    With `fd` given, maps memory that another process made (the descriptor is then owned by this object).
    Raises `bad_setting` when the operating system refuses that much.
    """

    def __init__(self, block_bytes: int, blocks: int, *, fd: int | None = None) -> None:
        assert block_bytes > 0
        assert blocks > 0
        self._block_bytes = block_bytes
        self._blocks = blocks
        size = block_bytes * blocks
        own = fd
        try:
            if own is None:
                own = os.memfd_create("tandem-kv", os.MFD_CLOEXEC)
                os.ftruncate(own, size)
            self._map = mmap.mmap(own, size)
        except (OSError, ValueError) as error:
            if own is not None:
                os.close(own)
            raise TandemError(
                "bad_setting", f"cannot map {size} bytes of KV memory ({blocks} blocks of {block_bytes}): {error}"
            ) from error
        self._fd: int | None = own
        self._buffer = memoryview(self._map)

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
        return self._fd

    def block(self, slot: int) -> memoryview:
        """The bytes of one slot, writable."""
        assert 0 <= slot < self._blocks, f"slot {slot} of {self._blocks}"
        start = slot * self._block_bytes
        return self._buffer[start : start + self._block_bytes]

    def close(self) -> None:
        """Close the descriptor. The mapping itself goes when its last view does; a second close does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
