"""Blocks that travel between workers: hand-overs from prefill to decode, and what is fetched of other holders.

A hand-over begins to travel while its prompt is computed, as soon as the decode worker has reserved its room; what is
left of that when the prompt is complete, or the last chunk, is waited for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.fleet.worker import Worker
from benchmarks.fleet.worker_request import WorkerRequest
from benchmarks.fleet.workload import Request


@dataclass(slots=True, eq=False)
class Handoff:
    """A request on two workers, until its blocks have moved from the one to the other."""

    prefill: WorkerRequest
    decode: WorkerRequest
    reserved_s: float | None = None
    """When the decode worker reserved its room; None while it has none."""
    held: int = 0
    """Leading prompt tokens that were there then."""
    computed: bool = False
    """The prefill worker has the whole prompt and its first token."""
    cancelled: bool = False


@dataclass(frozen=True)
class Network:
    """Blocks travel at `tokens_per_s` between any two workers, each having one way in and one way out; `transfer_s`
    is what a transfer takes besides. `chunk_tokens` is the most that a prompt's last chunk has."""

    tokens_per_s: float
    transfer_s: float
    chunk_tokens: int


class Transfers:
    """All that is under way. `tell` hears of what has moved: request, tokens, seconds."""

    def __init__(
        self,
        network: Network,
        workers: Sequence[Worker],
        at: Callable[[int, float, Callable[[float], None]], None],
        tell: Callable[[Request, int, float], None],
    ) -> None:
        """`at` calls back for a worker at a time."""
        self._network = network
        self._workers = workers
        self._at = at
        self._tell = tell
        self._out = [0.0] * len(workers)
        self._in = [0.0] * len(workers)
        self._under_way: dict[int, Handoff] = {}

    def begin(self, prefill: WorkerRequest, decode: WorkerRequest) -> None:
        """A request has been given to two workers."""
        prefill.peer = decode
        self._under_way[prefill.request.number] = Handoff(prefill, decode)

    @property
    def kept(self) -> list[WorkerRequest]:
        """Prefill jobs that have ended but for their blocks."""
        return [each.prefill for each in self._under_way.values() if each.prefill.keeps]

    def of(self, request: Request) -> Handoff | None:
        return self._under_way.get(request.number)

    def end(self, request: Request) -> None:
        """Nothing more moves for it."""
        each = self._under_way.pop(request.number, None)
        if each is not None:
            each.cancelled = True

    def reserved(self, job: WorkerRequest, now: float) -> None:
        each = self._under_way[job.request.number]
        each.reserved_s = now
        each.held = self._workers[job.request.decode].held(job.request)
        if each.computed:
            self._send(each, now)

    def withdrawn(self, job: WorkerRequest) -> None:
        self._under_way[job.request.number].reserved_s = None

    def computed(self, job: WorkerRequest, now: float) -> None:
        each = self._under_way[job.request.number]
        each.computed = True
        if each.reserved_s is not None:
            self._send(each, now)
        # A job without a place may get one by this.
        self._workers[job.request.decode].prompt_ready(each.decode, now)

    def _send(self, each: Handoff, now: float) -> None:
        request, network = each.decode.request, self._network
        assert each.reserved_s is not None
        tokens = request.input_tokens - each.held
        free_s = max(self._out[request.prefill], self._in[request.decode])
        began_s = max(request.begun_s, each.reserved_s, free_s)
        last_chunk_s = min(tokens, network.chunk_tokens) / network.tokens_per_s
        end_s = max(began_s + tokens / network.tokens_per_s, now + last_chunk_s)
        self._out[request.prefill] = self._in[request.decode] = end_s
        each.decode.touched(end_s + network.transfer_s)

        def arrived(at: float) -> None:
            if each.cancelled:
                return
            del self._under_way[request.number]
            self._tell(request, tokens, end_s - began_s)
            self._workers[request.decode].arrived(each.decode, at)

        def left(at: float) -> None:
            if not each.cancelled:
                self._workers[request.prefill].release_kept(each.prefill, at)

        self._at(request.prefill, end_s + network.transfer_s, left)
        self._at(request.decode, end_s + network.transfer_s, arrived)

    # ---- prefixes of other holders ----

    def offer(self, worker: int, request: Request, blocks: int, now: float) -> tuple[int, float]:
        """What a worker could fetch of others beyond its first so many blocks: (up to which, when it would be there);
        nothing when the sources have lost it."""
        for source, _ in request.sources:
            have = self._leading(source, request, now)
            if have > blocks:
                return have, self._end_s(source, worker, request.leading(have) - request.leading(blocks), now)[1]
        return blocks, now

    def fetch(self, worker: int, request: Request, blocks: int, now: float) -> None:
        """Carry out what was offered."""
        source = next(source for source, _ in request.sources if self._leading(source, request, now) > blocks)
        tokens = request.leading(self._leading(source, request, now)) - request.leading(blocks)
        began_s, end_s = self._end_s(source, worker, tokens, now)
        self._out[source] = self._in[worker] = end_s
        self._tell(request, tokens, end_s - began_s)

    def _end_s(self, source: int, worker: int, tokens: int, now: float) -> tuple[float, float]:
        began_s = max(now, self._out[source], self._in[worker])
        return began_s, began_s + self._network.transfer_s + tokens / self._network.tokens_per_s

    def _leading(self, worker: int, request: Request, now: float) -> int:
        """Leading blocks that a worker has, wherever."""
        holder = self._workers[worker]
        holder.touch(now)
        return holder.leading(request.blocks)
