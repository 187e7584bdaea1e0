"""The view that KV transfer has of a stage: `tandem.engine.protocol.BlockSpace` over its books and its memory."""

from collections.abc import Callable, Sequence

from tandem.core.clock import Clock
from tandem.core.kv import Handle, Layout
from tandem.engine.digest import Digester, bind
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import BlockMemory, FirstTokens, Gone, Pending, Prefix
from tandem.engine.vllm.stage_state import StageState


class StageSpace:
    """The part of a `Stage` that other workers' requests come to. `clock` must agree with the event loop's time."""

    def __init__(self, clock: Clock, epoch: int) -> None:
        self._clock = clock
        self._epoch = epoch
        self._memory: HostMemory | None = None
        self._layout: Layout | None = None
        self._digester: Digester | None = None
        self._books: StageState | None = None
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    def _changed(self) -> None:
        """Something came, of which something may follow."""
        raise NotImplementedError

    @property
    def books(self) -> StageState:
        """The decisions; there once `ready` has returned."""
        assert self._books is not None, "ready() has not returned yet"
        return self._books

    # -- blocks, holder side --

    @property
    def epoch(self) -> int:
        return self._epoch

    def begin_epoch(self, epoch: int) -> None:
        """A new incarnation: handles and leases of the last one are void."""
        self._epoch = epoch
        self.books.leases.release_all()
        self._changed()

    @property
    def layout(self) -> Layout:
        assert self._layout is not None, "ready() has not returned yet"
        return self._layout

    @property
    def memory(self) -> BlockMemory:
        assert self._memory is not None, "ready() has not returned yet"
        return self._memory

    def lease_exists(self, lease_id: str) -> bool:
        return self.books.leases.exists(lease_id)

    def lease_ended(self, lease_id: str) -> bool:
        return self.books.leases.tombstoned(lease_id)

    def lease_moved(self, lease_id: str) -> float:
        return self.books.leases.moved(lease_id)

    def look(self, lease_id: str, name: bytes) -> Handle | Pending | Gone:
        return self.books.leases.look(lease_id, name, self._epoch)

    def first_tokens(self, lease_id: str) -> FirstTokens | None:
        return self.books.leases.first_tokens(lease_id)

    def renew(self, lease_id: str) -> bool:
        return self.books.leases.renew(lease_id, self._clock.now())

    def release(self, lease_id: str) -> None:
        self.books.leases.release(lease_id)
        self._changed()

    def share(self, lease_id: str, names: Sequence[bytes], length_s: float) -> bool:
        shared = self.books.sharing.open(lease_id, names, length_s, self._clock.now())
        self._changed()
        return shared

    def bring_shared(self, lease_id: str, names: Sequence[bytes]) -> None:
        self.books.sharing.peer_reads.ask(lease_id, names)
        self._changed()

    def recheck(self, lease_id: str, name: bytes) -> bool:
        found = self.look(lease_id, name)
        if not isinstance(found, Handle):
            return False
        assert self._digester is not None
        words = self._digester.content_words(self.memory.block(found.slot))
        if bind(words, found.epoch, name, found.generation) == found.digests:
            return False
        self.books.invalidate(found.slot)
        self._changed()
        return True

    def watch(self, lease_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        self._watchers.setdefault(lease_id, []).append(wake)

        def unwatch() -> None:
            watching = self._watchers.get(lease_id, [])
            if wake in watching:
                watching.remove(wake)
            if not watching:
                self._watchers.pop(lease_id, None)

        return unwatch

    # -- blocks, tiers --

    def hold(self, name: bytes) -> Handle | None:
        pool = self.books.pool
        slot = pool.hold(name)
        if slot is None:
            return None
        words, generation = pool.digests(slot), pool.generation(slot)
        assert words is not None, "a block with a name is complete"
        return Handle(self._epoch, name, slot, generation, bind(words, self._epoch, name, generation))

    def unhold(self, slot: int) -> None:
        self.books.pool.unhold(slot)
        self._changed()

    def keep_while(self, pinned: Callable[[bytes], bool]) -> None:
        """Evict blocks for whose names this holds after all others."""
        self.books.pool.pinned = pinned

    # -- blocks, receiver side --

    def prefix(self, work_id: int) -> Prefix | None:
        return self.books.prefix(work_id)

    def bring(self, work_id: int, blocks: int) -> None:
        self.books.bring(work_id, blocks)
        self._changed()

    def landed(self, work_id: int, index: int, digests: bytes) -> None:
        self.books.landed(work_id, index, digests)
        self._changed()

    def fetch_ended(self, work_id: int, reason: str | None, late: tuple[int, ...] = ()) -> None:
        self.books.fetch_ended(work_id, late)
        self._changed()

    def quarantine_over(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self.books.pool.unquarantine(slot)
        self._changed()
