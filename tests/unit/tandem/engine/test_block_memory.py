"""Block memory is one contiguous writable piece; the host kind can be mapped a second time."""

import os

import pytest

from tandem.core.errors import TandemError
from tandem.engine.memory import HostMemory
from tandem.engine.private_memory import PrivateMemory
from tandem.engine.protocol import BlockMemory


@pytest.mark.parametrize("kind", [HostMemory, PrivateMemory])
def test_blocks_are_slices_of_one_buffer(kind: type[HostMemory] | type[PrivateMemory]) -> None:
    memory: BlockMemory = kind(8, 3)
    assert (memory.block_bytes, memory.blocks, len(memory.buffer)) == (8, 3, 24)
    assert bytes(memory.buffer) == bytes(24)
    memory.block(1)[:] = b"abcdefgh"
    assert bytes(memory.buffer[8:16]) == b"abcdefgh"
    assert bytes(memory.block(2)) == bytes(8)
    with pytest.raises(AssertionError):
        memory.block(3)
    memory.close()
    memory.close()


def test_host_memory_is_shared_through_its_descriptor() -> None:
    memory = HostMemory(8, 3)
    assert memory.fd is not None
    other = HostMemory(8, 3, fd=os.dup(memory.fd))
    memory.block(2)[:] = b"abcdefgh"
    assert bytes(other.block(2)) == b"abcdefgh"
    memory.close()
    other.block(0)[:] = b"ABCDEFGH"
    assert bytes(memory.block(0)) == b"ABCDEFGH", "views outlive the descriptor"
    other.close()


def test_a_pool_that_cannot_be_mapped_is_a_setting_error() -> None:
    with pytest.raises(TandemError, match="bytes of KV memory") as raised:
        HostMemory(1 << 40, 1 << 20)
    assert raised.value.code == "bad_setting"
