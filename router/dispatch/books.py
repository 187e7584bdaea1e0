"""Whether what workers are counted to have fits what requests have there. For tests and simulation."""

from collections.abc import Iterable

from router.dispatch.attempt import Leg
from router.dispatch.claims import Claimant
from router.fleet.peer import Peer
from router.fleet.prober import CanaryLeg


def check_legs(legs: Iterable[Leg], peers: Iterable[Peer]) -> None:
    """Raise `AssertionError` when an open handle belongs to none of the `legs` of requests, or the sequences counted
    for a worker are not those of the legs it has."""
    known = {id(leg) for leg in legs}
    for peer in peers:
        held = 0
        for handle, leg in peer.targets():
            if not isinstance(leg, Leg):
                known_else = isinstance(leg, (CanaryLeg, Claimant))
                assert known_else, f"handle {handle} of {peer.worker_id} belongs to {leg!r}"
                continue
            assert id(leg) in known, f"handle {handle} of {peer.worker_id} belongs to no request"
            assert (leg.handle, leg.peer, leg.open) == (handle, peer, True), f"handle {handle} is mixed up"
            held += leg.sequences_held
        counted = peer.view.sequences_in_flight
        assert counted == held, f"{peer.worker_id}: {counted} sequences on the books, {held} on legs"
