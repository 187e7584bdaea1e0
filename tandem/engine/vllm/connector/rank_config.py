"""The configuration of one vLLM rank: reads its place and its KV tensors out of vLLM's own configuration."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.core.errors import TandemError
from tandem.engine.vllm.canonical import PageFormat, RankPart, head_units, slot_shape
from tandem.engine.vllm.conduit_messages import CONDUIT_VERSION, RankHello
from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.conduit_client import ConduitClient
from tandem.engine.vllm.connector.copies import Copies
from tandem.engine.vllm.connector.expert_counts import expert_counts
from tandem.engine.vllm.connector.host_copies import HostCopies
from tandem.engine.vllm.connector.load_pace import LoadPace
from tandem.engine.vllm.connector.worker_side import TandemConnectorWorker
from tandem.engine.vllm.internals import engine_name, get_pp_group, get_pp_indices, get_tp_group

if TYPE_CHECKING:
    import torch

    from tandem.engine.vllm.internals import KVCacheConfig, VllmConfig


def open_worker(
    config: "VllmConfig", kv_cache: "KVCacheConfig", caches: "Mapping[str, torch.Tensor]"
) -> TandemConnectorWorker:
    """Connect this rank to the stage. Raises `engine_failed` or `bad_setting` for what cannot be exchanged."""
    _refuse_unknown(config, kv_cache)
    names = _in_order(caches)
    layers = [caches[name] for name in names]
    pages = _page_format(config, kv_cache, names[0], layers[0])
    part = _part(config, pages, layers[0].shape[1], len(layers))
    parallel = config.parallel_config
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    rank = get_pp_group().rank_in_group * tensor + get_tp_group().rank_in_group
    shape = slot_shape(pages)
    cache = CachePages(layers, kv_cache.num_blocks, part, shape)
    hello = RankHello(CONDUIT_VERSION, rank, tensor * pipeline, os.getpid(), pages, part)
    told = config.kv_transfer_config.kv_connector_extra_config
    client = ConduitClient(told["socket"], hello)
    experts = expert_counts(config, get_tp_group().rank_in_group)
    # Where a step computes in two halves a layer is told of once for each, and only the second has all of a block.
    by_layer = () if parallel.use_ubatching else names
    pace = LoadPace(told["itl_target_s"])
    return TandemConnectorWorker(rank, client, _copies(cache), cache.block_bytes, pace, by_layer, experts)


def _copies(cache: CachePages) -> Copies:
    if cache.device.type == "cpu":
        return HostCopies(cache)
    # Imported on use: only devices need them.
    from tandem.engine.vllm.connector.device_calls import CudaCalls
    from tandem.engine.vllm.connector.device_copies import DeviceCopies

    return DeviceCopies(cache, CudaCalls(cache.device))


def _refuse_unknown(config: "VllmConfig", kv_cache: "KVCacheConfig") -> None:
    parallel = config.parallel_config
    if len(kv_cache.kv_cache_groups) != 1:
        kinds = len(kv_cache.kv_cache_groups)
        raise TandemError(
            "bad_model",
            f"the model has {kinds} kinds of KV cache, and blocks of one kind can be exchanged: serve it with role "
            "unified and kv_transfer 'never'",
        )
    for name in ("data_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise TandemError("bad_setting", f"{name} {getattr(parallel, name)} is not supported here", param=name)


def _in_order(caches: "Mapping[str, torch.Tensor]") -> list[str]:
    """Names of the layers that have a cache of their own, in the order of the model."""
    seen = set[int]()
    names = list[str]()
    for name in sorted(caches, key=_layer_number):
        if caches[name].data_ptr() not in seen:
            seen.add(caches[name].data_ptr())
            names.append(name)
    return names


def _layer_number(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


def _page_format(config: "VllmConfig", kv_cache: "KVCacheConfig", layer: str, cache: "torch.Tensor") -> PageFormat:
    heads = _heads(config)
    tensor = config.parallel_config.tensor_parallel_size
    local = max(1, heads // tensor)
    dtype = config.cache_config.cache_dtype
    isa = getattr(config.compilation_config.static_forward_context.get(layer), "isa", "") or ""
    units_per_head = max(1, cache.shape[1] // local)
    kernel_blocks = cache.shape[0] // kv_cache.num_blocks
    return PageFormat(
        engine=engine_name(),
        packing=_packing(config, isa, units_per_head),
        isa=isa,
        dtype=str(config.model_config.dtype).removeprefix("torch.") if dtype == "auto" else str(dtype),
        item_bytes=cache.element_size(),
        block_tokens=config.cache_config.block_size,
        layers=config.model_config.get_total_num_hidden_layers(),
        units=heads * units_per_head,
        units_per_head=units_per_head,
        page_bytes=kernel_blocks * cache.shape[2] * cache.shape[3] * cache.element_size(),
    )


def _heads(config: "VllmConfig") -> int:
    return 1 if config.model_config.use_mla else int(config.model_config.get_total_num_kv_heads())


def _packing(config: "VllmConfig", isa: str, units_per_head: int) -> str:
    if config.model_config.use_mla:
        return "latent"
    if isa:
        return "cpu"
    return "keys-values" if units_per_head == 1 else "keys-values-apart"


def _part(config: "VllmConfig", pages: PageFormat, head_slots: int, layer_count: int) -> RankPart:
    parallel = config.parallel_config
    units, writes = head_units(
        pages.units // pages.units_per_head,
        parallel.tensor_parallel_size,
        get_tp_group().rank_in_group,
        units_per_head=pages.units_per_head,
    )
    first, end = get_pp_indices(pages.layers, get_pp_group().rank_in_group, parallel.pipeline_parallel_size)
    if (len(units), end - first) != (head_slots, layer_count):
        raise TandemError(
            "bad_model",
            f"a rank has {layer_count} layers of {head_slots} head slots, {end - first} of {len(units)} were "
            "expected: models with caches besides their layers' own cannot be exchanged",
        )
    return RankPart(first, layer_count, units, writes)
