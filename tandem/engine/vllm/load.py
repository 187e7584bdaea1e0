"""Measure vLLM's load, from its messages after every step and from the requests submitted to it."""

from collections.abc import Collection
from typing import Any

from tandem.core.messages import Load
from tandem.engine.counts import Speculation, speculation_of
from tandem.engine.scheduler.step_model import StepLoad, StepTimeModel
from tandem.engine.scheduler.throughput import Throughput
from tandem.engine.vllm.notices import notice_of
from tandem.engine.vllm.tracked_request import TrackedRequest


class LoadStats:
    """vLLM's figures after its last step, and recent rates. `blocks` are those of vLLM's own pool, and
    `seconds_per_token` is what a prompt token took at first."""

    def __init__(self, blocks: int, seconds_per_token: float) -> None:
        self._blocks = blocks
        self._throughput = Throughput()
        self._times = StepTimeModel(seconds_per_token)
        self._context = 0.0
        """Positions that the prompt tokens of the step attend to, all together."""
        self._last: float | None = None
        self.running = self.waiting = 0
        self.usage = 0.0
        self.preemptions = 0
        self._speculation: Speculation | None = None
        self._pieces = self._prompt_tokens = 0
        self._attended = 0.0
        """Positions that running sequences attend to, all together, when figures were taken last."""
        self._began: float | None = None
        """When the last step that was announced with prompt tokens began; None once that step has been observed."""

    def step(self, outputs: Any) -> None:
        """Process a message of the engine: the content of a step as it begins, or its results."""
        stats = outputs.scheduler_stats
        if stats is None:
            self._step_begins(outputs)
        else:
            self._observe(outputs)
            self.running = stats.num_running_reqs
            self.waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
            self.usage = stats.kv_cache_usage
            self._last = outputs.timestamp
            self._note(stats.spec_decoding_stats)
        self.preemptions += sum(happened.type == 3 for output in outputs.outputs for happened in output.events or ())

    def _step_begins(self, outputs: Any) -> None:
        notices = [notice_of(output.kv_transfer_params) for output in outputs.outputs]
        computed = [notice for notice in notices if notice is not None and notice.tokens]
        if computed:
            self._pieces, self._prompt_tokens = len(computed), sum(notice.tokens for notice in computed)
            self._context = sum(notice.tokens * (notice.start + notice.tokens / 2) for notice in computed)
            self._began = outputs.timestamp

    def _observe(self, outputs: Any) -> None:
        """Learn from a step that has ended. A gap after an idle engine is no step's time, unless the step's begin is
        known.

        With asynchronous scheduling the next step is announced before this one has ended: the two then change places,
        which moves a prompt's tokens to the neighbouring step and loses none.
        """
        rows = sum(len(output.new_token_ids) for output in outputs.outputs if output.prefill_stats is None)
        load = StepLoad(rows, self._prompt_tokens, self._context, self._pieces, self._attended if rows else 0.0)
        begins = [each for each in (self._began, self._last if self.running else None) if each is not None]
        if begins and (rows or self._prompt_tokens):
            self._throughput.observe(load, outputs.timestamp - max(begins))
            self._times.observe(load, outputs.timestamp - max(begins))
        self._pieces = self._prompt_tokens = 0
        self._context = 0.0
        self._began = None

    def predicted_s(self, rows: int, prompt_tokens: int, attended: float = 0.0) -> float:
        """Seconds that a step is expected to take. `attended` is the mean position that its prompt tokens attend
        to."""
        return self._times.predict(StepLoad(rows, prompt_tokens, prompt_tokens * attended, min(1, prompt_tokens)))

    def take_speculation(self) -> Speculation | None:
        """The results of speculative drafts since the last call; None when there were no drafts."""
        taken, self._speculation = self._speculation, None
        return taken

    def _note(self, drafts: Any) -> None:
        if drafts is not None and drafts.num_drafts:
            came = speculation_of(drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_tokens_per_pos)
            self._speculation = came if self._speculation is None else self._speculation + came

    def load(
        self, runs: Collection[TrackedRequest], cached: int, exported: int, overdue_s: float, longest_s: float = 0.0
    ) -> Load:
        """`cached` names are in vLLM's prefix cache, `exported` blocks under leases; `overdue_s` is the age of a step
        that takes too long, `longest_s` what the longest is expected to take."""
        self._attended = sum(run.attended for run in runs if run.prefilled is not None)
        cost = self._times.prompt_cost() if self._times.observed else None
        queued = sum(run.prompt_tokens for run in runs if run.prefilled is None and run.work.mode != "decode")
        free = round(self._blocks * (1 - self.usage))
        return Load(
            running=self.running,
            # vLLM does not know yet of those whose images are to be read.
            waiting=self.waiting + sum(run.expanding for run in runs),
            queued_prompt_tokens=queued,
            blocks_free=free,
            blocks_cached=min(free, cached),
            blocks_exported=exported,
            step_s=self._throughput.step_s,
            prefill_tokens_per_s=self._throughput.prefill_tokens_per_s,
            decode_tokens_per_s=self._throughput.decode_tokens_per_s,
            preemptions=self.preemptions,
            longest_step_s=max(longest_s, self._throughput.prompt_step_s),
            prefill_token_s=cost.token if cost is not None else 0.0,
            prefill_position_s=cost.position if cost is not None else 0.0,
            overdue_s=overdue_s,
            fit=self._times.fit(),
        )
