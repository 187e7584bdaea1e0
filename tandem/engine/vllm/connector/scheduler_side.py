"""The connector in vLLM's scheduler: turns its calls into those of a `RequestTable`. Holds no socket and no bytes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tandem.engine.vllm.connector.orders import StepOrders
from tandem.engine.vllm.connector.request_table import Finished, RequestTable, ScheduledTokens
from tandem.engine.vllm.stage_params import stage_params

if TYPE_CHECKING:
    from tandem.engine.vllm.internals import KVCacheBlocks, Request, SchedulerOutput


class TandemConnectorScheduler:
    """One per engine; see `RequestTable`."""

    def __init__(self, block_tokens: int, *, whole: bool = False) -> None:
        self._book = RequestTable(block_tokens, whole=whole)

    def add(self, request: "Request") -> None:
        params = stage_params(request.kv_transfer_params)
        if params is not None:
            self._book.add(request.request_id, params, request.num_prompt_tokens)

    def matched(self, request: "Request", cached: int) -> tuple[int, bool]:
        """Tokens to be loaded, and whether that happens between steps."""
        loading = self._book.matched(request.request_id, cached)
        return loading, loading > 0

    def allocated(self, request: "Request", blocks: "KVCacheBlocks", loading: int) -> None:
        if loading > 0:
            (ids,) = blocks.get_block_ids()
            self._book.allocated(request.request_id, ids, loading)

    def orders(self, scheduled: "SchedulerOutput") -> StepOrders:
        idle = scheduled.total_num_scheduled_tokens == 0
        decoding = any(scheduled.scheduled_cached_reqs.num_output_tokens)
        preempted = scheduled.preempted_req_ids or ()
        return self._book.step(_progress(scheduled, self._book.saving), preempted, decoding=decoding, idle=idle)

    def finished(self, request: "Request", blocks: list[int]) -> bool:
        """Whether the engine keeps its blocks until the workers have reported it."""
        return self._book.finished(
            Finished(request.request_id, request.all_token_ids, request.num_computed_tokens, blocks)
        )


def _progress(scheduled: "SchedulerOutput", saving: Sequence[str]) -> Iterator[ScheduledTokens]:
    """The progress of those of the `saving` requests that compute tokens in the step. vLLM is asked for the blocks of
    no others: asking for every request of every step took a hundredth of the step."""
    if not saving:
        return
    state, counts = scheduled.kv_connector_block_state, scheduled.num_scheduled_tokens
    assert state is not None, "blocks are shown while orders are made"
    cached = scheduled.scheduled_cached_reqs
    starts = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for request_id in saving:
        start = starts.get(request_id)
        blocks = None if start is None else state.get_block_ids(request_id)
        if start is not None and blocks is not None:
            yield ScheduledTokens(request_id, start, start + counts[request_id], blocks[0])
