"""What things cost on which worker, learned from what workers report. Pure; one owner changes it in place."""

from collections.abc import Sequence

from router.settings import CostPriors
from tandem.core.messages import Load
from tandem.core.spans import Span

_SHARE = 0.2
"""Weight of a new observation in the moving averages."""


class CostModel:
    """Prefill rate and step time per worker, how steps grow with the batch, and the rate of transfers.

    Step time is taken as `base + slope * sequences`. The slope is the exponentially weighted least-squares fit
    over all workers (they run the same model); the base is each worker's own.
    """

    def __init__(self, priors: CostPriors) -> None:
        self._priors = priors
        self._prefill: dict[str, float] = {}
        self._step_base_ms: dict[str, float] = {}
        self._bytes_per_s = priors.transfer_bytes_per_s
        self._slope = _Slope(priors.step_ms_per_sequence)

    def observe_load(self, worker_id: str, load: Load) -> None:
        """Learn from a worker's load figures; zeros mean that nothing was measured."""
        if load.prefill_tokens_per_s > 0:
            known = self._prefill.get(worker_id, load.prefill_tokens_per_s)
            self._prefill[worker_id] = known + _SHARE * (load.prefill_tokens_per_s - known)
        if load.step_s > 0 and load.running > 0:
            step_ms = load.step_s * 1e3
            self._slope.observe(load.running, step_ms)
            base = max(0.0, step_ms - self._slope.value * load.running)
            known = self._step_base_ms.get(worker_id, base)
            self._step_base_ms[worker_id] = known + _SHARE * (base - known)

    def observe_spans(self, spans: Sequence[Span]) -> None:
        """Learn from what a worker reported of an attempt: pulls tell their bytes and the rate while there were
        blocks to pull."""
        for span in spans:
            if span.name == "kv.pull":
                moved_bytes, gb_per_s = span.attributes.get("bytes"), span.attributes.get("gb_per_s")
                if isinstance(moved_bytes, int) and isinstance(gb_per_s, float):
                    self.observe_transfer(moved_bytes, gb_per_s * 1e9)

    def observe_transfer(self, moved_bytes: int, bytes_per_s: float) -> None:
        """Learn from a finished pull. Pulls too small to show a rate are left out."""
        if moved_bytes >= 1 << 16 and bytes_per_s > 0:
            self._bytes_per_s += _SHARE * (bytes_per_s - self._bytes_per_s)

    def forget(self, worker_id: str) -> None:
        """The worker is gone; its successor may be another machine."""
        self._prefill.pop(worker_id, None)
        self._step_base_ms.pop(worker_id, None)

    def prefill_ms(self, worker_id: str, tokens: int) -> float:
        return tokens * 1e3 / self._prefill.get(worker_id, self._priors.prefill_tokens_per_s)

    def step_ms(self, worker_id: str, sequences: int) -> float:
        """Expected decode step with `sequences` in the batch."""
        return self._step_base_ms.get(worker_id, self._priors.step_ms) + self._slope.value * sequences

    def transfer_ms(self, moved_bytes: int) -> float:
        return moved_bytes * 1e3 / self._bytes_per_s


class _Slope:
    """Milliseconds per sequence by exponentially weighted least squares; the prior holds until x has varied."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._prior = prior
        self._mean_x = 0.0
        self._mean_y = 0.0
        self._var_x = 0.0
        self._cov = 0.0
        self._seen = False

    def observe(self, x: float, y: float) -> None:
        if not self._seen:
            self._mean_x, self._mean_y, self._seen = x, y, True
            return
        dx, dy = x - self._mean_x, y - self._mean_y
        self._mean_x += _SHARE * dx
        self._mean_y += _SHARE * dy
        self._var_x = (1 - _SHARE) * (self._var_x + _SHARE * dx * dx)
        self._cov = (1 - _SHARE) * (self._cov + _SHARE * dx * dy)
        if self._var_x >= 1.0:
            self.value = max(0.0, self._cov / self._var_x)
