"""A planner that changes its split at every look: its decisions are bad, and must do no harm."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from router.split.plan import Planner
from router.split.values import Split, WorkerStatus, WorkTimes
from tandem.core.slo import Slo


class RestlessPlanner(Planner):
    """Has some workers take prompts for others, now and then all, by a number that follows from the time."""

    def look(
        self, now: float, standings: Sequence[WorkerStatus], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        self.last_look_s = now
        chosen = set[str]()
        for standing in standings:
            yield
            drawn = blake2b(f"{now:.3f} {standing.worker_id}".encode(), digest_size=1).digest()[0]
            if drawn % 2 and not standing.barred:
                chosen.add(standing.worker_id)
        self.moves += len(self.split.prefills ^ chosen)
        self.split = Split(frozenset(chosen), None, "as the time says")
