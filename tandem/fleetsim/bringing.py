"""Whether to read a prompt's blocks from tiers and other holders, or to compute them."""

from typing import Protocol

from tandem.fleetsim.job import Job
from tandem.fleetsim.step_time import StepTime
from tandem.fleetsim.tiers import Tier, Tiers
from tandem.fleetsim.workload import Request


class Holders(Protocol):
    """Other workers that were named as sources of a prompt."""

    def offer(self, worker: int, request: Request, blocks: int, now: float) -> tuple[int, float]:
        """Up to which block they could bring the prompt that has its first `blocks` here, and when. No more than
        `blocks` when they have nothing."""
        ...

    def fetch(self, worker: int, request: Request, blocks: int, now: float) -> None:
        """What was offered is on its way."""
        ...


class Bringing:
    """For one worker."""

    def __init__(self, worker: int, tiers: Tiers, step_time: StepTime, holders: Holders) -> None:
        self._worker = worker
        self._tiers = tiers
        self._time = step_time
        self._holders = holders

    def begin(self, job: Job, here: int, now: float) -> tuple[int, float] | None:
        """Begin to bring what follows the first `here` blocks, as far as that is faster than computing it: up to
        which block, and when it will be there. None when computing all of it is the fastest."""
        request = job.request
        own = self._reads(request, here)
        own_end = here + sum(blocks for blocks, _ in own.values())
        own_at = max((now + tier.reading_s(now, tokens) for tier, (_, tokens) in own.items()), default=now)
        ways = [(now + self._rest_s(job, here), here, now)]
        if own:
            ways.append((own_at + self._rest_s(job, own_end), own_end, own_at))
        if request.sources:
            end, at = self._holders.offer(self._worker, request, own_end, now)
            if end > own_end:
                at = max(at, own_at)
                ways.append((at + self._rest_s(job, end), end, at))
        _, end, at = min(ways)
        if end == here:
            return None
        for tier, (_, tokens) in own.items():
            tier.read(now, tokens)
        if end > own_end:
            self._holders.fetch(self._worker, request, own_end, now)
        return end, at

    def _reads(self, request: Request, here: int) -> dict[Tier, tuple[int, int]]:
        """Blocks and tokens to read from each own tier, beginning after the first `here` blocks."""
        reads: dict[Tier, tuple[int, int]] = {}
        for place, tier in enumerate(self._tiers.where(request.blocks[here:]), start=here):
            blocks, tokens = reads.get(tier, (0, 0))
            reads[tier] = blocks + 1, tokens + request.leading(place + 1) - request.leading(place)
        return reads

    def _rest_s(self, job: Job, blocks: int) -> float:
        """Computing what follows the first so many blocks."""
        known = job.known(blocks)
        return self._time.prompt(known, job.total - known)
