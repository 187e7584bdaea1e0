"""The listing of a router's workers for people and tools: `GET /v1/workers`."""

import heapq
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from router.fleet.breaker import Breaker, State
from router.fleet.pairs import Key, PairRegistry
from router.fleet.peer import Peer
from router.fleet.services import MemberFacts, ServiceRegistry
from router.fleet.worker_counts import Fenced, state_of
from tandem.core.messages import Hello

PAIRS_MAX: Final = 32
"""Pairs that are listed of one worker. There are as many as prefill workers times decode workers."""


class PairListing(msgspec.Struct, frozen=True):
    """One pair, as one of its workers sees it: `worker` is the other one, `role` what that one does in the pair
    (`prefill` or `decode`): workers of role `auto` have one of each with others. `failures` are recent transfers
    that failed and that no success has made up for; `canary` is whether one is under way."""

    worker: str
    role: str
    state: str
    path: str
    reason: str
    failures: int
    canary: bool


class WorkerListing(msgspec.Struct, frozen=True):
    """One worker. `state` is `alive`, `ready`, `draining` or `fenced`; `canary` how it proved its own KV path;
    `kv_path` what carries its KV unless it fails, and over what if that is known (`nixl/ucx-rdma`); `problems` the
    transports it does without, or that are slow; `reason` why it is fenced."""

    id: str
    object: str
    role: str
    state: str
    model: str
    revision: str
    epoch: str
    address: str
    canary: str
    transports: tuple[str, ...]
    problems: tuple[str, ...]
    reason: str
    pairs: tuple[PairListing, ...]
    kv_path: str = ""
    features: tuple[str, ...] = ()
    """Features of the worker's engine beyond the common ones."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters it serves."""
    service: str = ""
    """`namespace/name` of the service it belongs to, where services are known."""
    pool: str = ""
    """The pool of the service."""
    load: "LoadListing | None" = None
    """The worker's load; None before it has reported any."""
    ready_for_s: float | None = None
    """Seconds for which this router has known the worker to be ready; None while it is not."""
    takes_prompts: bool = False
    """Whether the worker computes prompts that others answer: by its role, or for role `auto` by the split in
    force."""
    pair_count: int = 0
    """How many pairs the worker is in. At most `PAIRS_MAX` of them are listed, first those that are not closed."""

    def for_tenants(self) -> "WorkerListing":
        """The listing without the worker's address, and without its load, which shows what others have asked of
        it."""
        return msgspec.structs.replace(self, address="", load=None)


class ListWorkers(Protocol):
    """Lists all workers, with or without their pairs, which take most of the time and place."""

    def __call__(self, *, pairs: bool) -> Iterable[WorkerListing]: ...


class LoadListing(msgspec.Struct, frozen=True):
    """A worker's own figures (`tandem.core.messages.Load`), and what this router sees of it. Speeds are those it
    measured lately, 0 where it has not."""

    running: int
    waiting: int
    queued_prompt_tokens: int
    """Prompt tokens that would be computed there before a new prompt."""
    in_flight_sequences: int
    """Sequences in flight on the worker that come from this router alone."""
    blocks: int
    blocks_free: int
    kv_used: float
    """The share of its KV blocks that is in use, 0 to 1; and the share that is kept for others to fetch."""
    kv_exported: float
    step_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    prefill_token_s: float
    prefill_position_s: float
    preemptions: int


def listing(
    peers: Iterable[Peer],
    fenced: Iterable[Fenced],
    book: PairRegistry | None,
    services: ServiceRegistry,
    now: float,
    *,
    pairs: bool = True,
) -> tuple[WorkerListing, ...]:
    """All workers, in order of their ids, with or without their pairs."""
    workers = [_live(peer, book, pairs, now) for peer in peers]
    workers += [_worker(each.hello, each.address, "fenced", each.reason, ()) for each in fenced]
    placed = [_placed(worker, services.member(worker.address)) for worker in workers]
    return tuple(sorted(placed, key=lambda worker: (worker.id, worker.address)))


def _placed(worker: WorkerListing, member: MemberFacts | None) -> WorkerListing:
    """The listing with the service and pool to which the worker is known to belong."""
    return worker if member is None else msgspec.structs.replace(worker, service=member.service, pool=member.pool)


def _live(peer: Peer, book: PairRegistry | None, pairs: bool, now: float) -> WorkerListing:
    """A worker that there is a link to, with what it is busy with."""
    keys = book.of(peer.worker_id) if book is not None else ()
    listed = _pairs(peer, keys, book) if book is not None and pairs else ()
    return msgspec.structs.replace(
        _worker(peer.hello, peer.address, state_of(peer), "", listed),
        load=_load(peer),
        ready_for_s=None if peer.view.ready_at is None else max(0.0, now - peer.view.ready_at),
        takes_prompts=peer.view.takes_prompts,
        pair_count=len(keys),
    )


def _load(peer: Peer) -> LoadListing | None:
    view, load = peer.view, peer.view.load
    if load is None:
        return None
    blocks = max(1, view.blocks)
    return LoadListing(
        running=load.running,
        waiting=load.waiting,
        queued_prompt_tokens=view.queued_prompt_tokens,
        in_flight_sequences=view.sequences_in_flight,
        blocks=view.blocks,
        blocks_free=view.blocks_free,
        kv_used=min(1.0, max(0.0, 1.0 - view.blocks_free / blocks)),
        kv_exported=load.blocks_exported / blocks,
        step_s=load.step_s,
        prefill_tokens_per_s=load.prefill_tokens_per_s,
        decode_tokens_per_s=load.decode_tokens_per_s,
        prefill_token_s=load.prefill_token_s,
        prefill_position_s=load.prefill_position_s,
        preemptions=load.preemptions,
    )


def _worker(hello: Hello, address: str, state: str, reason: str, pairs: tuple[PairListing, ...]) -> WorkerListing:
    return WorkerListing(
        id=hello.worker_id,
        object="worker",
        role=hello.role,
        state=state,
        model=hello.model,
        revision=hello.revision,
        epoch=f"{hello.epoch:016x}",
        address=address,
        canary=hello.canary,
        transports=tuple(offered.partition("://")[0] for offered in hello.addresses),
        problems=hello.problems,
        reason=reason,
        pairs=pairs,
        kv_path=_kv_path(hello.addresses),
        features=hello.features,
        adapters=tuple(adapter.name for adapter in hello.adapters),
    )


def _kv_path(addresses: tuple[str, ...]) -> str:
    """The preferred transport. The address of `nixl` says what it runs over, that of `tcp` whether it is
    encrypted."""
    scheme, _, rest = addresses[0].partition("://") if addresses else ("", "", "")
    fabric = rest.partition("/")[2] if scheme in ("nixl", "tcp") else ""
    return f"{scheme}/{fabric}" if fabric else scheme


def _pairs(peer: Peer, keys: Iterable[Key], book: PairRegistry) -> tuple[PairListing, ...]:
    """The pairs of a worker in order of the others' ids; of too many those in trouble."""
    breakers = book.breakers
    kept = heapq.nsmallest(PAIRS_MAX, keys, key=lambda key: (breakers[key].state is State.CLOSED, key))
    return tuple(_pair(key, peer.worker_id, breakers[key]) for key in sorted(kept))


def _pair(key: Key, worker_id: str, breaker: Breaker) -> PairListing:
    answers = key[1] == worker_id
    return PairListing(
        worker=key[0] if answers else key[1],
        role="prefill" if answers else "decode",
        state=breaker.state.value,
        path=breaker.view.path,
        reason=breaker.view.reason,
        failures=len(breaker.failures),
        canary=breaker.probing,
    )
