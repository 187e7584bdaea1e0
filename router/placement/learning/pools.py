"""Groups workers by kind, and gives what those that report their steps are expected to take. Pure.

A kind is what makes workers equally fast: what they compute on, the model, its revision and the engine. The first
worker of a kind is expected to be like the workers of the kind that has most in common with its own.
"""

from typing import Final

from router.placement.learning.pool import Pool, Shape
from router.placement.learning.prefill_costs import PrefillCosts
from router.placement.learning.step_costs import StepCosts, StepTerms
from tandem.core.messages import StepFit

Kind = tuple[str, ...]
"""Hardware, model, revision and engine; empty where nothing is known."""
_SAME_ENGINE: Final = 4
"""What an equal engine counts in `_in_common`: a worker of such a kind reports its steps as the others do, or
will."""


class Pools:
    """Passes on to `prefill` and `steps` what is known of workers that report their steps."""

    def __init__(self, prefill: PrefillCosts, steps: StepCosts, prior: Shape) -> None:
        self._prefill = prefill
        self._steps = steps
        self._prior = prior
        self._pools: dict[Kind, Pool] = {}
        self._kinds: dict[str, Kind] = {}
        self._fits: dict[str, StepFit] = {}

    def observe(self, worker_id: str, kind: Kind, fit: StepFit | None) -> None:
        """Take in a worker's figures. A worker that reports no fit, or none yet, is taken to be like the median of
        its kind, or of the nearest kind of its engine, and is judged by what its steps and prompts take beside
        that."""
        if fit is None:
            if worker_id not in self._kinds and (pool := self._known(kind)) is not None:
                self._kinds[worker_id] = kind
                self._tell(worker_id, kind, pool)
            return
        if fit is self._fits.get(worker_id):
            return
        self._fits[worker_id], self._kinds[worker_id] = fit, kind
        pool = self._pools.get(kind)
        if pool is None:
            nearest = self._nearest(kind)
            pool = self._pools[kind] = Pool(self._prior if nearest is None else nearest.usual)
        if pool.observe(worker_id, fit):
            for each, own in self._kinds.items():
                if own == kind:
                    self._tell(each, kind, pool)
        else:
            self._tell(worker_id, kind, pool)

    def forget(self, worker_id: str) -> None:
        kind = self._kinds.pop(worker_id, None)
        self._fits.pop(worker_id, None)
        if kind is not None and (pool := self._pools.get(kind)) is not None:
            pool.forget(worker_id)
            if kind not in self._kinds.values():
                del self._pools[kind]

    def _known(self, kind: Kind) -> Pool | None:
        """The pool that says most about workers that have reported nothing."""
        pool = self._pools.get(kind)
        return self._nearest(kind, _SAME_ENGINE) if pool is None else pool

    def _nearest(self, kind: Kind, least: int = 1) -> Pool | None:
        """The kind that has most in common with this one, `least` or more, the largest of such; None without any."""
        near = [
            (found, len(pool), pool) for key, pool in self._pools.items() if (found := _in_common(kind, key)) >= least
        ]
        return max(near, key=lambda each: each[:2])[2] if near else None

    def _tell(self, worker_id: str, kind: Kind, pool: Pool) -> None:
        shape = pool.shape
        plain, prompts = pool.plain.of(worker_id), pool.prompts.of(worker_id)
        steps = StepTerms(plain * shape.base, plain * shape.sequence, plain * shape.read)
        model = _model(kind)
        general = max((each for key, each in self._pools.items() if _model(key) == model), key=len)
        base, sequence, read, *_ = general.usual
        guessed = worker_id not in self._fits
        self._steps.tell(worker_id, steps, model, StepTerms(base, sequence, read), guessed=guessed)
        self._prefill.tell(
            worker_id, prompts * shape.token, prompts * shape.position, prompts * shape.piece, guessed=guessed
        )


def _model(kind: Kind) -> str:
    return kind[1] if len(kind) > 1 else ""


def _in_common(one: Kind, other: Kind) -> int:
    """More for the same engine, which computes alike, than for the same hardware; 0 for another model, whose steps
    say nothing of these."""
    if len(one) < 2 or len(other) < 2 or _model(one) != _model(other):
        return 0
    return 1 + 2 * (one[0] == other[0]) + _SAME_ENGINE * (one[-1] == other[-1])
