"""The view that KV transfer has of a stage: `tandem.engine.protocol.BlockSpace` over its books and its memory."""

from collections.abc import Callable

from tandem.core.clock import Clock
from tandem.core.kv import Layout
from tandem.engine.leased_block_space import LeasedBlockSpace
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import BlockMemory, Prefix
from tandem.engine.scheduler.kv_cache_manager import KvCacheManager
from tandem.engine.scheduler.shared_exports import SharedExports
from tandem.engine.vllm.stage_state import StageState


class StageSpace(LeasedBlockSpace):
    """The part of a `Stage` that other workers' requests come to. `clock` must agree with the event loop's time."""

    def __init__(self, clock: Clock, epoch: int) -> None:
        super().__init__(clock, epoch)
        self._memory: HostMemory | None = None
        self._layout: Layout | None = None
        self._books: StageState | None = None

    @property
    def books(self) -> StageState:
        """The decisions; there once `ready` has returned."""
        assert self._books is not None, "ready() has not returned yet"
        return self._books

    @property
    def layout(self) -> Layout:
        assert self._layout is not None, "ready() has not returned yet"
        return self._layout

    @property
    def memory(self) -> BlockMemory:
        assert self._memory is not None, "ready() has not returned yet"
        return self._memory

    @property
    def _kv_cache(self) -> KvCacheManager:
        return self.books.kv_cache

    @property
    def _sharing(self) -> SharedExports:
        return self.books.sharing

    def _invalidate(self, slot: int) -> None:
        self.books.invalidate(slot)

    def keep_while(self, pinned: Callable[[bytes], bool]) -> None:
        """Evict blocks for whose names this holds after all others."""
        self.books.pool.pinned = pinned

    # -- receiver --

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
