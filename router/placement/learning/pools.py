"""Which workers are of one kind, and what those that tell of their steps are expected to take. Pure.

A kind is what makes workers equally fast: what they compute on, the model, its revision and the engine.
"""

from router.placement.learning.pool import Pool, Shape
from router.placement.learning.prefill_costs import PrefillCosts
from router.placement.learning.step_costs import StepCosts, StepTerms
from tandem.core.messages import StepFit

Kind = tuple[str, ...]


class Pools:
    """Hands what is known of workers that tell to `prefill` and `steps`."""

    def __init__(self, prefill: PrefillCosts, steps: StepCosts, prior: Shape) -> None:
        self._prefill = prefill
        self._steps = steps
        self._prior = prior
        self._pools: dict[Kind, Pool] = {}
        self._kinds: dict[str, Kind] = {}
        self._fits: dict[str, StepFit] = {}

    def observe(self, worker_id: str, kind: Kind, fit: StepFit | None) -> None:
        """A worker's figures have come. One of a known kind that has not told anything yet is taken to be like the
        median of those."""
        if fit is None:
            if worker_id not in self._kinds and (pool := self._pools.get(kind)) is not None:
                self._kinds[worker_id] = kind
                self._tell(worker_id, pool)
            return
        if fit is self._fits.get(worker_id):
            return
        self._fits[worker_id], self._kinds[worker_id] = fit, kind
        pool = self._pools.setdefault(kind, Pool(self._prior))
        if pool.observe(worker_id, fit):
            for each, own in self._kinds.items():
                if own == kind:
                    self._tell(each, pool)
        else:
            self._tell(worker_id, pool)

    def forget(self, worker_id: str) -> None:
        kind = self._kinds.pop(worker_id, None)
        self._fits.pop(worker_id, None)
        if kind is not None and (pool := self._pools.get(kind)) is not None:
            pool.forget(worker_id)
            if kind not in self._kinds.values():
                del self._pools[kind]

    def _tell(self, worker_id: str, pool: Pool) -> None:
        shape, general = pool.shape, max(self._pools.values(), key=len)
        plain, prompts = pool.plain.of(worker_id), pool.prompts.of(worker_id)
        steps = StepTerms(plain * shape.base, plain * shape.sequence, plain * shape.read)
        base, sequence, read, *_ = general.shape
        at = general.plain.median
        self._steps.tell(worker_id, steps, StepTerms(at * base, at * sequence, at * read))
        self._prefill.tell(worker_id, prompts * shape.token, prompts * shape.position, prompts * shape.piece)
