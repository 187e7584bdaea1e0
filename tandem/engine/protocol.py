"""The `Engine` seam: one work item in, positions out; plus the window through which KV bytes are moved.

An engine knows token ids only. Text, stop strings, links and routing live above it. All calls are made from
the worker's event loop and never block; `run` is the engine's only long-lived coroutine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from tandem.core.kv import Handle, Layout
from tandem.core.messages import Adapter, Load, TokenLogprob
from tandem.core.request import ChildRequest, RequestSpec
from tandem.engine.counts import ExpertBalance, Speculation


@dataclass(frozen=True)
class EngineInfo:
    """The properties of an engine once it has loaded. `root` is the root name for the empty tenant salt."""

    model: str
    model_hash: str
    vocab_size: int
    context_tokens: int
    eos_token_ids: tuple[int, ...]
    blocks: int
    layout: Layout
    features: tuple[str, ...] = ()
    """What the engine can do beyond the functions that all engines have, sorted: `adapters`, `grammar`, `images`,
    `itl_target`, `prompt_logprobs`."""
    adapters: tuple[Adapter, ...] = ()
    """LoRA adapters it has loaded, or would load when asked."""
    columns: bool = False
    """Whether its runner takes `tandem.engine.scheduler.plan.Columns`."""
    kv_events: bool = True
    """Whether its reports say which blocks it has; of one that does not routers guess."""
    not_exchanged: str = ""
    """Why the engine's KV is not exchanged with any other, in words; empty where it is exchanged."""
    export_blocks: int = 0
    """The number of the engine's blocks that prompts computed for other workers may take until they have been
    fetched; 0 when the engine does not report it."""
    max_sequences: int = 0
    """The most sequences that the engine computes in one step; 0 when the engine does not report it."""


class EngineRequest(RequestSpec, frozen=True, kw_only=True, gc=False):
    """One attempt of one request, as the engine sees it. `work_id` is unique for the life of the engine.

    mode: `prefill` (compute, sample the next position of each branch, keep the blocks under `lease_id`),
    `decode` (blocks are fetched; the next position is given by `provide_first` or, after `sample_first`,
    drawn here), `local` (everything here). `deadline` is on the engine's clock. `root` includes the tenant and the
    content hash of the adapter.
    """

    work_id: int
    mode: str
    branches: tuple[ChildRequest, ...]
    root: bytes
    deadline: float
    lease_id: str = ""
    lease_s: float = 0.0
    private: bool = False
    """Whether the request's blocks get no public name: they are in no event, snapshot or prefix cache, and free when
    it is over."""
    images: tuple[bytes, ...] = ()
    """The files of the images that the prompt has places for. A request with images is `local` and `private`."""


class Emitted(msgspec.Struct, frozen=True, gc=False):
    """One new output token. `relayed` marks a position that was sampled elsewhere and only passed on here."""

    work_id: int
    sequence: int
    position: int
    token: int
    finish: str | None = None
    stop_reason: int | None = None
    logprob: TokenLogprob | None = None
    relayed: bool = False


@dataclass(frozen=True)
class RequestFailed:
    """The work ends with a typed error; nothing of it is held any more. `param` is as `TandemError`'s."""

    work_id: int
    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True)
class RequestStats:
    """The origin of a prompt's tokens and the times of its stages (engine clock, seconds)."""

    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_pulled: int = 0
    submitted: float = 0.0
    admitted: float | None = None
    computing: float | None = None
    """When the first step that computes some of the prompt was planned, as far as the engine knows."""
    prefilled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    chunks: int = 0
    preemptions: int = 0
    reasons: tuple[str, ...] = ()
    kv_waits: tuple[tuple[float, float], ...] = ()
    """The intervals (from, until) in which the request had its blocks and waited for their content, as far as the
    engine knows."""
    prompt_tokens: int = 0
    """The number of tokens of a prompt with images once the images have taken their places; 0 for other prompts."""


@dataclass(frozen=True)
class RequestEnded:
    """The work holds nothing any more, except blocks under an export lease. Sent exactly once per work."""

    work_id: int
    stats: RequestStats


class FetchTarget(msgspec.Struct, frozen=True, gc=False):
    """One block to fetch: copy the bytes of `name` into `slot`. `index` counts the prompt's blocks from 0."""

    index: int
    name: bytes
    slot: int
    generation: int
    tokens: int
    """The number of positions in use in the block; below `block_tokens` only for the tail."""


