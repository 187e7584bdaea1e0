"""What of a prompt is brought from tiers and other holders, not computed, by the rule of Tandem's workers.

It is decided when a job comes (`tandem.worker.fetch_policy`), and carried out when it has got its place.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol

from benchmarks.fleet.step_time import StepTime
from benchmarks.fleet.tiers import Tier, Tiers
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.workload import Request
from tandem.worker.fetch_policy import FetchOption, choose_fetch

_PROGRESS_S: Final = 2.0
"""A fetch may take so much longer than computing would."""


class Holders(Protocol):
    """Other workers that were named as sources of a prompt."""

    def offer(self, worker: int, request: Request, blocks: int, now: float) -> tuple[int, float]:
        """Up to which block they could bring the prompt that has its first `blocks` here, and when. No more than
        `blocks` when they have nothing."""
        ...

    def fetch(self, worker: int, request: Request, blocks: int, now: float) -> None:
        """What was offered is on its way."""
        ...


class PromptOnboarding:
    """For one worker."""

    def __init__(self, worker: int, tiers: Tiers, step_time: StepTime, holders: Holders) -> None:
        self._worker = worker
        self._tiers = tiers
        self._time = step_time
        self._holders = holders

    def choose(self, job: WorkerRequest, here: int, now: float) -> None:
        """Decide how many leading blocks the job is to have brought, of whose prompt `here` are here."""
        request = job.request

        def otherwise(start: int, end: int) -> float:
            known = job.known(start)
            return self._time.prompt(known, job.known(end) - known)

        worth = choose_fetch(tuple(self._stretches(request, here, now)), here, otherwise)
        job.bring, job.patience_s = worth.blocks, worth.otherwise_s + _PROGRESS_S

    def begin(self, job: WorkerRequest, here: int, now: float) -> tuple[int, float] | None:
        """Begin to bring what was chosen beyond the first `here` blocks: up to which block, and when it will be
        there. When that is later than the job has patience, nothing comes until then. None when nobody has any."""
        request, found = job.request, self._tiers.where(job.request.blocks[here : job.bring])
        own = self._reads(request, here, found)
        own_end, at = here + len(found), now
        for tier, tokens in own.items():
            at = max(at, tier.read(now, tokens))
        end = own_end
        if end < job.bring and request.sources:
            offered, offered_at = self._holders.offer(self._worker, request, end, now)
            if offered > end:
                self._holders.fetch(self._worker, request, end, now)
                end, at = offered, max(at, offered_at)
        if end == here:
            return None
        late_s = now + job.patience_s
        return (end, at) if at <= late_s else (here, late_s)

    def _stretches(self, request: Request, here: int, now: float) -> Iterator[FetchOption]:
        """Own tiers as far as they reach, which are read at the same time; then the sources."""
        found = self._tiers.where(request.blocks[here:])
        end, seconds = here, 0.0
        for _, run in groupby(found):
            end += len(list(run))
            own = self._reads(request, here, found[: end - here])
            seconds = max(tier.reading_s(now, tokens) for tier, tokens in own.items())
            yield FetchOption(end, seconds, found[end - here - 1].settings.name)
        if request.sources:
            offered, at = self._holders.offer(self._worker, request, end, now)
            if offered > end:
                yield FetchOption(offered, seconds + at - now, "peer")

    def _reads(self, request: Request, here: int, found: Sequence[Tier]) -> Counter[Tier]:
        """Tokens to read from each tier, the first block being number `here`."""
        reads: Counter[Tier] = Counter()
        for place, tier in enumerate(found, start=here):
            reads[tier] += request.leading(place + 1) - request.leading(place)
        return reads
