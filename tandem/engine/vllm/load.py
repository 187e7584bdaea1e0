"""How busy vLLM is, from what it says after every step and from the works we gave it."""

from collections.abc import Iterable
from typing import Any

from tandem.core.messages import Load
from tandem.engine.counts import Speculation, speculation_of
from tandem.engine.step_model import StepLoad
from tandem.engine.throughput import Throughput
from tandem.engine.vllm.running import WorkRun


class Figures:
    """vLLM's figures after its last step, and recent rates. `blocks` are those of vLLM's own pool."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._throughput = Throughput()
        self._last: float | None = None
        self.running = self.waiting = 0
        self.usage = 0.0
        self.preemptions = 0
        self._speculation: Speculation | None = None

    def step(self, outputs: Any) -> float | None:
        """Take in a message of the engine; gives the moment of the one before, when there was one."""
        before, stats = self._last, outputs.scheduler_stats
        if stats is not None:
            # A gap after an idle engine is no step's time.
            if before is not None and self.running and outputs.outputs:
                self._throughput.observe(_load_of(outputs.outputs), outputs.timestamp - before)
            self.running = stats.num_running_reqs
            self.waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
            self.usage = stats.kv_cache_usage
            self._last = outputs.timestamp
            self._note(stats.spec_decoding_stats)
        self.preemptions += sum(happened.type == 3 for output in outputs.outputs for happened in output.events or ())
        return before

    def take_speculation(self) -> Speculation | None:
        """What became of drafts since the last call."""
        taken, self._speculation = self._speculation, None
        return taken

    def _note(self, drafts: Any) -> None:
        if drafts is not None and drafts.num_drafts:
            came = speculation_of(drafts.num_drafts, drafts.num_draft_tokens, drafts.num_accepted_tokens_per_pos)
            self._speculation = came if self._speculation is None else self._speculation + came

    def load(self, runs: Iterable[WorkRun], cached: int, exported: int) -> Load:
        """`cached` names are in vLLM's prefix cache, `exported` blocks under leases."""
        queued = sum(run.prompt_tokens for run in runs if run.prefilled is None and run.work.mode != "decode")
        free = round(self._blocks * (1 - self.usage))
        return Load(
            running=self.running,
            waiting=self.waiting,
            queued_prompt_tokens=queued,
            blocks_free=free,
            blocks_cached=min(free, cached),
            blocks_exported=exported,
            step_s=self._throughput.step_s,
            prefill_tokens_per_s=self._throughput.prefill_tokens_per_s,
            decode_tokens_per_s=self._throughput.decode_tokens_per_s,
            preemptions=self.preemptions,
        )


def _load_of(outputs: Iterable[Any]) -> StepLoad:
    """Prompts that needed several steps count with the last of these only."""
    prefills = [output.prefill_stats.num_computed_tokens for output in outputs if output.prefill_stats is not None]
    rows = sum(len(output.new_token_ids) for output in outputs if output.prefill_stats is None)
    return StepLoad(rows, sum(prefills), 0.0, len(prefills))
