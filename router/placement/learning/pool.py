"""Combines what workers of one kind report of their steps: one shape for all, and a pace for each. Pure.

A worker reports a fit of its own steps. The fit of a worker that has had only short prompts knows nothing of long
ones, and two fits may divide a step's time differently among its parts, so parts are not compared. Instead every fit
says how long some reference loads take, weighted by its evidence for such loads, and the shape goes through the
medians. A pace is the time that a worker's own steps took over what the shape says of just those steps, so it does
not depend on which prompts the worker has had. Steps with prompts and steps without have paces of their own.
"""

from collections.abc import Iterable, Sequence
from math import exp
from operator import mul
from typing import Final, NamedTuple

from router.placement.learning.fit import Fit
from router.placement.learning.pace import Paces
from tandem.core.messages import StepFit, StepSums

_PLAIN_WINDOW: Final = 64.0
_PROMPTS_WINDOW: Final = 16.0
"""Steps after which a pace follows what is new: few, so that a worker that becomes slower, or faster, is known by
some prompts of its own."""
_PLAIN_DOUBT: Final = 8.0
_PROMPTS_DOUBT: Final = 2.0
_KEEP: Final = 0.975
"""Share of itself that evidence keeps from one heartbeat to the next: a worker that gets no prompts is forgotten
within a minute or so, and looks like all others."""
_SAY_MAX: Final = 4.0
"""Evidence for so many loads of a size is enough."""
_OWN: Final = 4.0
"""Weight of the recent steps of all workers together, relative to one reference load."""
_PULL: Final = 0.001
_LONGER: Final = 4.0
"""Times the length of its mean piece up to which a worker's fit has evidence for prompts."""
_REACH: Final = 4.0
"""How many times as long as the mean sequence those of some reference loads are."""

Features = tuple[float, float, float, float, float, float]
"""Steps, rows, reads, pieces, tokens and positions, as `StepSums` has them."""


class Shape(NamedTuple):
    """Milliseconds per feature."""

    base: float
    sequence: float
    read: float
    piece: float
    token: float
    position: float


class _Window:
    """Sums over a worker's last steps of one sort."""

    __slots__ = ("features", "length", "seconds")

    def __init__(self, length: float) -> None:
        self.length = length
        self.features: Features = (0.0,) * 6
        self.seconds = 0.0

    def add(self, before: StepSums | None, now: StepSums) -> None:
        """The steps since `before`, all there have been where it is None, weigh no more than the window is long."""
        told = _features(now)
        new = told if before is None else _minus(told, _features(before))
        seconds = now.seconds if before is None else now.seconds - before.seconds
        fade = exp(-new[0] / self.length)
        scale = self.length * (1.0 - fade) / new[0] if new[0] > 0.0 else 0.0
        fade *= _KEEP
        a, b, c, d, e, f = (fade * old + scale * each for old, each in zip(self.features, new, strict=True))
        self.features = (a, b, c, d, e, f)
        self.seconds = fade * self.seconds + scale * seconds

    def ratio(self, shape: Shape) -> float:
        """The measured time over what the shape expects; 0 where it expects none."""
        expected = sum(map(mul, shape, self.features))
        return 1e3 * self.seconds / expected if expected > 0.0 else 0.0


class _Told:
    """The reports of one worker."""

    __slots__ = ("fit", "plain", "prompts")

    def __init__(self, fit: StepFit) -> None:
        self.plain, self.prompts = _Window(_PLAIN_WINDOW), _Window(_PROMPTS_WINDOW)
        self.plain.add(None, fit.plain)
        self.prompts.add(None, fit.prompts)
        self.fit = fit

    def renew(self, fit: StepFit) -> None:
        self.plain.add(self.fit.plain, fit.plain)
        self.prompts.add(self.fit.prompts, fit.prompts)
        self.fit = fit


class Pool:
    """All workers of one kind that report a fit of their steps."""

    def __init__(self, prior: Shape) -> None:
        self.shape = prior
        self._told: dict[str, _Told] = {}
        self._new = 0
        """Fits that came since the shape was found."""
        self.plain, self.prompts = Paces(_PLAIN_DOUBT), Paces(_PROMPTS_DOUBT)

    def __len__(self) -> int:
        return len(self._told)

    @property
    def workers(self) -> Iterable[str]:
        return self._told

    @property
    def usual(self) -> Shape:
        """The shape of a worker at the median pace."""
        plain, prompts, shape = self.plain.median, self.prompts.median, self.shape
        return Shape(
            plain * shape.base,
            plain * shape.sequence,
            plain * shape.read,
            prompts * shape.piece,
            prompts * shape.token,
            prompts * shape.position,
        )

    def observe(self, worker_id: str, fit: StepFit) -> bool:
        """Take in the fit that a worker reports. Returns True when this has changed what is known of all others."""
        told = self._told.get(worker_id)
        if told is None or _restarted(told.fit, fit):
            self._told[worker_id] = _Told(fit)
            self._new = len(self._told)
        else:
            told.renew(fit)
            self._new += 1
        if self._new >= len(self._told):
            self._new = 0
            fits, share = [each.fit for each in self._told.values()], _OWN / len(self._told)
            self.shape = pooled(fits, self.shape, [(*mean, share) for mean in self._means()])
            for name in self._told:
                self._judge(name)
            return True
        versions = self.plain.version, self.prompts.version
        self._judge(worker_id)
        return versions != (self.plain.version, self.prompts.version)

    def forget(self, worker_id: str) -> None:
        self._told.pop(worker_id, None)
        self.plain.forget(worker_id)
        self.prompts.forget(worker_id)

    def _means(self) -> Iterable[tuple[Features, float]]:
        """The mean of each worker's recent steps, with prompts and without, at the median pace."""
        for name, told in self._told.items():
            for window, paces in ((told.plain, self.plain), (told.prompts, self.prompts)):
                steps = window.features[0]
                if steps >= 1.0:
                    a, b, c, d, e, f = (value / steps for value in window.features)
                    yield (a, b, c, d, e, f), 1e3 * window.seconds / steps / paces.of(name) * paces.median

    def _judge(self, worker_id: str) -> None:
        told = self._told[worker_id]
        self.plain.tell(worker_id, told.plain.ratio(self.shape), told.plain.features[0])
        self.prompts.tell(worker_id, told.prompts.ratio(self.shape), told.prompts.features[0])


