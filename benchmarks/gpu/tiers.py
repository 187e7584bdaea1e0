"""Step 5: what tiers and transports do with blocks on a card: copies to and from host memory, and hashes."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.results import Measurement
from benchmarks.gpu.target import Target
from tandem.core.kv import Layout
from tandem.engine.digest import DIGEST, Digester
from tandem.engine.memory import HostMemory
from tandem.engine.torch.pool import KvPool, host_tensor

TITLE = "Blocks between host memory and the card"


def measure(target: Target) -> Iterator[Measurement]:
    """GB/s for blocks of an 8B model, in batches as a restore brings them."""
    layers, heads = target.sized(32, 2), target.sized(8, 2)
    layout = Layout(
        engine="benchmark", packing="block-major", dtype="bfloat16", item_bytes=2, layers=layers, block_tokens=16,
        kv_heads=heads, head_dim=128, digest=DIGEST,
    )  # fmt: skip
    blocks = target.sized(512, 8)
    memory = HostMemory(layout.block_bytes, blocks)
    host = host_tensor(memory, layout, blocks)
    host.view(torch.int16).random_(-30_000, 30_000)
    expected = host.clone()
    pool = KvPool(host, target.device, mirrored=True)
    slots = tuple(range(blocks))

    def load() -> None:
        pool.load(slots)
        pool.settle()

    def store() -> None:
        pool.store(slots)
        pool.settle()

    size = blocks * layout.block_bytes
    yield Measurement(
        "host memory to the card", size / target.seconds(load) / 1e9, "GB/s", "pinned, a copy per block"
    )
    host.zero_()
    yield Measurement(
        "the card to host memory", size / target.seconds(store) / 1e9, "GB/s", "pinned, a copy per block"
    )
    if not torch.equal(host.view(torch.int16), expected.view(torch.int16)):
        raise AssertionError("blocks came back from the device with other bytes")
    digester = Digester(layout)
    taken = target.seconds(lambda: [digester.content_words(memory.block(slot)) for slot in slots])
    yield Measurement("hashing, one core", size / taken / 1e9, "GB/s", DIGEST)
    other = torch.empty_like(host)
    yield Measurement("memcpy, one core", size / target.seconds(lambda: _copied(other, host)) / 1e9, "GB/s")


def _copied(target: torch.Tensor, source: torch.Tensor) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    target.copy_(source)
    torch.set_num_threads(threads)
