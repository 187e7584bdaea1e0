"""Whether what workers are counted to have fits what requests have there. For tests and simulation."""

from collections.abc import Iterable

from router.dispatch.attempt import WorkerStream
from router.dispatch.recovery import RecoveryStream
from router.fleet.peer import Peer
from router.fleet.prober import CanaryStream


def check_worker_streams(worker_streams: Iterable[WorkerStream], peers: Iterable[Peer]) -> None:
    """Raise `AssertionError` when an open handle belongs to none of the `worker_streams` of requests, or when the
    sequences counted for a worker are not those of its legs."""
    known = {id(leg) for leg in worker_streams}
    for peer in peers:
        held = 0
        for handle, leg in peer.targets():
            if not isinstance(leg, WorkerStream):
                known_else = isinstance(leg, (CanaryStream, RecoveryStream))
                assert known_else, f"handle {handle} of {peer.worker_id} belongs to {leg!r}"
                continue
            assert id(leg) in known, f"handle {handle} of {peer.worker_id} belongs to no request"
            assert (leg.handle, leg.peer, leg.open) == (handle, peer, True), f"handle {handle} is mixed up"
            held += leg.sequences_held
        counted = peer.view.sequences_in_flight
        assert counted == held, f"{peer.worker_id}: {counted} sequences on the books, {held} on legs"