def pooled(fits: Sequence[StepFit], prior: Shape, means: Iterable[tuple[Features, float, float]] = ()) -> Shape:
    """The shape through the medians of what fits say of loads of reference; `prior` where none has evidence. `means`
    are steps that there have been, with how long they took in milliseconds and their weight: they hold the shape to
    what is asked of workers now."""
    rows = sum(fit.plain.rows + fit.prompts.rows for fit in fits)
    context = sum(fit.plain.reads + fit.prompts.reads for fit in fits) / rows if rows > 0.0 else 0.0
    shape = Fit(prior, (_PULL,) * len(prior), 1.0)
    for reference in _references(max(map(_batch, fits), default=0.0), context):
        says = [(_predicted(fit, reference), _say(fit, reference)) for fit in fits]
        found = _weighted_median([(value, say) for value, say in says if say > 0.0 and value > 0.0])
        if found > 0.0:
            shape.add(reference, found)
    for features, ms, weight in means:
        # A clock that stands still measures nothing.
        if ms > 0.0:
            shape.add(features, ms, weight)
    shape.settle()
    return Shape(*shape.coefficients)


def _references(batch: float, context: float) -> Iterable[Features]:
    """Batches of up to twice as many sequences as `batch`, which attend to `context` positions each, or more; and
    prompts, some behind many tokens."""
    most = max(16.0, 2.0 * batch)
    for rows, reach in ((1.0, 1.0), (most / 8, 1.0), (most / 2, 1.0), (most, 1.0), (most / 8, _REACH)):
        yield 1.0, rows, rows * reach * context, 0.0, 0.0, 0.0
    for tokens, cached in ((128, 0), (512, 0), (2_048, 0), (8_192, 0), (1_024, 16_384), (4_096, 8_192)):
        yield 1.0, 0.0, 0.0, 1.0, float(tokens), tokens * (cached + tokens / 2)


def _predicted(fit: StepFit, reference: Features) -> float:
    """Milliseconds."""
    steps, rows, reads, pieces, tokens, positions = reference
    seconds = fit.base_s * steps + fit.sequence_s * rows + fit.read_s * reads
    return 1e3 * (seconds + fit.piece_s * pieces + fit.token_s * tokens + fit.position_s * positions)


def _say(fit: StepFit, reference: Features) -> float:
    """The evidence of a fit for a reference load: how many loads of that size the worker has had, as far as its sums
    tell."""
    _, rows, _, pieces, tokens, positions = reference
    if pieces:
        sums = fit.prompts
        had = min(_SAY_MAX, sums.tokens / tokens, sums.positions / positions)
        return had * min(1.0, _LONGER * sums.tokens / (sums.pieces * tokens)) if sums.pieces else 0.0
    had = min(_SAY_MAX, (fit.plain.rows + fit.prompts.rows) / rows)
    # Of batches larger than its own it guesses, as of longer pieces.
    return had * min(1.0, _batch(fit) / rows)


def _batch(fit: StepFit) -> float:
    """Sequences that its mean step had."""
    steps = fit.plain.steps + fit.prompts.steps
    return (fit.plain.rows + fit.prompts.rows) / steps if steps else 0.0


def _weighted_median(says: list[tuple[float, float]]) -> float:
    """0 for nothing; between two that weigh as much their mean."""
    says.sort()
    left = sum(weight for _, weight in says) / 2.0
    for place, (value, weight) in enumerate(says):
        left -= weight
        if left < 0.0 or place == len(says) - 1:
            return value
        if left == 0.0:
            return (value + says[place + 1][0]) / 2.0
    return 0.0


def _restarted(before: StepFit, now: StepFit) -> bool:
    """Sums only grow while a worker lives."""
    return now.plain.steps < before.plain.steps or now.prompts.steps < before.prompts.steps


def _features(sums: StepSums) -> Features:
    return float(sums.steps), sums.rows, sums.reads, sums.pieces, sums.tokens, sums.positions


def _minus(left: Features, right: Features) -> Features:
    a, b, c, d, e, f = (one - other for one, other in zip(left, right, strict=True))
    return (a, b, c, d, e, f)
