"""The times that a service's work takes on its workers, as the router has learned them. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from router.placement.costs import CostModel
from router.placement.view import WorkerView
from router.settings import PlacementSettings
from router.split.values import WorkTimes
from tandem.engine.settings import SchedulerSettings

MAX_BATCHED_TOKENS: Final = SchedulerSettings().max_batched_tokens
"""Prompt tokens assumed per step at most: the default, since workers do not report their own setting."""
_LEAST_S: Final = 1e-7
"""A fit may come to nothing; work does not."""


def work_times(costs: CostModel, workers: Sequence[WorkerView], settings: PlacementSettings) -> WorkTimes:
    """The work times of the median worker among `workers`, which must not be empty. These workers exchange KV, so
    their blocks are alike."""
    step = costs.steps.general(workers[0].model)
    prompts = [costs.prefill.terms(worker.worker_id) for worker in workers]
    block_s = workers[0].block_bytes / costs.transfers.carried()
    return WorkTimes(
        step_s=max(_LEAST_S, step.base / 1e3),
        sequence_s=step.sequence / 1e3,
        position_s=step.position / 1e3,
        prompt_token_s=max(_LEAST_S, median(each.token for each in prompts) / 1e3),
        prompt_position_s=median(each.position for each in prompts) / 1e3,
        transfer_latency_s=settings.transfer_setup_ms / 1e3,
        transfer_token_s=block_s / workers[0].block_tokens,
        max_batched_tokens=MAX_BATCHED_TOKENS,
    )
