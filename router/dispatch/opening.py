"""Opens an attempt: a leg on each worker, under handles of its own."""

from router.dispatch.attempt import Attempt, Deliver, Leg, LegOwner
from router.dispatch.sequences import Sequences
from router.fleet.peer import Peer
from router.placement import Placement


def open_attempt(
    owner: LegOwner,
    sequences: Sequences,
    deliver: Deliver,
    placement: Placement,
    workers: tuple[Peer, Peer | None],
    number: int,
    span_id: str,
    now: float,
) -> Attempt:
    """The attempt that `placement` asks for; `workers` are decode and prefill. Nothing is sent yet."""
    decode, prefill = workers
    count, computed = len(sequences.unfinished()), placement.prefill_tokens
    positions, decoded = sequences.positions, computed if prefill is None else 0
    on_prefill = None if prefill is None else Leg(owner, prefill, positions, deliver, count, computed, now)
    on_decode = Leg(owner, decode, positions, deliver, count, decoded, now)
    return Attempt(
        number=number,
        placement=placement,
        decode=on_decode,
        prefill=on_prefill,
        first=sequences.next_positions(),
        accepted_before=sequences.accepted,
        span_id=span_id,
        started=now,
        patient_since=now,
    )
