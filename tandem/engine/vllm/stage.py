"""The stage: host memory through which vLLM's KV blocks are exchanged, and the `BlockSpace` over it.

Only vLLM reads its own blocks. A *stage slot* holds one block in canonical order (`canonical`). This process and all
ranks of the engine map it, and the ranks copy between their tensors and slots inside their steps. Everything above
sees slots only: exports, fetches, tickets and tiers work as with any other engine. A block that is no longer in use
stays under its name until its slot is wanted: the stage is also this worker's cache in DRAM.

`stage_state` decides, and this shell carries out: messages to ranks, digests in a thread, timers, and callbacks.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.engine.counts import ExpertBalance, mean_balance
from tandem.engine.digest_threads import DigestThreads
from tandem.engine.hashing import hashed
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import EngineRequest, FirstTokens, StepReport
from tandem.engine.vllm.canonical import layout_of, refuse_gaps, slot_shape
from tandem.engine.vllm.conduit import Conduit
from tandem.engine.vllm.conduit_messages import (
    CONDUIT_VERSION,
    Began,
    Ended,
    FromRank,
    LoadFinished,
    OutputOffer,
    OutputSaved,
    RankHello,
    Routed,
    Saved,
    Welcome,
)
from tandem.engine.vllm.stage_outputs import Digested
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.stage_size import slots_of
from tandem.engine.vllm.stage_space import StageSpace
from tandem.engine.vllm.stage_state import StageState
from tandem.engine.vllm.staged_request import Opened, Sources

_CONNECTOR: Final = "TandemConnector"
_CONNECTOR_MODULE: Final = "tandem.engine.vllm.connector.vllm"


def _nothing(*_: object) -> None:
    """Placeholder for a callback that the engine has not set; does nothing."""


class Stage(StageSpace):
    """The stage of one engine. `clock` must agree with the event loop's time. The engine sets the `on_…` callbacks,
    which run on the event loop, never from inside a call to the stage.

    `on_admitted(work_id, params)`: the request has its slots, or needs none (`params` None); now vLLM may have it.
    `on_refused(work_id, error)`: the request waited in vain, and is closed. `on_report`: reports fetches and changed
    block names. `on_lost`: gives one sentence when a rank is gone.
    """

    def __init__(self, settings: StageSettings, clock: Clock, epoch: int) -> None:
        super().__init__(clock, epoch)
        self._settings = settings
        self.on_admitted: Callable[[int, dict[str, object] | None], None] = _nothing
        self.on_refused: Callable[[int, TandemError], None] = _nothing
        self.on_report: Callable[[StepReport], None] = _nothing
        self.on_lost: Callable[[str], None] = _nothing
        self._conduit = Conduit(settings.directory, self._heard, self._rank_gone)
        self._hellos: dict[int, RankHello] = {}
        self._balances: dict[int, ExpertBalance] = {}
        """Expert balances by the rank that reported them, each of that rank's own layers."""
        self._all_here = asyncio.Event()
        self._problem: str | None = None
        self._hashing: DigestThreads | None = None
        self._digests: dict[asyncio.Task[None], None] = {}
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None

    # -- life --

    async def start(self) -> None:
        """Listen for ranks; call it before vLLM is built. Raises `bad_setting` when that cannot be."""
        self._conduit.open()

    def transfer_config(self) -> dict[str, object]:
        """Keyword arguments of vLLM's `KVTransferConfig`, once started."""
        assert self._conduit.path, "start() comes first"
        return {
            "kv_connector": _CONNECTOR,
            "kv_connector_module_path": _CONNECTOR_MODULE,
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"socket": self._conduit.path, "itl_target_s": self._settings.itl_target_s},
        }

    async def ready(self, timeout_s: float, context_tokens: int) -> Layout:
        """Wait until all ranks of the engine have reported what they hold, and show them memory. `context_tokens` is
        the length of the longest prompt that the engine takes.

        Raises `engine_failed` when the ranks do not report, `bad_model` when what they hold cannot be exchanged, and
        `bad_setting` when the memory is not available or is too small.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_here.wait()
        except TimeoutError:
            world = next((hello.world for hello in self._hellos.values()), None)
            here = f"{len(self._hellos)} of {world or 'all'} ranks"
            raise TandemError("engine_failed", f"{here} came to the stage within {timeout_s:.0f} s") from None
        if self._problem is not None:
            raise TandemError("engine_failed", self._problem)
        hellos = [self._hellos[rank] for rank in sorted(self._hellos)]
        pages = hellos[0].pages
        for hello in hellos:
            if hello.version != CONDUIT_VERSION or hello.pages != pages:
                raise TandemError("engine_failed", f"rank {hello.rank} holds other blocks than rank {hellos[0].rank}")
        refuse_gaps(pages, [hello.part for hello in hellos])
        self._layout = layout_of(pages)
        block_bytes = slot_shape(pages).slot_bytes
        assert block_bytes == self._layout.block_bytes
        slots = slots_of(self._settings, block_bytes, pages.block_tokens, context_tokens)
        self._memory = HostMemory(block_bytes, slots)
        self._hashing = DigestThreads(self._layout)
        writers = [hello.rank for hello in hellos if hello.part.writes]
        ranks = [hello.rank for hello in hellos]
        self._books = StageState(self._memory.blocks, pages.block_tokens, ranks, writers, self._settings)
        assert self._memory.fd is not None
        self._conduit.show(Welcome(block_bytes, self._memory.blocks), self._memory.fd)
        return self._layout

    async def stop(self) -> None:
        """Hang up on the ranks and free the memory. Idempotent; nothing is lost by it that is not lost already."""
        self.on_lost = _nothing
        self._conduit.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._digests:
            await asyncio.wait(tuple(self._digests))
        if self._hashing is not None:
            self._hashing.close()
        if self._memory is not None:
            self._memory.close()

    # -- works --

    def open(self, work: EngineRequest, computed_here: bool) -> Opened:
        """Take a request. Its blocks are those of its prompt; forced tokens are not part of them. With
        `computed_here`, the blocks that the engine computes for it are kept in slots too, where there is room; those
        of a prefill always are.

        `on_admitted` reports when vLLM may have the request, and with which parameters; where there is room, it does
        so before the event loop turns again. Until then more of the request's blocks can be fetched. Raises
        `queue_full`, `out_of_blocks`, `cancelled` for a lease that was released before, and `invalid_request` for one
        that is in use.
        """
        self.books.open(work, self._clock.now(), save=computed_here)
        self._changed()
        return Opened(waiting=True)

    def provide_first(self, work_id: int, sequence: int, token: int) -> None:
        """The next position of a sequence is known: the ranks have it before its load is over."""
        self.books.provide_first(work_id, sequence, token)
        self._changed()

    def sample_first(self, work_id: int) -> None:
        """Prefill is lost: loads end with what lands, and await no position."""
        self.books.sample_first(work_id)
        self._changed()

    def first_sampled(self, work_id: int, first: FirstTokens) -> None:
        """Keep the tokens that a prefill drew; they go with the last answer of its pull."""
        self.books.first_sampled(work_id, first)
        self._changed()

    def sources(self, work_id: int) -> Sources:
        """Where a request's tokens came from; call this before the request is closed."""
        return self.books.sources(work_id)

    def moved(self, lease_ids: Sequence[str], now: float) -> None:
        """Note that the works of these leases make progress, so that peers that wait for their blocks keep
        waiting."""
        for lease_id in lease_ids:
            self.books.leases.move(lease_id, now)

    def fetches(self, work_id: int) -> bool:
        """Whether blocks of the request are being fetched. If so, either blocks arrive or the fetch ends by its own
        bounds."""
        return self.books.fetches(work_id)

    def close(self, work_id: int) -> None:
        """Close a request that is over. If vLLM had the request, vLLM has been notified. Leases live on by
        themselves."""
        self.books.close(work_id, self._clock.now())
        self._changed()

    def snapshot(self) -> tuple[bytes, ...]:
        """Names of all full blocks in the stage."""
        return self.books.pool.snapshot()

    def take_balance(self) -> ExpertBalance | None:
        """The mean expert balance that ranks have reported since the last call."""
        told, self._balances = self._balances, {}
        return mean_balance(tuple(told.values()))

    # -- ranks --

    def _heard(self, rank: int, message: FromRank) -> None:
        if isinstance(message, RankHello):
            self._hellos[rank] = message
            if len(self._hellos) == message.world:
                self._all_here.set()
            return
        if isinstance(message, Routed):
            self._balances[rank] = message.balance
            return
        books = self._books
        if books is None:
            return
        match message:
            case Saved():
                books.saved(rank, message.work, message.indices)
            case LoadFinished():
                books.loaded(rank, message.work, message.sequence, message.copied)
            case Began():
                books.began(message.work, message.cached)
            case Ended():
                books.ended(rank, message.work, message.sequence)
            case OutputOffer():
                books.outputs.offered(message.work, message.sequence, message.names)
            case OutputSaved():
                books.outputs.saved(rank, message.work, message.sequence, saved=message.saved)
        self._changed()

    def _rank_gone(self, sentence: str) -> None:
        self._problem = self._problem or sentence
        self._all_here.set()
        self.on_lost(sentence)

    # -- carrying out --

    def _changed(self) -> None:
        """Something came: carry out what follows from it soon, many changes at once."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        books, now = self.books, self._clock.now()
        books.look(now)
        self._tell()
        self._digest()
        report = books.outbox.take(books.pool.take_changes())
        admitted, books.admitted = books.admitted, []
        refused, books.refused = books.refused, []
        for work_id, params in admitted:
            self.on_admitted(work_id, params)
        for work_id, error in refused:
            self.on_refused(work_id, error)
        if report is not None:
            self.on_report(report)
        self._wake_watchers()
        self._wind(books.next_look())

    def _tell(self) -> None:
        messages = tuple(self.books.to_ranks)
        self.books.to_ranks.clear()
        for message in messages:
            self._conduit.tell(message)

    def _wind(self, when: float) -> None:
        """Look again then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when != float("inf"):
            self._timer = asyncio.get_running_loop().call_at(when, self._changed)

    def _digest(self) -> None:
        """Have the content words of saved blocks computed, off the event loop."""
        saved = tuple(self.books.to_digest)
        self.books.to_digest.clear()
        if saved:
            task = asyncio.get_running_loop().create_task(self._digest_each(saved), name="stage-digests")
            self._digests[task] = None
            task.add_done_callback(self._digests.pop)

    async def _digest_each(self, saved: tuple[tuple[int, Digested], ...]) -> None:
        assert self._hashing is not None
        words = await hashed(self._hashing, [self.memory.block(slot) for slot, _ in saved])
        for (_, digested), found in zip(saved, words, strict=True):
            digested(found)
        self._changed()
