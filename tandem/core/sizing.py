"""Computes what a model needs and what hardware can give at best: pure arithmetic on the numbers of its
`config.json`.

Counts are of parameters, sizes in bytes, times in seconds. Floors are times that no software can beat. Each is the
larger of reading what must be read at full memory bandwidth and computing what must be computed at full arithmetic
speed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final

from tandem.core.errors import TandemError

ITEM_BYTES: Final[Mapping[str, float]] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "mxfp4": 0.53125,
    "nvfp4": 0.5625,
}
"""Bytes of one number; of types with a scale for each 32 or 16 numbers with that. What other scales of quantized
weights take is in `weight_format`."""
RUNTIME_SHARE: Final = 0.10
"""The share of an accelerator's memory for activations, graphs, allocator and communication buffers. vLLM also leaves
a tenth."""


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): what is cached is one latent vector
    of `rank` numbers and one rotary key of `rope` numbers per token and layer, shared by all heads."""

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int = 0
    """0 where queries are projected directly."""
    index_bytes: int = 0
    """Bytes per token and layer of the keys by which an index chooses positions; 0 without an index."""


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: `count` feed-forward networks of width `width`, `active` of them per token, and `shared`
    ones that every token passes; the first `dense_layers` layers have an ordinary one. `shared_width` is the width of
    the shared ones, 0 where it is that of all."""

    count: int
    active: int
    width: int
    shared: int = 0
    dense_layers: int = 0
    shared_width: int = 0


@dataclass(frozen=True)
class Recurrent:
    """Layers that keep a state of fixed size per sequence instead of KV per token: `layers` of them, each with
    `matrices` parameters in its projections, `vectors` others, and a state of `numbers` numbers."""

    layers: int
    matrices: int
    vectors: int
    numbers: int


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder-only transformer with gated feed-forward networks (three matrices each)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    tied_embeddings: bool = False
    query_key_value_bias: bool = False
    query_key_norms: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    window: int = 0
    """Positions that layers with a sliding window see; 0 where none has one."""
    windowed_layers: int = 0
    """The number of layers with a sliding window."""
    recurrent: Recurrent | None = None
    query_gate: bool = False
    """Whether the projection of queries also gives a gate of the same size."""

    @property
    def kv_layers(self) -> int:
        """The number of layers that keep KV."""
        return self.layers - (0 if self.recurrent is None else self.recurrent.layers)

    @property
    def attention(self) -> str:
        """`MLA`, `MQA`, `GQA` or `MHA`."""
        if self.latent is not None:
            return "MLA"
        return "MQA" if self.kv_heads == 1 else "MHA" if self.kv_heads == self.heads else "GQA"

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @property
    def active_parameters(self) -> int:
        """The number of parameters that a token passes; an embedding table that is only looked up is not counted."""
        parts = {**self.parts, "head": self.hidden * self.vocabulary, "embeddings": 0}
        if (experts := self.experts) is not None:
            parts["experts"] = parts["experts"] * experts.active // experts.count
        return sum(parts.values())

    @property
    def parts(self) -> Mapping[str, int]:
        """The number of parameters by the part of the model that they are in."""
        table, recurrent = self.hidden * self.vocabulary, self.recurrent
        matrices, vectors = self._attention()
        found = {
            "embeddings": table,
            "head": 0 if self.tied_embeddings else table,
            "vectors": self.hidden * (1 + 2 * self.layers) + self.kv_layers * vectors,
            "attention": self.kv_layers * matrices,
            **self._feed_forwards(),
        }
        if recurrent is not None:
            found["vectors"] += recurrent.layers * recurrent.vectors
            found["recurrent"] = recurrent.layers * recurrent.matrices
        return found

    def _attention(self) -> tuple[int, int]:
        """The numbers of parameters of one layer's attention: in matrices, and in norms and biases."""
        if (latent := self.latent) is not None:
            per_head = latent.nope + latent.rope
            if latent.query_rank:
                queries = latent.query_rank * (self.hidden + self.heads * per_head)
            else:
                queries = self.hidden * self.heads * per_head
            down = self.hidden * (latent.rank + latent.rope)
            up = latent.rank * self.heads * (latent.nope + latent.value)
            return queries + down + up + self.heads * latent.value * self.hidden, latent.query_rank + latent.rank
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = query + 2 * kv if self.query_key_value_bias else 0
        norms = 2 * self.head_dim if self.query_key_norms else 0
        return self.hidden * (2 * query + 2 * kv + (query if self.query_gate else 0)), bias + norms

    def _feed_forwards(self) -> dict[str, int]:
        """The numbers of parameters of all layers' feed-forward networks."""
        dense = 3 * self.hidden * self.feed_forward
        if (experts := self.experts) is None:
            return {"feed_forward": self.layers * dense}
        sparse = self.layers - experts.dense_layers
        return {
            "feed_forward": experts.dense_layers * dense,
            "experts": sparse * experts.count * 3 * self.hidden * experts.width,
            "shared_experts": sparse * experts.shared * 3 * self.hidden * (experts.shared_width or experts.width),
            "router": sparse * self.hidden * experts.count,
        }

    def kv_token_bytes(self, dtype: str = "bfloat16") -> int:
        """KV cache of one token over all layers that keep any, unsharded: 2 · layers · kv_heads · head_dim · item, or
        for MLA layers · ((rank + rope) · item + index). Raises `bad_setting` for an unknown type."""
        return self.kv_token_bytes_per_rank(1, dtype=dtype)

    def kv_token_bytes_per_rank(self, tensor: int, pipeline: int = 1, dtype: str = "bfloat16") -> int:
        """The largest share of one accelerator. KV heads are split, and repeated where there are fewer than ranks;
        a latent is the same on all tensor ranks."""
        layers = ceil(self.kv_layers / pipeline)
        if (latent := self.latent) is not None:
            return ceil(layers * ((latent.rank + latent.rope) * item_bytes(dtype) + latent.index_bytes))
        return ceil(2 * layers * ceil(self.kv_heads / tensor) * self.head_dim * item_bytes(dtype))

    def sequence_tokens(self, context: int) -> float:
        """The KV of one sequence of `context` tokens, as a number of tokens with KV in all layers that keep any.
        Layers with a sliding window keep only the tokens inside it."""
        if not self.windowed_layers:
            return context
        inside = min(context, self.window)
        return context - (context - inside) * self.windowed_layers / self.kv_layers

    def state_bytes(self, dtype: str = "bfloat16") -> int:
        """What recurrent layers keep of one sequence, whatever its length, unsharded. Raises `bad_setting` for an
        unknown type."""
        recurrent = self.recurrent
        return 0 if recurrent is None else ceil(recurrent.layers * recurrent.numbers * item_bytes(dtype))

    def with_whole_cache(self) -> "Shape":
        """All layers keep everything, as they do where KV is exchanged."""
        return replace(self, window=0, windowed_layers=0)

    def weight_bytes(self, dtype: str = "bfloat16") -> int:
        """All parameters in one type. Raises `bad_setting` for an unknown type."""
        return ceil(self.parameters * item_bytes(dtype))


