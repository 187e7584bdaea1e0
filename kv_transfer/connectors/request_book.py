"""Scheduler side, pure: which requests take part, what they may load, and what each step saves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kv_transfer.connectors.orders import LoadOrder, PageTarget, SaveOrder, StepOrders
from tandem.engine.vllm.stage_params import StageParams


@dataclass
class _Request:
    params: StageParams
    prompt_tokens: int
    held: frozenset[int]
    load_tried: bool = False
    saved: int = 0
    """Blocks below this one have been ordered to be saved, or need not be."""

    @property
    def saves(self) -> bool:
        return self.params.save < len(self.params.slots)


@dataclass(frozen=True)
class Progress:
    """A request that computes tokens `start` … `end`-1 in a step. `blocks` are the engine's, from the first on."""

    request_id: str
    start: int
    end: int
    blocks: Sequence[int]


class RequestBook:
    """Owned by the scheduler side of one engine. Unknown requests are other people's and are ignored.

    `whole` is for an engine that cannot compute the rest of a prompt whose beginning is there: all of a prompt is
    loaded, or nothing.
    """

    def __init__(self, block_tokens: int, *, whole: bool = False) -> None:
        self._block_tokens = block_tokens
        self._whole = whole
        self._requests: dict[str, _Request] = {}
        self._loads: list[LoadOrder] = []
        self._new: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request_id: str, params: StageParams, prompt_tokens: int) -> None:
        """A request that the stage takes part in came."""
        assert request_id not in self._requests, f"request {request_id} is here already"
        request = _Request(params, prompt_tokens, frozenset(params.held))
        request.saved = params.save
        self._requests[request_id] = request
        self._new[request_id] = (params.work, params.sequence)

    def matched(self, request_id: str, cached: int) -> int:
        """How many tokens beyond the `cached` ones can be loaded. Changes nothing.

        A load is tried once: what did not come, or was lost to a preemption since, is computed.
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

    def step(self, computing: Iterable[Progress], *, idle: bool) -> StepOrders:
        """What the workers have to do in the step that is being scheduled."""
        saves, blank = list[SaveOrder](), list[int]()
        for progress in computing:
            request = self._requests.get(progress.request_id)
            if request is not None and request.saves:
                blank += self._blanks(request, progress)
                if targets := self._saves(request, progress):
                    saves.append(SaveOrder(request.params.work, targets))
        loads, self._loads = tuple(self._loads), []
        new, self._new = self._new, {}
        return StepOrders(loads, tuple(saves), tuple(blank), new, idle)

    def finished(self, request_id: str) -> None:
        """The request is over. A load of it that no worker has heard of yet is none."""
        self._requests.pop(request_id, None)
        self._loads = [load for load in self._loads if load.request_id != request_id]

    def _complete(self, request: _Request, end: int) -> int:
        """Blocks of the prompt whose positions in use are all computed."""
        if end >= request.prompt_tokens:
            return len(request.params.slots)
        return min(end // self._block_tokens, len(request.params.slots))

    def _saves(self, request: _Request, progress: Progress) -> tuple[PageTarget, ...]:
        complete = self._complete(request, progress.end)
        wanted = range(request.saved, complete)
        request.saved = max(request.saved, complete)
        slots = request.params.slots
        return tuple(
            PageTarget(index, slots[index], progress.blocks[index])
            for index in wanted
            if index not in request.held and slots[index] >= 0
        )

    def _blanks(self, request: _Request, progress: Progress) -> list[int]:
        """The engine's block of the tail, in the step that writes to it first."""
        size, prompt = self._block_tokens, request.prompt_tokens
        full = prompt // size
        begins = progress.start <= full * size < progress.end
        if prompt % size == 0 or full >= len(request.params.slots) or not begins or request.saved > full:
            return []
        return [progress.blocks[full]]
