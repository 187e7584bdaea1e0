"""Scheduler side, pure: which requests take part, what they may load, and what each step saves."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.core.kv import child_name, pack_tokens
from tandem.engine.vllm.conduit_messages import OUTPUT_BLOCKS_MAX
from tandem.engine.vllm.connector.orders import LoadOrder, OutputOrder, PageTarget, SaveOrder, StepOrders
from tandem.engine.vllm.stage_params import StageParams

_QUIET: Final = {
    (decoding, idle): StepOrders(decoding=decoding, idle=idle) for decoding in (False, True) for idle in (False, True)
}
"""Most steps have no orders, and making some would take longer than all else that is done here in them."""


@dataclass
class _Request:
    params: StageParams
    prompt_tokens: int
    held: frozenset[int]
    load_tried: bool = False
    saved: int = 0
    """Blocks below this one have been ordered to be saved, or need not be."""
    copied_from: bool = False
    """Whether a worker may be copying from its blocks."""

    @property
    def saves(self) -> bool:
        """Whether a later step may have blocks of it to save."""
        return self.saved < len(self.params.slots)


@dataclass(frozen=True)
class Finished:
    """A request that is over. The engine has computed positions 0 … `computed`-1 of `tokens`, which are its prompt
    and the output that came of it, and no draft; `blocks` are the engine's."""

    request_id: str
    tokens: Sequence[int]
    computed: int
    blocks: Sequence[int]


@dataclass(frozen=True)
class ScheduledTokens:
    """A request that computes tokens `start` … `end`-1 in a step. `blocks` are the engine's, from the first on."""

    request_id: str
    start: int
    end: int
    blocks: Sequence[int]