def item_bytes(dtype: str) -> float:
    """Bytes of one number. Raises `bad_setting`."""
    if dtype not in ITEM_BYTES:
        raise TandemError("bad_setting", f"dtype {dtype!r} is none of {', '.join(ITEM_BYTES)}", param="dtype")
    return ITEM_BYTES[dtype]


@dataclass(frozen=True)
class Hardware:
    """One accelerator: memory in bytes, memory bandwidth in bytes/s, dense arithmetic in FLOP/s at the type used."""

    memory: float
    bandwidth: float
    flops: float


def decode_step_floor_s(
    shape: Shape, hardware: Hardware, *, batch: int, context: int, ranks: int = 1, dtype: str = "bfloat16"
) -> float:
    """Seconds no decode step of `batch` sequences with `context` tokens each can beat; so long a token takes (TPOT).

    Read once: every weight the batch passes (of `count` experts, count · (1 - (1 - active/count)^batch) are expected
    to be passed when routing is even), and all KV. Computed: 2 FLOP per parameter and token, and 4 · heads · head_dim
    per layer and token attended to. `ranks` share all of it evenly.
    """
    item = item_bytes(dtype)
    read = _passed(shape, batch) * item + batch * context * shape.kv_token_bytes(dtype)
    computed = batch * (2 * shape.active_parameters + context * _attention_flop(shape))
    return max(read / hardware.bandwidth, computed / hardware.flops) / ranks


def prefill_floor_s(
    shape: Shape, hardware: Hardware, *, tokens: int, cached: int = 0, ranks: int = 1, dtype: str = "bfloat16"
) -> float:
    """Seconds no prefill of `tokens` tokens after `cached` ones can beat: 2 FLOP per parameter and token, and causal
    attention of the new tokens to the ones before them; or reading the weights once."""
    attended = tokens * cached + tokens * (tokens + 1) / 2
    computed = 2 * shape.active_parameters * tokens + attended * _attention_flop(shape)
    read = _passed(shape, tokens) * item_bytes(dtype)
    return max(read / hardware.bandwidth, computed / hardware.flops) / ranks


def transfer_s(
    shape: Shape, *, tokens: int, bytes_per_s: float, latency_s: float = 0.0, dtype: str = "bfloat16"
) -> float:
    """Seconds to move the KV of `tokens` tokens between two workers."""
    return latency_s + tokens * shape.kv_token_bytes(dtype) / bytes_per_s


