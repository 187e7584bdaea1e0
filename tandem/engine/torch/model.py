"""The forward pass: one code for all families, which differ only in what their weights contain."""

import torch

from tandem.engine.torch.attention import PagedAttention
from tandem.engine.torch.batch import ForwardBatch
from tandem.engine.torch.moe import linear
from tandem.engine.torch.pool import KvPool
from tandem.engine.torch.rope import RopeTable, rotate
from tandem.engine.torch.weights import LayerWeights, Weights
from tandem.model.config import ModelConfig


class Model:
    """Weights bound to a KV pool."""

    def __init__(self, config: ModelConfig, weights: Weights, pool: KvPool) -> None:
        self._config = config
        self._weights = weights
        self._pool = pool
        embedding = weights.embedding
        self._attention = PagedAttention(pool, config.heads, embedding.dtype)
        self._rope = RopeTable(config.rope, config.head_dim, embedding.dtype, embedding.device)
        self._rotated = config.heads + config.kv_heads

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden states [n, hidden] of all tokens of the batch; writes their KV into the pool."""
        hidden = self._weights.embedding.index_select(0, batch.tokens)
        cos, sin = self._rope.rows(batch.positions, batch.longest)
        for index, layer in enumerate(self._weights.layers):
            normed = layer.input_norm(hidden)
            queries = self._project(batch, index, layer, normed, cos, sin)
            mixed = self._attention.attend(batch, index, self._config.windows[index], queries)
            hidden.addmm_(mixed, layer.output)
            if layer.output_bias is not None:
                hidden.add_(layer.output_bias)
            normed = layer.post_norm(hidden)
            hidden = layer.mlp.add_to(hidden, normed)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits [n, vocabulary] of hidden states [n, hidden]."""
        return torch.mm(self._weights.norm(hidden).float(), self._weights.head)

    def _project(
        self,
        batch: ForwardBatch,
        index: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Rotated queries [n, heads, head_dim]; rotated keys and values go into the pool."""
        config, count = self._config, normed.shape[0]
        fused = linear(normed, layer.qkv, layer.qkv_bias).view(count, -1, config.head_dim)
        heads = fused[:, : self._rotated]
        if layer.qk_norm is not None:
            heads = layer.qk_norm(heads)
        heads = rotate(heads, cos, sin)
        keys, values = heads[:, config.heads :], fused[:, self._rotated :]
        if batch.writers is not None:
            keys, values = keys.index_select(0, batch.writers), values.index_select(0, batch.writers)
        self._pool.cells.index_copy_(0, batch.cells[2 * index], keys)
        self._pool.cells.index_copy_(0, batch.cells[2 * index + 1], values)
        return heads[:, : config.heads]