@dataclass(frozen=True)
class FetchJob:
    """Blocks that the engine reserved for a work and wants filled, in prompt order.

    With `hand_off` they are all blocks of a `decode` work that are not here: the worker that computes the prompt will
    have them. Without it, they are blocks that a work of any mode was told to bring (`BlockSpace.bring`), and blocks
    that are not found anywhere are computed here. A `peer_read` is no work: a peer wants its blocks
    (`BlockSpace.bring_shared`), and they are looked for in own tiers only.
    """

    work_id: int
    targets: tuple[FetchTarget, ...]
    hand_off: bool = True
    peer_read: bool = False


class Prefix(NamedTuple):
    """The leading full blocks of a request's known tokens, and how many of them are in the pool now."""

    names: tuple[bytes, ...]
    here: int


class KvChange(msgspec.Struct, frozen=True):
    """Full blocks that became, or ceased to be, available here under their names since the last step."""

    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    makers: tuple[int, ...] = ()
    """The request that computed or fetched the block, for each stored name."""


NO_CHANGE: Final = KvChange()


class StepReport(msgspec.Struct, frozen=True):
    """The results of one step (or one command), in order."""

    emitted: tuple[Emitted, ...] = ()
    failed: tuple[RequestFailed, ...] = ()
    ended: tuple[RequestEnded, ...] = ()
    fetches: tuple[FetchJob, ...] = ()
    withdrawn: tuple[int, ...] = ()
    """Works whose fetch is to be stopped: their slots went to others. Once it has ended they wait for new ones."""
    progressed: tuple[tuple[int, int], ...] = ()
    """Works that get on, or wait behind others that do, without having anything to show for it yet; each with the
    prompt tokens that have been computed for it."""
    kv: KvChange = NO_CHANGE
    space: KvChange | None = None
    """The changes in the engine's `BlockSpace`, for an engine that has blocks elsewhere too: a name that both have
    comes and goes once in `kv`, at another time than here. None: `kv` is of the `BlockSpace` alone."""
    load: Load | None = None
    reasons: tuple[str, ...] = ()
    speculation: Speculation | None = None
    experts: ExpertBalance | None = None


Listener = Callable[[StepReport], None]


@dataclass(frozen=True)
class Pending:
    """The block is being computed; ask again when the holder changes."""


@dataclass(frozen=True)
class Gone:
    """The block will not come from here, and why."""

    reason: str


@dataclass(frozen=True)
class FirstTokens:
    """The next position of every branch as prefill drew it: (sequence, token, finish)."""

    tokens: tuple[tuple[int, int, str | None], ...]


