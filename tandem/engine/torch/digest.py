"""Content words of blocks as tensor operations, equal bit for bit to `tandem.engine.digest.Digester`."""

from types import MappingProxyType
from typing import Final

import torch

from tandem.core.kv import Layout
from tandem.engine.digest import row_weights, word_bytes, word_weights
from tandem.engine.torch.pool import KvPool

_WORDS: Final = MappingProxyType({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8})


class TensorDigester:
    """Hashes blocks where they lie. int64 arithmetic wraps modulo 2**64 on every device."""

    def __init__(self, layout: Layout, pool: KvPool) -> None:
        size = word_bytes(layout)
        rows = layout.layers * 2 * layout.block_tokens
        words = layout.head_dim * layout.item_bytes // size
        device = pool.blocks.device
        self._words = pool.blocks.view(_WORDS[size]).view(-1, rows, layout.kv_heads, words)
        self._row_weights = torch.from_numpy(row_weights(rows)).to(device)[:, None, None]
        self._word_weights = torch.from_numpy(word_weights(words)).to(device)

    def content_words(self, slots: list[int]) -> tuple[bytes, ...]:
        """One unbound 64-bit word per KV head, little-endian, for each block."""
        found = []
        for slot in slots:
            # Block by block: the products of many blocks at once would leave the cache.
            columns = (self._words[slot] * self._row_weights).sum(0)
            found.append((columns * self._word_weights).sum(-1))
        if not found:
            return ()
        return tuple(row.tobytes() for row in torch.stack(found).cpu().numpy().astype("<i8"))
