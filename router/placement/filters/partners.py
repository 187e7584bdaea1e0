"""Finds the prefill workers that may hand a prompt to a decode worker. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.placement.decision import Candidate
from router.placement.filters.sorting import names
from router.placement.pairs import UNSEEN, Pairs
from router.placement.view import WorkerView


@dataclass(slots=True)
class Partners:
    """Finds partners for one request, and keeps what was left out on the way."""

    pairs: Pairs | None
    left_out: dict[str, list[str]] = field(default_factory=dict)
    unproved: list[tuple[str, str]] = field(default_factory=list)
    """Pairs (prefill, decode) whose canary has not been requested yet."""

    def of(self, decode: WorkerView, prefills: Sequence[WorkerView], most: int) -> Sequence[WorkerView]:
        """The first of `prefills`, all of decode's pairing, whose blocks are known to reach it; others that come
        before them are left out."""
        if self.pairs is None:
            return prefills[:most]
        partners: list[WorkerView] = []
        for prefill in prefills:
            if len(partners) == most:
                break
            key = prefill.worker_id, decode.worker_id
            pair = self.pairs.get(key, UNSEEN)
            if pair.usable:
                partners.append(prefill)
                continue
            candidate = str(Candidate(decode.worker_id, prefill.worker_id))
            self.left_out.setdefault(pair.reason, []).append(candidate)
            if pair is UNSEEN:
                self.unproved.append(key)
        return partners

    def sentences(self) -> tuple[str, ...]:
        """Sentences that name the pairs that were left out, by reason."""
        if not self.left_out:
            return ()
        return tuple(f"{names(pairs)} left out: {reason}" for reason, pairs in self.left_out.items())
