"""What tests of tiers stand on: a pool that plays the engine's, tiers of every kind, and what they have told."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.tiers.local import LocalTiers
from kv_transfer.tiers.memory_backend import MemoryDisk
from kv_transfer.tiers.memory_tiers import memory_tiers
from kv_transfer.tiers.open import TierIdentity, open_tiers
from kv_transfer.tiers.protocol import Lost, OffloadCandidate, Restored
from kv_transfer.tiers.settings import TierSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Handle, Layout
from tandem.engine.digest import Digester, bind
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import FetchTarget
from tandem.process.metrics import PrometheusMeter
from tandem.process.system import SystemClock
from tests.contract.block_space import block_layout, content

KEYRING = Keyring(TicketKey("k1", b"a test key of enough bytes"))
KINDS = ("memory-dram", "memory-nvme", "memory-both", "dram", "nvme", "both")
ON_DISK = ("memory-nvme", "nvme")
BLOCK = 2048
STRIDE = 4096 + 4096
SEGMENT = 4096 + 8 * STRIDE
"""Eight records of a small block."""
ROOT = b"root of a model."


def named(index: int, prompt: str = "p") -> bytes:
    return f"{prompt}/{index}".encode().ljust(16, b".")[:16]


class Pool:
    """`kv_transfer.tiers.backend.HeldSpace`: the first half of the slots has blocks, the second waits for them."""

    def __init__(self, layout: Layout, blocks: int) -> None:
        self.epoch = 77
        self.layout = layout
        self.memory = HostMemory(layout.block_bytes, 2 * blocks)
        self.held: dict[int, int] = {}
        self.digester = Digester(layout)
        self._slots: dict[bytes, int] = {}
        self._blocks = blocks
        self._next = 0

    def compute(self, names: Sequence[bytes], tenant: str = "") -> list[OffloadCandidate]:
        """Make blocks; the oldest are overwritten when there is no room."""
        return [self._compute(name, tenant) for name in names]

    def _compute(self, name: bytes, tenant: str) -> OffloadCandidate:
        slot = self._next % self._blocks
        self._next += 1
        self._slots = {known: at for known, at in self._slots.items() if at != slot}
        self._slots[name] = slot
        self.memory.block(slot)[:] = content(name, self.layout.block_bytes)
        return OffloadCandidate(name, tenant)

    def evict(self, name: bytes) -> None:
        del self._slots[name]

    def words(self, name: bytes) -> bytes:
        return self.digester.content_words(content(name, self.layout.block_bytes))

    def hold(self, name: bytes) -> Handle | None:
        slot = self._slots.get(name)
        if slot is None:
            return None
        self.held[slot] = self.held.get(slot, 0) + 1
        return Handle(self.epoch, name, slot, 1, bind(self.words(name), self.epoch, name, 1))

    def unhold(self, slot: int) -> None:
        self.held[slot] -= 1
        if not self.held[slot]:
            del self.held[slot]

    def targets(self, names: Sequence[bytes], first: int = 0) -> list[FetchTarget]:
        """Where blocks `first`, … of a prompt are to go: empty slots of the second half."""
        targets = [
            FetchTarget(first + index, name, self._blocks + index, 1, self.layout.block_tokens)
            for index, name in enumerate(names)
        ]
        for target in targets:
            self.memory.block(target.slot)[:] = bytes(self.layout.block_bytes)
        return targets


@dataclass
class Stage:
    """Tiers under test. `views` is what a watcher knows of each tier."""

    kind: str
    pool: Pool
    tiers: LocalTiers
    meter: PrometheusMeter
    disk: MemoryDisk
    folder: Path
    views: dict[str, dict[bytes, None]] = field(default_factory=dict)

    def told(self, tier: str, stored: tuple[bytes, ...], removed: tuple[bytes, ...]) -> None:
        view = self.views.setdefault(tier, {})
        for name in removed:
            del view[name]
        for name in stored:
            assert name not in view, "told twice"
            view[name] = None

    async def keep(self, names: Sequence[bytes], tenant: str = "") -> None:
        """Compute blocks and have them copied, a pool full at a time."""
        for start in range(0, len(names), 8):
            self.tiers.offer(self.pool.compute(names[start : start + 8], tenant))
            await self.tiers.settle()

    async def restore(self, names: Sequence[bytes], within_s: float = 30.0) -> list[Restored | Lost]:
        targets = self.pool.targets(names)
        deadline = SystemClock().now() + within_s
        restoring = self.tiers.restore(targets, self.pool.memory, deadline)
        return [outcome async for batch in restoring for outcome in batch]

    def landed(self, index: int) -> bytes:
        """The bytes where block `index` of the last restore was to go."""
        return bytes(self.pool.memory.block(self.pool._blocks + index))

    def good(self, names: Sequence[bytes], outcomes: Sequence[Restored | Lost]) -> bool:
        """Whether all came, in order, with the bytes and words they should have."""
        return all(
            isinstance(outcome, Restored)
            and outcome.index == index
            and outcome.words == self.pool.words(name)
            and self.landed(index) == content(name, BLOCK)
            for index, (name, outcome) in enumerate(zip(names, outcomes, strict=True))
        )

    def figure(self, metric: str, *labels: str) -> float:
        return self.meter._values.get((metric, labels), 0.0)


def settings_for(kind: str, blocks: int, folder: Path, **changes: object) -> TierSettings:
    """Tiers of about `blocks` small blocks."""
    dram = "dram" in kind or "both" in kind
    nvme = "nvme" in kind or "both" in kind
    segments = -(-blocks // 8) + 1
    memory = kind.startswith("memory")
    fields: dict[str, object] = {
        "dram_bytes": blocks * BLOCK if dram else 0,
        "nvme_dir": folder,
        "nvme_bytes": 0 if not nvme else blocks * BLOCK if memory else segments * SEGMENT,
        "segment_bytes": blocks * BLOCK // 4 if memory and nvme else SEGMENT,
        "stall_s": 30.0,
        "retry_s": 0.05,
        "retry_max_s": 0.2,
        "write_through": True,
    }
    return TierSettings(**{**fields, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def stage(
    kind: str,
    folder: Path,
    blocks: int = 32,
    disk: MemoryDisk | None = None,
    keyring: Keyring = KEYRING,
    layout: Layout | None = None,
    root: bytes = ROOT,
    pool_blocks: int = 64,
    usable: bool = True,
    **changes: object,
) -> AsyncGenerator[Stage, None]:
    """Tiers over a pool, closed at the end. With `usable` they take blocks when the test begins."""
    settings = settings_for(kind, blocks, folder, **changes)
    pool, meter, clock = Pool(layout or block_layout(BLOCK), pool_blocks), PrometheusMeter(), SystemClock()
    disk = disk or MemoryDisk()
    if kind.startswith("memory"):
        tiers = memory_tiers(settings, pool, clock, meter, disk)
    else:
        identity = TierIdentity("worker/1", root)
        tiers = open_tiers(settings, pool, clock, meter, keyring, identity, SeededEntropy(1))
    made = Stage(kind, pool, tiers, meter, disk, folder / "worker.2f.1")
    tiers.watch(made.told)
    for tier, names in tiers.snapshot().items():
        made.told(tier, names, ())
    try:
        if usable:
            await until(lambda: tiers.usable)
        yield made
    finally:
        await tiers.close()
    assert not pool.held, "slots are still held"


async def until(condition: Callable[[], bool], within_s: float = 30.0, strict: bool = True) -> None:
    """Give others their turns until `condition()` holds."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    except TimeoutError:
        if strict:
            raise
