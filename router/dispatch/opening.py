"""Opens an attempt with a leg on each worker, each under a handle of its own."""

from router.dispatch.attempt import Attempt, Deliver, WorkerStream, WorkerStreamOwner
from router.dispatch.sequences import Sequences
from router.fleet.peer import Peer
from router.placement import Placement


def open_attempt(
    owner: WorkerStreamOwner,
    sequences: Sequences,
    deliver: Deliver,
    placement: Placement,
    workers: tuple[Peer, Peer | None],
    number: int,
    span_id: str,
    now: float,
) -> Attempt:
    """The attempt that `placement` requires; `workers` are decode and prefill. Nothing is sent yet."""
    decode, prefill = workers
    positions, unfinished = sequences.positions, sequences.unfinished()
    generating, computing = placement.work(len(unfinished))
    on_prefill = None
    if prefill is not None:
        assert computing is not None, "a placement with a prefill worker has work for it"
        on_prefill = WorkerStream(owner, prefill, positions, deliver, computing, now)
    on_decode = WorkerStream(owner, decode, positions, deliver, generating, now)
    return Attempt(
        number=number,
        placement=placement,
        decode=on_decode,
        prefill=on_prefill,
        first={each.sequence: each.next_position for each in unfinished},
        accepted_before=sequences.accepted,
        span_id=span_id,
        started=now,
        patient_since=now,
    )
