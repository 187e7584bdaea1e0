"""A small block space for tests of KV transfer: what an engine shows of its blocks, without the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_transfer.tickets import Claims, Keyring, TicketKey, issue
from kv_transfer.transport.protocol import PullOpen
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import Handle, Layout
from tandem.core.messages import RemoteKv
from tandem.engine.digest import Digester, bind
from tandem.engine.memory import HostMemory
from tandem.engine.private_memory import PrivateMemory
from tandem.engine.protocol import BlockMemory, FetchJob, FetchTarget, FirstTokens, Gone, Pending, Prefix

KEYRING = Keyring(TicketKey("k1", b"a test key of enough bytes"))
FIRST = FirstTokens(((0, 17, None), (1, 23, "stop")))


def block_layout(block_bytes: int = 2048, **changes: object) -> Layout:
    """A layout of one layer and four heads whose blocks have `block_bytes`."""
    fields: dict[str, object] = {
        "engine": "test",
        "packing": "plain",
        "dtype": "float32",
        "item_bytes": 4,
        "layers": 1,
        "block_tokens": block_bytes // (1 * 2 * 4 * 4 * 4),
        "kv_heads": 4,
        "head_dim": 4,
    }
    layout = Layout(**{**fields, **changes})  # type: ignore[arg-type]
    assert changes or layout.block_bytes == block_bytes
    return layout


def name_of(index: int, lease_id: str = "lease") -> bytes:
    return f"{lease_id[-8:]}/{index}".encode().ljust(16, b".")[:16]


@dataclass
class Held:
    """A lease: its names in order, with the slot of each complete one."""

    names: dict[bytes, int | None]
    gone: dict[bytes, str] = field(default_factory=dict)
    first: FirstTokens | None = None
    renewed: int = 0


class TestSpace:
    """`tandem.engine.protocol.BlockSpace`. The test plays the engine: `lease`, `complete`, `sample`, `revoke`."""

    __test__ = False

    def __init__(self, layout: Layout, blocks: int, epoch: int, *, shared: bool = True) -> None:
        self.epoch = epoch
        self.layout = layout
        memory = HostMemory if shared else PrivateMemory
        self.memory: BlockMemory = memory(layout.block_bytes, blocks)
        self.leases: dict[str, Held] = {}
        self.moved: dict[str, float] = {}
        """When the works of leases got on last."""
        self.tombstoned: dict[str, None] = {}
        self.landed_words: dict[int, bytes] = {}
        self.ended: list[tuple[int, str | None, tuple[int, ...]]] = []
        self.freed: list[tuple[int, ...]] = []
        self.busy = False
        """Whether nothing can be shared now."""
        self.copied: list[int] = []
        """Slots that are held, once per `hold`."""
        self.rechecked: list[bytes] = []
        """Blocks that were refused by a receiver and found to be good."""
        self.watchers: dict[int, tuple[str, Callable[[], None]]] = {}
        self._digester = Digester(layout)
        self._generations = [0] * blocks
        self._digests: dict[int, bytes] = {}
        self._next_slot = 0
        self._next_watch = 0

    # -- the engine's side --

    def lease(self, lease_id: str, names: tuple[bytes, ...]) -> None:
        self.leases[lease_id] = Held(dict.fromkeys(names))
        self._changed(lease_id)

    def complete(self, lease_id: str, index: int) -> Handle:
        """Compute block `index` of a lease: bytes drawn from its name, in the next slot."""
        held = self.leases[lease_id]
        name = tuple(held.names)[index]
        slot = self._next_slot % self.memory.blocks
        self._next_slot += 1
        self.memory.block(slot)[:] = content(name, self.layout.block_bytes)
        self._generations[slot] += 1
        self._digests[slot] = self._digester.content_words(self.memory.block(slot))
        held.names[name] = slot
        self._changed(lease_id)
        found = self.look(lease_id, name)
        assert isinstance(found, Handle)
        return found

    def sample(self, lease_id: str, first: FirstTokens = FIRST) -> None:
        self.leases[lease_id].first = first
        self._changed(lease_id)

    def lose(self, lease_id: str, index: int, reason: str) -> None:
        held = self.leases[lease_id]
        held.gone[tuple(held.names)[index]] = reason
        self._changed(lease_id)

    def overwrite(self, slot: int) -> None:
        """Change one byte without telling anyone."""
        self.memory.block(slot)[5] ^= 0x40

    def _changed(self, lease_id: str) -> None:
        for watched, wake in tuple(self.watchers.values()):
            if watched == lease_id:
                wake()

    # -- holder --

    def lease_exists(self, lease_id: str) -> bool:
        return lease_id in self.leases

    def lease_ended(self, lease_id: str) -> bool:
        return lease_id in self.tombstoned

    def lease_moved(self, lease_id: str) -> float:
        return self.moved.get(lease_id, float("-inf"))

    def look(self, lease_id: str, name: bytes) -> Handle | Pending | Gone:
        held = self.leases.get(lease_id)
        if held is None or name not in held.names:
            return Gone("the name is not under this lease")
        if name in held.gone:
            return Gone(held.gone[name])
        slot = held.names[name]
        if slot is None:
            return Pending()
        generation = self._generations[slot]
        return Handle(self.epoch, name, slot, generation, bind(self._digests[slot], self.epoch, name, generation))

    def first_tokens(self, lease_id: str) -> FirstTokens | None:
        held = self.leases.get(lease_id)
        return held.first if held is not None else None

    def renew(self, lease_id: str) -> bool:
        held = self.leases.get(lease_id)
        if held is not None:
            held.renewed += 1
        return held is not None

    def release(self, lease_id: str) -> None:
        self.leases.pop(lease_id, None)
        self.tombstoned[lease_id] = None
        self._changed(lease_id)

    def share(self, lease_id: str, names: Sequence[bytes], length_s: float) -> bool:
        if lease_id in self.tombstoned or self.busy:
            return False
        found = {name: slot for held in self.leases.values() for name, slot in held.names.items()}
        here = {name: found[name] for name in names if found.get(name) is not None}
        self.leases.setdefault(lease_id, Held(here))
        return True

    def bring_shared(self, lease_id: str, names: Sequence[bytes]) -> None:
        raise AssertionError("there are no tiers here")

    def hold(self, name: bytes) -> Handle | None:
        for lease_id in self.leases:
            if isinstance(found := self.look(lease_id, name), Handle):
                self.copied.append(found.slot)
                return found
        return None

    def unhold(self, slot: int) -> None:
        self.copied.remove(slot)

    def recheck(self, lease_id: str, name: bytes) -> bool:
        found = self.look(lease_id, name)
        if not isinstance(found, Handle):
            return False
        words = self._digester.content_words(self.memory.block(found.slot))
        if words == self._digests[found.slot]:
            self.rechecked.append(name)
            return False
        self.leases[lease_id].gone[name] = "damaged"
        self._changed(lease_id)
        return True

    def watch(self, lease_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        key = self._next_watch
        self._next_watch += 1
        self.watchers[key] = (lease_id, wake)
        return lambda: self.watchers.pop(key, None) and None

    # -- receiver --

    def prefix(self, work_id: int) -> Prefix | None:
        return None

    def bring(self, work_id: int, blocks: int) -> None:
        raise AssertionError("no work waits here")

    def landed(self, work_id: int, index: int, digests: bytes) -> None:
        assert index not in self.landed_words, f"block {index} landed twice"
        self.landed_words[index] = digests

    def fetch_ended(self, work_id: int, reason: str | None, late: tuple[int, ...] = ()) -> None:
        self.ended.append((work_id, reason, late))

    def quarantine_over(self, slots: tuple[int, ...]) -> None:
        self.freed.append(slots)


def content(name: bytes, size: int) -> bytes:
    """The bytes of a block, from its name."""
    seed = int.from_bytes(name, "little")
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def ready_lease(space: TestSpace, count: int, lease_id: str = "lease") -> tuple[bytes, ...]:
    """A lease whose blocks are all complete and whose first tokens are drawn."""
    names = tuple(name_of(index, lease_id) for index in range(count))
    space.lease(lease_id, names)
    for index in range(count):
        space.complete(lease_id, index)
    space.sample(lease_id)
    return names


def ticket(
    holder_epoch: int, lease_id: str, receiver_epoch: int, expires: float, keyring: Keyring = KEYRING
) -> bytes:
    return issue(keyring, Claims("tenant", holder_epoch, lease_id, receiver_epoch, expires))


def pull_open(
    holder: TestSpace, receiver: TestSpace, names: tuple[bytes, ...], lease_id: str = "lease", expires: float = 4e9
) -> PullOpen:
    return PullOpen(
        lease_id=lease_id,
        ticket=ticket(holder.epoch, lease_id, receiver.epoch, expires),
        holder_epoch=holder.epoch,
        receiver_epoch=receiver.epoch,
        layout=receiver.layout,
        names=names,
    )


def remote_kv(
    holder: TestSpace, receiver: TestSpace, addresses: tuple[str, ...], lease_id: str = "lease"
) -> RemoteKv:
    return RemoteKv(
        worker_id="p0",
        epoch=holder.epoch,
        addresses=addresses,
        lease_id=lease_id,
        ticket=ticket(holder.epoch, lease_id, receiver.epoch, 4e9),
    )


def fetch_job(names: tuple[bytes, ...], layout: Layout, work_id: int = 7) -> FetchJob:
    """Block i goes to slot 2 i + 1, so that source and target slots differ."""
    return FetchJob(
        work_id, tuple(FetchTarget(i, name, 2 * i + 1, 1, layout.block_tokens) for i, name in enumerate(names))
    )


class SlotSink:
    """A sink over every second slot, as `fetch_job`; counts what it was asked for."""

    def __init__(self, space: TestSpace, offset: int = 0) -> None:
        self._space = space
        self._offset = offset

    def block(self, index: int) -> memoryview:
        return self._space.memory.block(self._offset + 2 * index + 1)


def epochs(seed: int) -> tuple[int, int]:
    entropy = SeededEntropy(seed, "epochs")
    return entropy.u64(), entropy.u64()
