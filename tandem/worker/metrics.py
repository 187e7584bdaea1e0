"""Metrics of one worker, from what its engine reports."""

from tandem.core.messages import AttemptReport, Load
from tandem.core.metrics import Meter
from tandem.engine.counts import ExpertBalance, Speculation
from tandem.engine.protocol import StepReport


class WorkerMetrics:
    """Turns reports into metrics of the closed list. `blocks` is how many KV blocks the engine has."""

    def __init__(self, meter: Meter, role: str, blocks: int) -> None:
        self._meter = meter
        self._role = role
        self._blocks = blocks
        self._preemptions = 0
        self._speculated = Speculation(0, ())

    def step(self, report: StepReport) -> None:
        """One engine step or command."""
        if report.emitted:
            self._meter.observe("tandem_batch_sequences", float(len(report.emitted)), self._role)
        if report.load is not None:
            self._load(report.load)
        if report.speculation is not None:
            self._speculation(report.speculation)
        if report.experts is not None:
            self._experts(report.experts)

    def attempt(self, report: AttemptReport) -> None:
        """One ended attempt: the time of each of its stages."""
        for span in report.spans:
            self._meter.observe("tandem_stage_seconds", span.end_s - span.start_s, span.name)

    def _load(self, load: Load) -> None:
        states = {
            "free": load.blocks_free,
            "cached": load.blocks_cached,
            "used": self._blocks - load.blocks_free,
            "exported": load.blocks_exported,
        }
        for state, blocks in states.items():
            self._meter.set("tandem_kv_blocks", float(blocks), state)
        for state, sequences in (("running", load.running), ("waiting", load.waiting)):
            self._meter.set("tandem_sequences", float(sequences), state)
        if load.step_s > 0:
            self._meter.observe("tandem_step_seconds", load.step_s, self._role)
        if load.preemptions > self._preemptions:
            self._meter.add("tandem_preemptions_total", float(load.preemptions - self._preemptions))
            self._preemptions = load.preemptions

    def _speculation(self, came: Speculation) -> None:
        self._meter.add("tandem_speculation_tokens_total", float(came.accepted_tokens), "accepted")
        self._meter.add("tandem_speculation_tokens_total", float(came.wasted_tokens), "wasted")
        for tokens, times in enumerate(came.accepted):
            for _ in range(times):
                self._meter.observe("tandem_speculation_accepted_tokens", float(tokens))
        self._speculated += came
        share = self._speculated.accepted_tokens / max(1, self._speculated.drafted)
        self._meter.set("tandem_speculation_acceptance_ratio", share)

    def _experts(self, balance: ExpertBalance) -> None:
        self._meter.set("tandem_expert_imbalance_ratio", balance.over_experts, "experts")
        if balance.over_ranks is not None:
            self._meter.set("tandem_expert_imbalance_ratio", balance.over_ranks, "ranks")
