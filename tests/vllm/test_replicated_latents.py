"""Latents are the same on all tensor ranks: one of them hands its copy over, and every one takes it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tandem.engine.vllm.canonical import PageFormat, RankPart, layout_of, refuse_gaps, slot_shape
from tandem.engine.vllm.connector import rank_config as vllm_rank
from tandem.engine.vllm.connector.cache_pages import CachePages
from tandem.engine.vllm.connector.host_copies import HostCopies
from tandem.engine.vllm.connector.orders import PageTarget

LAYERS, BLOCKS, TOKENS, WIDTH = 3, 5, 16, 576


def caches(seed: int) -> list[torch.Tensor]:
    """As vLLM's ranks register them: blocks x one head x tokens x latent."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(BLOCKS, 1, TOKENS, WIDTH, generator=drawn) for _ in range(LAYERS)]


def ranks(monkeypatch: pytest.MonkeyPatch, tensor: int) -> list[tuple[PageFormat, RankPart]]:
    """What every rank of an engine says of itself."""
    model = SimpleNamespace(use_mla=True, dtype=torch.float32, get_total_num_hidden_layers=lambda: LAYERS)
    config: Any = SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(tensor_parallel_size=tensor, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=TOKENS),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    monkeypatch.setattr(vllm_rank, "get_pp_group", lambda: SimpleNamespace(rank_in_group=0))
    found = []
    for rank in range(tensor):
        monkeypatch.setattr(vllm_rank, "get_tp_group", lambda rank=rank: SimpleNamespace(rank_in_group=rank))
        layer, cache = caches(0)[0], SimpleNamespace(num_blocks=BLOCKS)
        pages = vllm_rank._page_format(config, cache, "layer", layer)
        found.append((pages, vllm_rank._part(config, pages, layer.shape[1], LAYERS)))
    return found


def copies(layers: list[torch.Tensor], part: RankPart, form: PageFormat, memory: memoryview) -> HostCopies:
    made = HostCopies(CachePages(layers, BLOCKS, part, slot_shape(form)))
    made.map_slots(memory)
    return made


@pytest.mark.parametrize(("prefill", "decode"), [(2, 2), (2, 1), (1, 2), (4, 2)])
def test_one_rank_hands_over_and_every_rank_takes(monkeypatch: pytest.MonkeyPatch, prefill: int, decode: int) -> None:
    sources, sinks = ranks(monkeypatch, prefill), ranks(monkeypatch, decode)
    assert [part.writes for _, part in sources] == [True] + [False] * (prefill - 1)
    form = sources[0][0]
    assert form.packing == "latent"
    assert {layout_of(pages) for pages, _ in sources + sinks} == {layout_of(form)}, "they pair"
    for engine in (sources, sinks):
        refuse_gaps(form, [part for _, part in engine])
    shape = slot_shape(form)
    assert shape.slot_bytes == LAYERS * TOKENS * WIDTH * 4, "one copy, however many ranks there are"
    memory = memoryview(bytearray(2 * shape.slot_bytes))
    for rank, (_, part) in enumerate(sources):
        # The others' latents are made different here: what arrives tells whose were handed over.
        saved = copies(caches(rank), part, form, memory).save([PageTarget(0, 1, 3)], range(LAYERS))
        assert bool(saved.bytes) == (rank == 0)
    for _, part in sinks:
        taken = [torch.zeros_like(layer) for layer in caches(0)]
        copies(taken, part, form, memory).load([PageTarget(0, 1, 2)])
        for mine, theirs in zip(taken, caches(0), strict=True):
            assert torch.equal(mine[2], theirs[3])
            assert not mine[[0, 1, 3, 4]].any()