def _passed(shape: Shape, tokens: int) -> float:
    """Parameters that at least one of `tokens` tokens is expected to pass, with even routing."""
    if (experts := shape.experts) is None:
        return shape.active_parameters
    sparse = shape.layers - experts.dense_layers
    expected = experts.count * (1 - (1 - experts.active / experts.count) ** tokens)
    return shape.active_parameters + sparse * (expected - experts.active) * 3 * shape.hidden * experts.width


def _attention_flop(shape: Shape) -> int:
    """Per token attended to, over all layers: a multiplication and an addition for the score, and for the value."""
    if (latent := shape.latent) is not None:
        return 2 * shape.layers * shape.heads * (latent.nope + latent.rope + latent.value)
    return 4 * shape.kv_layers * shape.heads * shape.head_dim


@dataclass(frozen=True)
class Fit:
    """Whether a worker fits its accelerators, and the arithmetic in words. `kv_tokens`: what its KV cache holds."""

    fits: bool
    kv_tokens: int
    reason: str


def fit(
    shape: Shape,
    memory: float,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    weight_dtype: str = "bfloat16",
    kv_dtype: str = "bfloat16",
    context: int = 1,
    share: float = 1 - RUNTIME_SHARE,
    weights: float | None = None,
    activations: float = 0.0,
    expert: bool = False,
) -> Fit:
    """Whether `tensor` x `pipeline` accelerators of `memory` bytes each hold, in a `share` of their memory, the
    weights (`weights` bytes in all, by default computed), `activations` bytes each and the KV and state of one
    sequence of `context` tokens. With `expert` ranks have whole experts. Raises `bad_setting` for unknown types."""
    if problem := indivisible(shape, tensor, pipeline, expert=expert):
        return Fit(False, 0, problem)
    ranks = tensor * pipeline
    total = float(shape.weight_bytes(weight_dtype)) if weights is None else weights
    each = total / ranks
    state = shape.state_bytes() / ranks
    room = memory * share - each - activations - state
    token = shape.kv_token_bytes_per_rank(tensor, pipeline, kv_dtype)
    needed = shape.sequence_tokens(context) if token else 0.0
    # Without attention nothing is kept of tokens, and any number of them fits.
    kv_tokens = max(0, int(room // token)) if token else context if room >= 0 else 0
    sum_said = (
        f"weights {_gb(total)} over {ranks} accelerators are {_gb(each)} each"
        f"{f', activations about {_gb(activations)}' if activations else ''}"
        f"{f', the state of one sequence {_gb(state)}' if state else ''}; of {_gb(memory)}, "
        f"{1 - share:.0%} are left to {'the runtime' if share == 1 - RUNTIME_SHARE else 'others'}, so "
        f"{_gb(max(room, 0.0))} hold KV of {kv_tokens} tokens at {token} B"
    )
    if room < 0 or kv_tokens < needed:
        return Fit(False, kv_tokens, f"{sum_said}; one sequence of {context} tokens needs {_gb(needed * token)}")
    return Fit(True, kv_tokens, sum_said)


def activation_bytes(shape: Shape, *, tokens: int, sequences: int, tensor: int = 1, dtype: str = "bfloat16") -> float:
    """About what a step of `tokens` tokens and `sequences` sequences needs beside weights and KV, in bytes: the
    residual and one layer's widest intermediate values, and the logits with a float32 copy to sample from."""
    width = shape.feed_forward if shape.experts is None else shape.experts.active * shape.experts.width
    layer = tokens * (2 * shape.hidden + 3 * max(width, shape.heads * shape.head_dim) / tensor) * item_bytes(dtype)
    return layer + sequences * shape.vocabulary * (item_bytes(dtype) + 2 * ITEM_BYTES["float32"])


def even_share(workers: int) -> float:
    """The share of an accelerator's memory for each of `workers` that share it: the memory that is not left to the
    runtime, divided evenly. The last digit is cut off, so that shares never add up to more."""
    return floor((1 - RUNTIME_SHARE) / workers * 1000 + 1e-6) / 1000


def indivisible(shape: Shape, tensor: int, pipeline: int = 1, *, expert: bool = False) -> str | None:
    """Why the model cannot be cut like that, or None. Fewer KV heads than ranks are repeated, so one must divide the
    other. With `expert` ranks have whole experts, whose width is not cut."""
    if shape.heads % tensor:
        return f"tensor parallelism {tensor} does not divide the {shape.heads} attention heads"
    if shape.latent is None and shape.kv_heads % tensor and tensor % shape.kv_heads:
        return f"tensor parallelism {tensor} and {shape.kv_heads} KV heads: neither divides the other"
    width = shape.feed_forward if shape.experts is None else shape.experts.width
    if width % tensor and not (expert and shape.experts is not None):
        return f"tensor parallelism {tensor} does not divide the feed-forward width {width}"
    if pipeline > shape.layers:
        return f"pipeline parallelism {pipeline} is more than the {shape.layers} layers"
    return None


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
