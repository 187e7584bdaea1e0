"""The KV pool as tensors: `[blocks, layers, 2, block_tokens, kv_heads, head_dim]` over a `BlockMemory`.

On the CPU the pool is that memory. On another device the pool lives there and the memory is its mirror on the
host: blocks that complete are copied out, so that transfers can read them, and blocks that land are copied in.
"""

import torch

from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.engine.protocol import BlockMemory
from tandem.engine.torch.side_copies import SideCopies, side_copies
from tandem.engine.torch.weights import DTYPES


def host_tensor(memory: BlockMemory, layout: Layout, blocks: int) -> torch.Tensor:
    """The bytes of `memory` as a tensor of the layout's shape; no copy."""
    assert memory.block_bytes == layout.block_bytes
    assert memory.blocks >= blocks
    count = blocks * layout.block_bytes // layout.item_bytes
    flat = torch.frombuffer(memory.buffer, dtype=DTYPES[layout.dtype], count=count)
    return flat.view(blocks, layout.layers, 2, layout.block_tokens, layout.kv_heads, layout.head_dim)


def pin(host: torch.Tensor) -> None:
    """Lock host pages for direct copies by the device."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 0))
    if status != 0:
        raise TandemError("bad_setting", f"cannot pin {host.nbytes} bytes of KV memory: CUDA error {status}")


class KvPool:
    """Blocks where the computing happens. `mirrored` keeps them apart from the host memory."""

    def __init__(
        self, host: torch.Tensor, device: torch.device, *, mirrored: bool, copies: SideCopies | None = None
    ) -> None:
        if mirrored and device.type == "cuda":
            pin(host)
        self._host = host
        self._copies = copies or side_copies(device)
        self._mirrored = mirrored
        self.blocks = torch.zeros_like(host, device=device) if mirrored else host
        _, layers, _, block_tokens, kv_heads, head_dim = host.shape
        self.layers = layers
        self.block_tokens = block_tokens
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.rows = self.blocks.view(-1, block_tokens * kv_heads * head_dim)
        """Row `slot * 2 * layers + 2 * layer + {0: K, 1: V}` is one layer's half of a block."""
        self.cells = self.blocks.view(-1, kv_heads, head_dim)
        """Cell `row * block_tokens + offset` is one token's K or V in one layer."""

    def copy(self, source: int, target: int) -> None:
        """Copy one block."""
        self.blocks[target].copy_(self.blocks[source])

    def zero_rest(self, slot: int, tokens: int) -> None:
        """Zero the unused positions of a tail block."""
        self.blocks[slot, :, :, tokens:].zero_()

    def load(self, slots: tuple[int, ...]) -> None:
        """Bring blocks that landed in host memory to the device, before what is computed next. Their host memory must
        not change until `settle` has returned."""
        if self._mirrored and slots:
            self._copies.copy([(self.blocks[slot], self._host[slot]) for slot in slots])
            self._copies.fence()

    def store(self, slots: tuple[int, ...]) -> None:
        """Bring finished blocks to host memory; they are there once `settle` has returned."""
        if self._mirrored and slots:
            self._copies.copy([(self._host[slot], self.blocks[slot]) for slot in slots])

    def settle(self) -> None:
        """Return once host memory is neither read nor written any more."""
        self._copies.wait()
