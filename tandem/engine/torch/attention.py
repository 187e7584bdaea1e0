"""Paged attention: gather a span's keys and values into reused buffers, then one fused attention call.

The query heads that share a KV head are folded into the query axis (single tokens) or given a broadcast view
of the keys (chunks), so K and V are never repeated in memory.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from tandem.engine.torch.batch import ForwardBatch, Span
from tandem.engine.torch.pool import KvPool


class PagedAttention:
    """Attention over a `KvPool`. Owns the two gather buffers, which grow to the largest step seen."""

    def __init__(self, pool: KvPool, heads: int, dtype: torch.dtype) -> None:
        self._pool = pool
        self._heads = heads
        self._groups = heads // pool.kv_heads
        self._scale = pool.head_dim**-0.5
        self._dtype = dtype
        self._keys = self._values = pool.rows.new_empty((0, pool.rows.shape[1]))

    def attend(self, batch: ForwardBatch, layer: int, window: int | None, queries: torch.Tensor) -> torch.Tensor:
        """Outputs [n, heads * head_dim] for rotated queries [n, heads, head_dim] of all tokens of the batch."""
        if len(batch.spans) == 1:
            return self._span(batch.spans[0], layer, window, queries)
        outputs = []
        for span in batch.spans:
            count = span.sequences * span.queries
            outputs.append(self._span(span, layer, window, queries[span.first : span.first + count]))
        return torch.cat(outputs)

    def _span(self, span: Span, layer: int, window: int | None, queries: torch.Tensor) -> torch.Tensor:
        view = span.views[window]
        keys, values = self._gather(view.rows[2 * layer], view.rows[2 * layer + 1])
        if span.queries == 1:
            return self._singles(span, view.mask, queries, keys, values)
        return self._chunk(span, view.mask, queries, keys, values)

    def _gather(self, key_rows: torch.Tensor, value_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = key_rows.shape[0]
        if count > self._keys.shape[0]:
            size = max(count, 2 * self._keys.shape[0])
            self._keys = self._pool.rows.new_empty((size, self._pool.rows.shape[1]))
            self._values = torch.empty_like(self._keys)
        keys, values = self._keys[:count], self._values[:count]
        torch.index_select(self._pool.rows, 0, key_rows, out=keys)
        torch.index_select(self._pool.rows, 0, value_rows, out=values)
        return keys, values

    def _singles(
        self, span: Span, mask: torch.Tensor | None, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        pool, count = self._pool, span.sequences
        shape = (count, -1, pool.kv_heads, pool.head_dim)
        out = scaled_dot_product_attention(
            queries.view(count, pool.kv_heads, self._groups, pool.head_dim),
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            attn_mask=mask,
            scale=self._scale,
        )
        return out.reshape(count, self._heads * pool.head_dim)

    def _chunk(
        self, span: Span, mask: torch.Tensor | None, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Queries tile by tile, each seeing the keys up to its own end."""
        count = span.queries
        if mask is None:
            return self._tile(queries, keys, values, count, None)
        tile = mask.shape[0]
        last = (count - 1) // tile * tile
        lead = mask.shape[1] - last - tile
        outputs = []
        for first in range(0, count, tile):
            part = queries[first : first + tile]
            seen = lead + first + part.shape[0]
            shift = last - first
            view = mask[: part.shape[0], shift : shift + seen]
            outputs.append(self._tile(part, keys, values, seen, view))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _tile(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: int, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Outputs [n, heads * head_dim] of queries [n, heads, head_dim] over the first `seen` gathered positions."""
        pool, count = self._pool, queries.shape[0]
        shape = (pool.kv_heads, self._groups, seen, pool.head_dim)
        out = scaled_dot_product_attention(
            queries.view(count, pool.kv_heads, self._groups, pool.head_dim).permute(1, 2, 0, 3),
            keys.view(-1, pool.kv_heads, pool.head_dim)[:seen].transpose(0, 1).unsqueeze(1).expand(shape),
            values.view(-1, pool.kv_heads, pool.head_dim)[:seen].transpose(0, 1).unsqueeze(1).expand(shape),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
        )
        return out.permute(2, 0, 1, 3).reshape(count, self._heads * pool.head_dim)