class RequestTable:
    """Owned by the scheduler side of one engine. Unknown requests are other people's and are ignored.

    `whole` is for an engine that cannot compute the rest of a prompt whose beginning is there: all of a prompt is
    loaded, or nothing.
    """

    def __init__(self, block_tokens: int, *, whole: bool = False) -> None:
        self._block_tokens = block_tokens
        self._whole = whole
        self._requests: dict[str, _Request] = {}
        self._saving: dict[str, None] = {}
        """Requests with blocks that are still to be saved: few, as a request that generates is not among them."""
        self._loads: list[LoadOrder] = []
        self._new: dict[str, tuple[int, int]] = {}
        self._outputs: list[OutputOrder] = []
        self._held: list[str] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def saving(self) -> tuple[str, ...]:
        """The requests whose progress must be passed to `step`; the progress of others changes nothing."""
        return tuple(self._saving)

    def add(self, request_id: str, params: StageParams, prompt_tokens: int) -> None:
        """A request that the stage takes part in came."""
        assert request_id not in self._requests, f"request {request_id} is here already"
        request = _Request(params, prompt_tokens, frozenset(params.held))
        request.saved = params.save
        self._requests[request_id] = request
        if request.saves:
            self._saving[request_id] = None
        self._new[request_id] = (params.work, params.sequence)

    def matched(self, request_id: str, cached: int) -> int:
        """The number of tokens beyond the `cached` ones that can be loaded. Changes nothing.

        A load is tried once: blocks that did not arrive, or were lost to a preemption since, are computed.
        """
        request = self._requests.get(request_id)
        if request is None or request.load_tried:
            return 0
        params = request.params
        beyond = min(params.load, request.prompt_tokens) - cached
        if beyond <= 0 or (self._whole and (cached or beyond < request.prompt_tokens)):
            return 0
        first = cached // self._block_tokens
        # Without its first block a load brings nothing, unless there is something else to wait for.
        return beyond if params.first or params.slots[first] >= 0 else 0

    def allocated(self, request_id: str, blocks: Sequence[int], loading: int) -> None:
        """The engine has given the request its blocks; the last `loading` tokens of those that can be are loaded."""
        request = self._requests.get(request_id)
        if request is None or loading <= 0:
            return
        assert not request.load_tried, f"request {request_id} loads twice"
        request.load_tried = True
        params, size = request.params, self._block_tokens
        cached = min(params.load, request.prompt_tokens) - loading
        wanted = range(cached // size, -(-(cached + loading) // size))
        targets = tuple(PageTarget(index, params.slots[index], blocks[index]) for index in wanted)
        self._loads.append(
            LoadOrder(request_id, params.work, params.sequence, targets, params.first, cached, loading, self._whole)
        )

    def step(
        self,
        computing: Iterable[ScheduledTokens],
        preempted: Collection[str] = (),
        *,
        decoding: bool = False,
        idle: bool,
    ) -> StepOrders:
        """The orders for the workers in the step that is being scheduled. `computing` says how far those of `saving`
        get that are in the step, `preempted` are requests whose blocks the engine has just taken away, `decoding`
        says that some of the step's requests generate."""
        if not (preempted or self._saving or self._new or self._loads or self._outputs or self._held):
            return _QUIET[decoding, idle]
        saves, blank = list[SaveOrder](), list[int]()
        fence = any(request.copied_from for each in preempted if (request := self._requests.get(each)) is not None)
        for progress in computing:
            request = self._requests.get(progress.request_id)
            if request is None or not request.saves:
                continue
            blank += self._blanks(request, progress)
            if targets := self._saves(request, progress):
                request.copied_from = True
                saves.append(SaveOrder(progress.request_id, request.params.work, targets))
            if not request.saves:
                del self._saving[progress.request_id]
        orders = StepOrders(
            tuple(self._loads), tuple(saves), tuple(blank), self._new, tuple(self._outputs), tuple(self._held),
            fence, decoding, idle,
        )  # fmt: skip
        self._loads, self._new, self._outputs, self._held = [], {}, [], []
        return orders

    def finished(self, over: Finished) -> bool:
        """Remove a request that is over, and drop a load of it that no worker has received yet. Gives whether the
        engine must keep its blocks until the workers report that they are done with them."""
        request = self._requests.pop(over.request_id, None)
        self._saving.pop(over.request_id, None)
        self._loads = [load for load in self._loads if load.request_id != over.request_id]
        if request is None:
            return False
        output = self._output(request, over)
        if output is not None:
            self._outputs.append(output)
        elif not request.copied_from:
            return False
        self._held.append(over.request_id)
        return True

    def _output(self, request: _Request, over: Finished) -> OutputOrder | None:
        """The request's full blocks beyond those of its prompt. A position is final once the one after it has been
        drawn: only then is it no draft, and neither are those before it."""
        params, size = request.params, self._block_tokens
        first = request.prompt_tokens // size
        end = min(min(over.computed, len(over.tokens) - 1) // size, len(over.blocks), first + OUTPUT_BLOCKS_MAX)
        if params.parent is None or end <= first:
            return None
        names, name = list[bytes](), params.parent
        for index in range(first, end):
            name = child_name(name, pack_tokens(over.tokens[index * size : (index + 1) * size]))
            names.append(name)
        return OutputOrder(over.request_id, params.work, params.sequence, tuple(names), tuple(over.blocks[first:end]))

    def _complete(self, request: _Request, end: int) -> int:
        """Blocks of the prompt whose positions in use are all computed."""
        if end >= request.prompt_tokens:
            return len(request.params.slots)
        return min(end // self._block_tokens, len(request.params.slots))

    def _saves(self, request: _Request, progress: ScheduledTokens) -> tuple[PageTarget, ...]:
        complete = self._complete(request, progress.end)
        wanted = range(request.saved, complete)
        request.saved = max(request.saved, complete)
        slots = request.params.slots
        return tuple(
            PageTarget(index, slots[index], progress.blocks[index])
            for index in wanted
            if index not in request.held and slots[index] >= 0
        )

    def _blanks(self, request: _Request, progress: ScheduledTokens) -> list[int]:
        """The engine's block of the tail, in the step that writes to it first."""
        size, prompt = self._block_tokens, request.prompt_tokens
        full = prompt // size
        begins = progress.start <= full * size < progress.end
        if prompt % size == 0 or full >= len(request.params.slots) or not begins or request.saved > full:
            return []
        return [progress.blocks[full]]
