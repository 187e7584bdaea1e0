"""The attention backends that vLLM could choose on a card, and those of them that our arguments exclude; for dry
runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import VllmConfig


class Backends(NamedTuple):
    """Attention backends: those that are `left`, best first; those that our block size excludes; and those that vLLM
    takes only without any KV connector."""

    left: tuple[str, ...]
    lost_to_blocks: tuple[str, ...] = ()
    lost_to_connector: tuple[str, ...] = ()


def backends(config: "VllmConfig") -> Backends | None:
    """None for a model without attention."""
    from tandem.engine.vllm.internals import AttentionSelectorConfig, platforms, set_current_vllm_config

    model, cache = config.model_config, config.cache_config
    if model.is_attention_free:
        return None
    asked: Any = AttentionSelectorConfig(
        head_size=model.get_head_size(),
        dtype=model.dtype,
        kv_cache_dtype=None if cache.cache_dtype == "auto" else cache.cache_dtype,
        block_size=None,
        use_mla=model.use_mla,
        use_sparse=hasattr(model.hf_text_config, "index_topk"),
    )
    ours = asked._replace(
        block_size=cache.block_size if cache.user_specified_block_size else None,
        use_kv_connector=config.kv_transfer_config is not None,
    )
    platform = platforms.current_platform
    if platform.is_cpu():
        # It has one for every model that it takes, and asks nothing of block size and connector.
        chosen = str(platform.get_attn_backend_cls(None, ours)).rpartition(".")[2].removesuffix("Backend")
        return Backends((chosen,))
    heads = model.get_num_attention_heads(config.parallel_config)
    with _without_memory(), set_current_vllm_config(config):
        left, any_size, free = (
            [
                # CUDA's platform answers with records, AMD's with pairs of backend and priority.
                (each.backend if hasattr(each, "backend") else each[0]).name
                for each in platform.get_valid_backends(platform.get_device_capability(), one, heads)[0]
            ]
            for one in (ours, ours._replace(block_size=None), asked)
        )
    return Backends(
        tuple(left),
        tuple(name for name in any_size if name not in left),
        tuple(name for name in free if name not in any_size),
    )


@contextmanager
def _without_memory() -> Iterator[None]:
    """Some backends take memory of the card when they are imported, which is not here."""
    import torch

    made = torch.empty

    def shape_alone(*sizes: Any, **named: Any) -> Any:
        return made(*sizes, **({**named, "device": "meta"} if str(named.get("device")) == "cuda" else named))

    torch.empty = shape_alone
    try:
        yield
    finally:
        torch.empty = made
