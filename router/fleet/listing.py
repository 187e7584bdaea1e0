"""What a router knows of its workers, for people and tools: `GET /v1/workers`."""

from collections.abc import Iterable

import msgspec

from router.fleet.breaker import Breaker
from router.fleet.census import Fenced, state_of
from router.fleet.pairs import Key, PairBook
from router.fleet.peer import Peer
from tandem.core.messages import Hello


class PairListing(msgspec.Struct, frozen=True):
    """One pair, as one of its workers sees it: `worker` is the other one. `failures` are recent transfers that failed
    and that no success has made up for; `canary` is whether one is under way."""

    worker: str
    state: str
    path: str
    reason: str
    failures: int
    canary: bool


class WorkerListing(msgspec.Struct, frozen=True):
    """One worker. `state` is `alive`, `ready`, `draining` or `fenced`; `canary` how it proved its own KV path;
    `problems` the transports it does without; `reason` why it is fenced."""

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


def listing(peers: Iterable[Peer], fenced: Iterable[Fenced], book: PairBook | None) -> tuple[WorkerListing, ...]:
    """All workers, in order of their ids."""
    workers = [_worker(peer.hello, peer.address, state_of(peer), "", _pairs(peer, book)) for peer in peers]
    workers += [_worker(each.hello, each.address, "fenced", each.reason, ()) for each in fenced]
    return tuple(sorted(workers, key=lambda worker: (worker.id, worker.address)))


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
    )


def _pairs(peer: Peer, book: PairBook | None) -> tuple[PairListing, ...]:
    keys = sorted(book.of(peer.worker_id)) if book is not None else ()
    return tuple(_pair(key, peer.worker_id, book.breakers[key]) for key in keys if book is not None)


def _pair(key: Key, worker_id: str, breaker: Breaker) -> PairListing:
    return PairListing(
        worker=key[0] if key[1] == worker_id else key[1],
        state=breaker.state.value,
        path=breaker.view.path,
        reason=breaker.view.reason,
        failures=len(breaker.failures),
        canary=breaker.probing,
    )
