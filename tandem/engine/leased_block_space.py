"""The part of a `BlockSpace` that is the same for every engine: leases over a pool, and copies of its blocks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tandem.core.clock import Clock
from tandem.core.kv import Handle, Layout
from tandem.engine.digest import Digester, bind
from tandem.engine.protocol import BlockMemory, FirstTokens, Gone, Pending
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.shared_exports import SharedExports


class LeasedBlockSpace(ABC):
    """The holder's side of `BlockSpace` and that of the tiers, over the blocks of a `KvCacheManager`.

    The receiver's side is an engine's own: what becomes of a block that lands depends on who computes with it.
    `clock` must agree with the event loop's time.
    """

    def __init__(self, clock: Clock, epoch: int) -> None:
        self._clock = clock
        self._epoch = epoch
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    # -- what an engine brings along --

    @property
    @abstractmethod
    def layout(self) -> Layout: ...

    @property
    @abstractmethod
    def memory(self) -> BlockMemory: ...

    @property
    @abstractmethod
    def _kv_cache(self) -> KvCacheManager:
        """The blocks and their leases; available once the engine has started."""

    @property
    @abstractmethod
    def _sharing(self) -> SharedExports:
        """Blocks given to peers that no request here computes for them."""

    @abstractmethod
    def _invalidate(self, slot: int) -> None:
        """Withdraw a block whose bytes are damaged from everything that uses it."""

    @abstractmethod
    def _changed(self) -> None:
        """Note that a command came: act on it, and report its effects soon."""

    # -- holder --

    @property
    def epoch(self) -> int:
        return self._epoch

    def begin_epoch(self, epoch: int) -> None:
        """A new incarnation: handles and leases of the last one are void."""
        self._epoch = epoch
        self._kv_cache.leases.release_all()
        self._changed()

    def lease_exists(self, lease_id: str) -> bool:
        return self._kv_cache.leases.exists(lease_id)

    def lease_ended(self, lease_id: str) -> bool:
        return self._kv_cache.leases.tombstoned(lease_id)

    def lease_moved(self, lease_id: str) -> float:
        return self._kv_cache.leases.moved(lease_id)

    def look(self, lease_id: str, name: bytes) -> Handle | Pending | Gone:
        return self._kv_cache.leases.look(lease_id, name, self._epoch)

    def first_tokens(self, lease_id: str) -> FirstTokens | None:
        return self._kv_cache.leases.first_tokens(lease_id)

    def renew(self, lease_id: str) -> bool:
        return self._kv_cache.leases.renew(lease_id, self._clock.now())

    def release(self, lease_id: str) -> None:
        self._kv_cache.leases.release(lease_id)
        self._changed()

    def share(self, lease_id: str, names: Sequence[bytes], length_s: float) -> bool:
        shared = self._sharing.open(lease_id, names, length_s, self._clock.now())
        self._changed()
        return shared

    def bring_shared(self, lease_id: str, names: Sequence[bytes]) -> None:
        self._sharing.peer_reads.ask(lease_id, names)
        self._changed()

    def recheck(self, lease_id: str, name: bytes) -> bool:
        found = self.look(lease_id, name)
        if not isinstance(found, Handle):
            return False
        words = Digester(self.layout).content_words(self.memory.block(found.slot))
        if bind(words, found.epoch, name, found.generation) == found.digests:
            return False
        self._invalidate(found.slot)
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

    def _wake_watchers(self) -> None:
        """Wake those that watch a lease whose answers may have changed."""
        for lease_id in self._kv_cache.leases.take_touched():
            for wake in tuple(self._watchers.get(lease_id, ())):
                wake()

    # -- tiers --

    def hold(self, name: bytes) -> Handle | None:
        pool = self._kv_cache.pool
        slot = pool.hold(name)
        if slot is None:
            return None
        words, generation = pool.digests(slot), pool.generation(slot)
        assert words is not None, "a block with a name is complete"
        return Handle(self._epoch, name, slot, generation, bind(words, self._epoch, name, generation))

    def unhold(self, slot: int) -> None:
        self._kv_cache.pool.unhold(slot)
        self._changed()

    def quarantine_over(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._kv_cache.pool.unquarantine(slot)
        self._changed()
