"""Tracks how far the answers are that each worker generates. Pure.

A sequence costs those beside it something for as long as it lasts, which earlier answers show. Batches that filled up
together end together: a worker whose batch is about to end has more room than one with fewer sequences that have just
begun.
"""

from collections.abc import Mapping, Sequence

from router.placement.decision import Placement
from router.placement.learning.answer_lengths import Lengths
from router.placement.scorers.context import EVEN
from router.placement.view import WorkerView


class _Running:
    """Attempts on one worker: how many sequences they have, the sum over these of when they began, and the tokens
    that all of them together were expected to generate."""

    __slots__ = ("attempts", "began", "sequences", "tokens")

    def __init__(self) -> None:
        self.attempts: dict[int, tuple[Placement, int, float]] = {}
        """Attempts by the identity of their placement, which is kept so that no other one can have the same
        identity."""
        self.sequences = 0
        self.began = 0.0
        self.tokens = 0.0


class Progress:
    """Owned by one policy; knows of its own placements."""

    def __init__(self) -> None:
        self._workers: dict[str, _Running] = {}

    def placed(self, placement: Placement, sequences: int, now: float) -> None:
        """An attempt was sent."""
        running = self._workers.setdefault(placement.decode, _Running())
        running.attempts[id(placement)] = placement, sequences, now
        running.sequences += sequences
        running.began += sequences * now
        running.tokens += placement.answer_tokens

    def ended(self, placement: Placement) -> None:
        """Remove an attempt that is over."""
        running = self._workers.get(placement.decode)
        known = running.attempts.pop(id(placement), None) if running is not None else None
        if running is None or known is None:
            return
        _, sequences, began = known
        running.sequences -= sequences
        running.began -= sequences * began
        running.tokens -= placement.answer_tokens
        if not running.attempts:
            del self._workers[placement.decode]

    def forget(self, worker_id: str) -> None:
        """Whatever ran there is over."""
        self._workers.pop(worker_id, None)

    def lasting(
        self, workers: Sequence[WorkerView], step_ms: float, lengths: Lengths | None, now: float
    ) -> Mapping[str, float]:
        """By worker id, what its sequences have still to generate over what those under way have on average, when
        steps take `step_ms` and answers are as long as `lengths`. Where all answers are equally long, this is 2 for
        sequences that have just begun and 0 at their end. Where having lasted says nothing of the end, it is 1. Where
        some sequences think for long, those that have outlasted the others have most of their answer before them."""
        if lengths is None or lengths.residual <= 0.0 or step_ms <= 0.0:
            return EVEN
        lasting, known, left = dict[str, float](), self._workers.get, lengths.left
        # Of other kinds of answers, which may be shorter or longer, their own share counts as so much of these.
        tokens_per_s, per_token = 1e3 / step_ms * lengths.mean, 1.0 / lengths.residual
        for worker in workers:
            running = known(worker.worker_id)
            if running is not None and running.tokens > 0.0:
                age = tokens_per_s * (now * running.sequences - running.began) / running.tokens
                lasting[worker.worker_id] = per_token * left(age)
        return lasting
