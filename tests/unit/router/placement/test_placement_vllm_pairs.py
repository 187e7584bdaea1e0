"""vLLM workers are paired when their slots hold the same bytes, however they are sharded, or the reason is told."""

from dataclasses import replace

import pytest
from msgspec import structs

from router.placement import CostModel, Placement, PlacementRequest, WorkerView, make_policy
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Layout
from tandem.engine.vllm.canonical import PageFormat, layout_of

PAGES = PageFormat(
    engine="vllm/pages-1/0.32",
    packing="cpu",
    isa="vec",
    dtype="float32",
    item_bytes=4,
    block_tokens=32,
    layers=4,
    units=2,
    units_per_head=1,
    page_bytes=32 * 2 * 16 * 4,
)
DECODE = layout_of(PAGES)
"""The same for every number of ranks."""
TORCH = Layout("torch", "block", "float32", 4, 4, 32, 2, 16)


def placed(prefill: Layout) -> Placement:
    """As the router groups workers: those that can exchange blocks have the same pairing."""
    pairing = 0 if prefill == DECODE else 1
    view = WorkerView("p1", 1, "prefill", "demo", "r1", pairing, b"r" * 16, prefill, 1000, 8192)
    workers = (view, replace(view, worker_id="d1", role="decode", pairing=0, layout=DECODE))
    settings = PlacementSettings(prefer="disaggregated")
    request = PlacementRequest("demo", 500, 1, 64)
    costs = CostModel(CostPriors())
    found = make_policy(settings, SeededEntropy(0)).choose(request, workers, costs, settings, None, 0.0)
    assert isinstance(found, Placement)
    return found


def test_equal_workers_are_paired() -> None:
    assert placed(layout_of(PAGES)).mode == "disaggregated"


@pytest.mark.parametrize(
    ("prefill", "field"),
    [
        (TORCH, "engine"),
        (layout_of(structs.replace(PAGES, engine="vllm-0.33.0")), "engine"),
        (layout_of(structs.replace(PAGES, packing="keys-values", isa="")), "packing"),
        (layout_of(structs.replace(PAGES, isa="amx")), "isa"),
        (layout_of(structs.replace(PAGES, block_tokens=64, page_bytes=2 * PAGES.page_bytes)), "block_tokens"),
    ],
)
def test_a_mixed_pair_is_refused_and_the_field_is_named(prefill: Layout, field: str) -> None:
    found = placed(prefill)
    assert (found.mode, found.prefill) == ("local", None)
    assert f"p1: {field} differs" in found.reasons[0]
