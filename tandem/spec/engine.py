"""How the model is computed."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tandem.engine.vllm.settings import Dtype, KvDtype, Method
from tandem.spec.quantity import Quantity
from tandem.spec.text import SET, Argument, Count, Line, Source, Strict

Share = Annotated[float, Meta(ge=0.01, le=1)]
"""Of a GPU's memory."""


class Parallelism(Strict, frozen=True):
    """Over how many accelerators one worker spreads the model: tensor x pipeline x data."""

    tensor: Annotated[int, Meta(ge=1, le=64)] = 1
    """Ranks that share every layer."""
    pipeline: Annotated[int, Meta(ge=1, le=64)] = 1
    """Ranks that have a part of the layers each."""
    data: Annotated[int, Meta(ge=1, le=64)] = 1
    """Ranks that compute attention for different sequences; 1, as workers have one KV cache to hand over."""
    expert: bool = False
    """Deal out whole experts of MoE layers over the tensor x data ranks, instead of a part of every expert."""

    @property
    def ranks(self) -> int:
        """Accelerators of one worker."""
        return self.tensor * self.pipeline * self.data


class Speculative(Strict, frozen=True):
    """How tokens are drafted, in vLLM's words."""

    method: Method
    """`ngram` looks in the text, `draft_model` is a smaller model, `eagle` and `eagle3` are heads on the model's own
    states, `mtp` are layers that came with it."""
    tokens: Annotated[int, Meta(ge=1, le=64)]
    """So many at a time."""
    model: Source | None = None
    """Directory or hub id of what drafts; none for ngram, and for mtp the model itself."""


class EngineSpec(Strict, frozen=True):
    """How the model is computed. What is not given is left to the engine."""

    type: Literal["torch", "vllm", "simulated"] = "torch"
    """The same in every pool."""
    preset: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Whose step times the simulated engine has."""
    dtype: Dtype | None = None
    """Of weights and computing."""
    device: Literal["cpu", "cuda"] | None = None
    """By default cpu."""
    block_tokens: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Tokens per KV block; vLLM chooses by itself what the model and the device are best with."""
    kv_memory: Quantity | None = None
    """KV memory of each worker, a size such as `512Mi`."""
    gpu_memory_share: Share | None = None
    """For cuda: the part of each GPU's memory that a worker takes, all of it counted: weights, KV and activations. By
    default 0.9, divided by the workers on that GPU."""
    parallelism: Parallelism = Parallelism()
    """For vllm."""
    context_tokens: Count | None = None
    """For vllm: serve at most this context."""
    quantization: Line | None = None
    """For vllm: one of its methods; by default what the checkpoint says."""
    kv_dtype: KvDtype | None = None
    """For vllm: numbers in the KV cache."""
    kv_transfer: Literal["auto", "always", "never"] | None = None
    """For vllm: whether it gets a KV connector. By default (auto) where the model's caches can be exchanged; never is
    for pools of role unified, whose workers then keep their KV to themselves."""
    images_per_prompt: Annotated[int, Meta(ge=0, le=64)] | None = None
    """For vllm, in pools of role unified or auto: the most images that a prompt of a model that reads them may have,
    4 by default; 0 does not load what reads them."""
    adapters: Annotated[tuple[Source, ...], Meta(max_length=64, extra_json_schema=SET)] = ()
    """For vllm: directories of LoRA adapters, each `NAME=DIRECTORY` or `DIRECTORY`."""
    speculative: Speculative | None = None
    """For vllm: draft tokens and have the model check several in one step."""
    eager: bool | None = None
    """For vllm: do not compile the model."""
    extra_args: Annotated[dict[Argument, str | int | float | bool], Meta(max_length=32)] = msgspec.field(
        default_factory=dict
    )
    """For vllm: more of its own arguments, in its spelling with underscores."""
