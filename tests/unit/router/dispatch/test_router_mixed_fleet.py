"""Workers whose blocks are not interchangeable, in one fleet: never paired, not even for a canary, and why."""

from dataclasses import replace

import pytest

from router.settings import PlacementSettings, RouterSettings
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.core.kv import Layout, RootIdentity
from tests.worlds.router_world import World

VLLM = Layout("vllm/pages-1/0.32", "cpu", "float32", 4, 6, 32, 2, 32, isa="avx512")
SETTINGS = RouterSettings(placement=PlacementSettings(prefer="disaggregated"))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            Layout("torch", "block", "float32", 4, 6, 32, 2, 32),
            "engine differs: 'vllm/pages-1/0.32' here, 'torch' there",
        ),
        (
            replace(VLLM, engine="vllm/pages-2/0.33"),
            "engine differs: 'vllm/pages-1/0.32' here, 'vllm/pages-2/0.33' there",
        ),
        (replace(VLLM, block_tokens=64), "block_tokens differs: 32 here, 64 there"),
        (replace(VLLM, packing="hnd"), "packing differs: 'cpu' here, 'hnd' there"),
        (replace(VLLM, isa="amx"), "isa differs: 'avx512' here, 'amx' there"),
        (replace(VLLM, dtype="bfloat16", item_bytes=2), "dtype differs: 'float32' here, 'bfloat16' there"),
    ],
)
def test_a_mixed_pair_is_never_used(other: Layout, why: str) -> None:
    async def story(loop: VirtualLoop) -> None:
        world = World(loop, SETTINGS, canaries=True)
        prefill, decode = world.worker("p0", "prefill"), world.worker("d0", "decode")
        for worker, layout in ((prefill, other), (decode, VLLM)):
            worker.layout = layout
            worker.root = RootIdentity("content", layout.dtype, layout.block_tokens).name()
        await world.start()
        client = world.ask(tokens=100, max_tokens=3)
        await client.ended.wait()
        client.check_whole()
        assert not prefill.submits
        assert not prefill.canaries
        assert not decode.canaries
        assert [submit.mode for submit in decode.submits] == ["local"]
        assert all(not worker.pairs for worker in world.fleet.listing())
        (spans,) = world.recorder.kept.values()
        said = [str(value) for span in spans if span.name == "place" for value in span.attributes.values()]
        assert any(f"no prefill worker may be paired with it; p0: {why}" in text for text in said)
        await world.stop()

    run(story)


@pytest.mark.parametrize("neighbour", [VLLM, replace(VLLM, engine="vllm/pages-1/0.33")])
def test_the_fitting_worker_of_a_mixed_fleet_is_used(neighbour: Layout) -> None:
    """The next version of the engine fits too, as long as its pages are laid out alike."""

    async def story(loop: VirtualLoop) -> None:
        world = World(loop, SETTINGS, canaries=True)
        workers = [world.worker("p0", "prefill"), world.worker("p1", "prefill"), world.worker("d0", "decode")]
        for worker, layout in zip(workers, (replace(VLLM, isa="amx"), neighbour, VLLM), strict=True):
            worker.layout = layout
        await world.start()
        for _ in range(4):
            client = world.ask(tokens=100, max_tokens=3)
            await client.ended.wait()
            client.check_whole()
        assert not workers[0].submits
        assert [submit.mode for submit in workers[1].submits] == ["prefill"] * 4
        await world.stop()

    run(story)