class BlockSpace(Protocol):
    """The engine's blocks as KV transfer sees them. The holder's side comes first, the receiver's side second.

    Slots are stable addresses in `memory`. A generation grows each time a slot is given to a new block, so (slot,
    generation) never names two contents.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def memory(self) -> "BlockMemory": ...

    # -- holder --
    def lease_exists(self, lease_id: str) -> bool:
        """Whether the lease is open now."""
        ...

    def lease_ended(self, lease_id: str) -> bool:
        """Whether the lease was open and has ended, or was released before it came. Kept for a while only."""
        ...

    def lease_moved(self, lease_id: str) -> float:
        """When the work that computes the lease's blocks last made progress, or waited behind others that did, by the
        engine's clock; minus infinity when nothing is known."""
        ...

    def look(self, lease_id: str, name: bytes) -> Handle | Pending | Gone:
        """A handle to a complete block, or why there is none (yet). Only names under the lease are answered."""
        ...

    def first_tokens(self, lease_id: str) -> FirstTokens | None:
        """The first tokens that prefill sampled; None until it has."""
        ...

    def renew(self, lease_id: str) -> bool:
        """Extend the lease by its length from now; False when it is gone."""
        ...

    def release(self, lease_id: str) -> None:
        """End the lease. Unknown leases are remembered for a while, so that a later opening finds a tombstone."""
        ...

    def share(self, lease_id: str, names: Sequence[bytes], length_s: float) -> bool:
        """Open a lease that no work has asked for, over those of `names` that are complete here now; other names
        are gone under it. It lasts `length_s` from now on and from every renewal; an open one stays as it is.

        False when nothing can be shared now: the lease has ended before, or leases hold too much already.
        """
        ...

    def bring_shared(self, lease_id: str, names: Sequence[bytes]) -> None:
        """Bring full blocks that are not here, but in this worker's own tiers, for the holder of a shared lease. The
        blocks are pending under the lease until they are here, or gone when there is no room for them or they do not
        come."""
        ...

    def recheck(self, lease_id: str, name: bytes) -> bool:
        """Compare a block under the lease with its digest. Returns True when the block was damaged: it is then
        forgotten under its name and lease, and requests that attend to it fail."""
        ...

    def watch(self, lease_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever an answer under the lease may have changed; returns the unsubscribe."""
        ...

    # -- tiers --
    def hold(self, name: bytes) -> Handle | None:
        """Keep the complete block `name` where it is until `unhold`, so that it can be copied. None when it is not
        here, or when too many blocks are held already."""
        ...

    def unhold(self, slot: int) -> None:
        """Undo one `hold` of the slot."""
        ...

    # -- receiver --
    def prefix(self, work_id: int) -> Prefix | None:
        """The prefix of a work that has not been admitted yet; None when it has been admitted, or is private or
        gone."""
        ...

    def bring(self, work_id: int, blocks: int) -> None:
        """Fetch the missing blocks among the first `blocks` full blocks of a waiting request before computing. May be
        called again until the request is admitted."""
        ...

    def landed(self, work_id: int, index: int, digests: bytes) -> None:
        """Block `index` of the fetch is in its slot and verified; `digests` are its unbound content words."""
        ...

    def fetch_ended(self, work_id: int, reason: str | None, late: tuple[int, ...] = ()) -> None:
        """Note that the fetch is over. Blocks that have not landed are computed here instead; `reason` says why.

        The abandoned transfer may still write to the `late` slots: they stay in quarantine until `quarantine_over`.
        """
        ...

    def quarantine_over(self, slots: tuple[int, ...]) -> None:
        """Note that no late byte can reach these slots any more."""
        ...


class BlockMemory(Protocol):
    """The bytes behind the slots: `blocks` pieces of `block_bytes` each, readable and writable in this process."""

    @property
    def block_bytes(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    @property
    def buffer(self) -> memoryview:
        """All blocks, contiguous, writable, format 'B'."""
        ...

    @property
    def fd(self) -> int | None:
        """A file descriptor (memfd) another process can map, or None when the bytes are private."""
        ...

    def block(self, slot: int) -> memoryview:
        """The bytes of one slot, writable."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """The seam every engine implements; `tests/contract/test_engine.py` is its definition in code."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def kv(self) -> BlockSpace | None:
        """The window for KV transfer; None when the engine moves KV itself (a connector inside it)."""
        ...

    async def start(self) -> EngineInfo:
        """Load the model. Raises `bad_model`, `bad_setting` or `engine_failed`."""
        ...

    async def run(self, listener: Listener) -> None:
        """Step until `stop`. Reports go to `listener` in order, on the event loop. Raises `engine_failed`."""
        ...

    async def stop(self) -> None: ...

    def submit(self, work: EngineRequest) -> None:
        """Queue a request. Raises `context_length_exceeded` or `out_of_blocks` when it can never fit."""
        ...

    def cancel(self, work_id: int, sequence: int | None = None) -> None:
        """Free a request (or one of its sequences) now; unknown ids are ignored. Its `RequestEnded` still comes."""
        ...

    def provide_first(self, work_id: int, sequence: int, token: int, relay: bool = False) -> None:
        """The next position of a branch is known. A repeat is ignored.

        With `relay` it came with the pull and not from the router: the engine emits it (as `relayed`), so that
        this worker's stream is whole even if prefill dies before its own output reaches the router.
        """
        ...

    def sample_first(self, work_id: int) -> None:
        """Continue without prefill, which is lost. Tokens that have not been provided are drawn here; blocks that a
        running fetch does not bring are computed, and no further fetch begins."""
        ...

    def set_itl_target(self, itl_target_s: float | None) -> None:
        """Set how long a step may take beside running sequences, in seconds, from the next step on; None stands for
        the engine's own setting. Engines without the feature `itl_target` cannot change it: nothing happens."""
        ...

    def snapshot(self) -> tuple[bytes, ...]:
        """Names of all full blocks available now."""
        ...
