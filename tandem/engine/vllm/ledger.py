"""The ledger of the requests that vLLM has: what to send for each, what vLLM's answers mean, and when it is over.
Synchronous, no clock.

Actions for the shell are left in `to_send` and `to_abort`, which it empties in this order, and in `unread`, from
which it takes one request after the other.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

from tandem.core.errors import TandemError
from tandem.core.request import ChildRequest
from tandem.engine.protocol import Emitted, EngineInfo, EngineRequest, FirstTokens
from tandem.engine.scheduler.admission import refuse_impossible
from tandem.engine.scheduler.events import EngineEvents
from tandem.engine.scheduler.request_deadlines import RequestDeadlines, Wait
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.image_queue import ImageQueue
from tandem.engine.vllm.notices import Notice, notice_of
from tandem.engine.vllm.outgoing import OutgoingRequest, RequestBuilder
from tandem.engine.vllm.outputs import new_positions, record_stats
from tandem.engine.vllm.refusing import refuse_unservable
from tandem.engine.vllm.requests import (
    Expanded,
    as_prompted,
    make_request,
    owner_of,
    with_images,
)
from tandem.engine.vllm.settings import RunnerKind
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.stage_params import for_sequence
from tandem.engine.vllm.tracked_request import TrackedChild, TrackedRequest

_WAITS: Final[Mapping[str, Wait]] = {
    "computes": Wait.NOTHING,
    "awaits_kv": Wait.KV,
    "has_kv": Wait.PLACE,
    "preempted": Wait.PLACE,
}
_NO_SLOTS: Final = ": no slots of the stage were free"
_SILENT_S: Final = 0.5
"""Seconds within which a new token makes a separate progress report for its work unnecessary."""


class Ledger:
    """Owns every work of one engine."""

    def __init__(
        self,
        info: EngineInfo,
        settings: SchedulerSettings,
        maker: RequestBuilder,
        stage: Stage | None,
        runner: RunnerKind,
        heard: int = 0,
    ) -> None:
        self.outbox = EngineEvents()
        self.to_send: list[OutgoingRequest] = []
        self.to_abort: list[str] = []
        self._unread = ImageQueue()
        self._info = info
        self._settings = settings
        self._request_builder = maker
        self._stage = stage
        self._runner = runner
        self._runs: dict[int, TrackedRequest] = {}
        self._moved = self._told = -inf
        """When a prompt last made progress, and when progress was last reported."""
        self._heard = heard
        """Messages of notices that have arrived, including those that arrived before this ledger existed."""
        self._later: dict[int, list[OutgoingRequest]] = {}
        """The vLLM requests, by `work_id`, that are held back until the stage has slots for them, or until the first
        vLLM request of the same `work_id` is answered."""
        fetched = (lambda _work_id: False) if stage is None else stage.fetches
        self._deadlines = RequestDeadlines(self._runs, settings.queue_s, settings.kv_wait_s, fetched)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> tuple[TrackedRequest, ...]:
        return tuple(self._runs.values())

    @property
    def unread(self) -> int:
        """The number of requests that wait for their images to be read."""
        return len(self._unread)

    @property
    def computing(self) -> bool:
        """Whether vLLM has something to compute that does not wait for another worker."""
        return any(
            branch.sent is not None
            and not branch.done
            and (run.work.mode != "decode" or branch.position > branch.forced)
            for run in self._runs.values()
            for branch in run.branches.values()
        )

    # -- commands --

    def submit(self, work: EngineRequest, now: float) -> None:
        """Take a request; see `Engine.submit` for what it raises."""
        assert work.work_id not in self._runs, f"work {work.work_id} is here already"
        refuse_unservable(work, self._info, self._runner, staged=self._stage is not None)
        if len(self._runs) >= self._settings.max_waiting + self._settings.max_sequences:
            raise TandemError("queue_full", f"{len(self._runs)} works are here already")
        run = TrackedRequest(work, now, self._info.eos_token_ids)
        orders = [] if run.expanding else self._open(run)
        self._runs[work.work_id] = run
        self._later[work.work_id] = orders
        self._deadlines.watch(run, now)
        if run.expanding:
            self._unread.add(run)
        elif self._stage is None:
            self._send(orders.pop(0))

    def next_to_read(self, now: float) -> EngineRequest | None:
        """The work whose images are to take their places next; `expanded` or `refused` follows."""
        return self._unread.take(now)

    def expanded(self, work_id: int, found: Expanded, now: float) -> None:
        """Continue a request whose images have been put into its prompt."""
        run = self._runs.get(work_id)
        if run is None:
            return
        work = with_images(run.work, found, self._info.context_tokens)
        try:
            refuse_impossible(work, self._info)
            run.expanded(work, now)
            self._later[work_id] = orders = self._open(run, found.media)
        except TandemError as error:
            self.refused(work_id, error, now)
            return
        self._deadlines.watch_wait(run)
        if self._stage is None:
            self._send(orders.pop(0))

    def _open(self, run: TrackedRequest, media: Mapping[str, Any] | None = None) -> list[OutgoingRequest]:
        """Prepare the requests of a work, and announce it to the stage. Raises what either of them refuses."""
        work = run.work
        orders = [self._prepared(run, branch, media) for branch in work.branches]
        if self._stage is not None:
            self._stage.open(as_prompted(work), computed_here=work.mode == "local" and not work.private)
        return orders

    def _prepared(
        self, run: TrackedRequest, branch: ChildRequest, media: Mapping[str, Any] | None
    ) -> OutgoingRequest:
        request = make_request(run.work, branch, run.stop_check.end_tokens, self._runner, media)
        return OutgoingRequest(run.branches[branch.sequence], self._request_builder.prepare(request))

    def admitted(self, work_id: int, params: dict[str, object] | None) -> None:
        """Send a request for which the stage has slots, or in which the stage has no part."""
        run = self._runs.get(work_id)
        if run is None:
            return
        later = self._later[work_id]
        together = len(later) if run.work.mode == "decode" else 1
        orders, self._later[work_id] = later[:together], later[together:]
        for order in orders:
            if params is not None:
                first = order.branch is run.root
                self._request_builder.attach(
                    order.request, params if first else for_sequence(params, order.branch.index)
                )
            self._send(order)

    def moved(self, now: float) -> None:
        """Slots were given out: those who wait for some do not stand still."""
        self._deadlines.moved(now)

    def refused(self, work_id: int, error: TandemError, now: float) -> None:
        """Fail a request that the stage could not take in time and has closed, or whose images cannot be put into its
        prompt."""
        if (run := self._runs.get(work_id)) is not None:
            self._fail(run, error.code, error.message, now, error.param)

    def cancel(self, work_id: int, now: float, sequence: int | None = None) -> None:
        """Cancel a request, or one sequence of it."""
        run = self._runs.get(work_id)
        if run is None:
            return
        if sequence is None:
            self._end(run, now)
        elif sequence in run.branches:
            self._close(run, run.branches[sequence], now)

    def provide_first(self, work_id: int, sequence: int, token: int, now: float, relay: bool) -> None:
        """The next position of a branch is known. Repeats, and positions drawn here, are ignored."""
        run = self._runs.get(work_id)
        branch = run.branches.get(sequence) if run is not None else None
        if run is None or branch is None or branch.done or run.work.mode != "decode":
            return
        if branch.position != branch.forced:
            return
        branch.position = position = branch.forced + 1
        finish, stop_reason = run.stop_check.finish_of(token, position)
        run.first_token = run.first_token or now
        self._prefill_over(run, now)
        if relay:
            self.outbox.emitted.append(
                Emitted(work_id, sequence, position, token, finish, stop_reason, None, relayed=True)
            )
        if finish is not None:
            self._close(run, branch, now)
        elif self._stage is not None:
            self._stage.provide_first(work_id, sequence, token)

    def sample_first(self, work_id: int, now: float) -> None:
        """Prefill is lost."""
        run = self._runs.get(work_id)
        if run is not None and run.work.mode == "decode" and self._stage is not None:
            self._prefill_over(run, now)
            self._stage.sample_first(work_id)

    def _prefill_over(self, run: TrackedRequest, now: float) -> None:
        run.prefill_over(now)
        self._deadlines.watch_wait(run)

    # -- what vLLM says --

    def hear(self, outputs: Sequence[Any], now: float) -> None:
        """One message of vLLM."""
        if outputs and notice_of(outputs[0].kv_transfer_params) is not None:
            self._heard += 1
        for output in outputs:
            self.take(output, now)

    def take(self, output: Any, now: float) -> None:
        """One output record of vLLM."""
        work_id, sequence = owner_of(output.request_id)
        run = self._runs.get(work_id)
        branch = run.branches.get(sequence) if run is not None else None
        if run is None or branch is None or branch.done:
            return
        if (notice := notice_of(output.kv_transfer_params)) is not None:
            self._noticed(run, branch, notice, now)
            return
        if branch is run.root:
            record_stats(run, output)
            if output.new_token_ids:
                run.drew(now)
        if output.new_token_ids:
            self._prompt_computed(run, now)
        for emitted in new_positions(run, branch, output):
            self._emit(run, branch, emitted, now)
        if output.finish_reason is not None and not branch.done:
            self._fail(run, "engine_failed", f"vLLM ended the request with {str(output.finish_reason)!r}", now)

    def _emit(self, run: TrackedRequest, branch: TrackedChild, emitted: Emitted, now: float) -> None:
        run.first_token = run.first_token or now
        run.brought = now
        self.outbox.emitted.append(emitted)
        if run.work.mode == "prefill":
            run.first.append((branch.index, emitted.token, emitted.finish))
            self._close(run, branch, now)
        elif emitted.finish is not None:
            self._close(run, branch, now)

    def _prompt_computed(self, run: TrackedRequest, now: float) -> None:
        """Send the remaining branches of a request for which vLLM has sampled a token: its prompt is in the prefix
        cache, where those branches find it."""
        if run.prefilled is None:
            run.prefilled = now
        for order in self._later.pop(run.work_id, []):
            self._send(order)

    def _noticed(self, run: TrackedRequest, branch: TrackedChild, notice: Notice, now: float) -> None:
        """Take in a notice of what a step that begins is about. A work follows its first branch, which computes the
        prompt."""
        if notice.kind == "computes":
            self._moved = now
            self._deadlines.moved(now)
        if branch is not run.root:
            return
        if run.noticed(_WAITS[notice.kind], now, preempted=notice.kind == "preempted"):
            self._deadlines.watch_wait(run)
        if notice.kind == "computes" and run.prefilled is None:
            run.computes(notice.start, notice.tokens)

    def tell_progress(self, now: float, *, stepping: bool, said: int) -> None:
        """Report the requests that make progress although they have no output to show for it. With `stepping`
        these are those that are computed, for the engine is in a step that may take its time. They are also those
        that wait for a place while prompts make progress, those whose blocks are being fetched, and those whose
        images are being read or wait behind others whose images are. `said` is as for `look`."""
        prompts = self._moved > self._told or (stepping and self._prompts_run) or said > self._heard
        self._told = now
        moving = [
            run
            for run in self._runs.values()
            if (run.wait is Wait.NOTHING and (stepping or run.expanding) and run.brought < now - _SILENT_S)
            or (run.wait is Wait.PLACE and (prompts or self._unread.waits_behind(run)))
            or (run.wait is Wait.KV and self._stage is not None and self._stage.fetches(run.work_id))
        ]
        if prompts:
            self._deadlines.moved(now)
        for run in moving:
            if run.wait is Wait.KV or run.expanding:
                # What has come is loaded and has its turn after the fetch: its wait counts from there. Who waits
                # behind the images of others waits for what has a bound of its own.
                run.waits_since = now
        self.outbox.progress((run.work_id, run.tokens_computed) for run in moving)
        if self._stage is not None:
            self._stage.moved([run.work.lease_id for run in moving if run.work.lease_id], now)

    @property
    def _prompts_run(self) -> bool:
        return any(
            run.wait is Wait.NOTHING and run.prefilled is None and not run.expanding for run in self._runs.values()
        )

    def look(self, now: float, said: int) -> None:
        """End works whose time is over. vLLM has sent `said` messages of notices: while the last has not arrived, any
        work may have got its place, so none is known to have waited for one in vain."""
        if said > self._heard:
            self._deadlines.moved(now)
        for run, reason in self._deadlines.passed(now):
            unsent = run.wait is Wait.PLACE and run.root.sent is None and not run.expanding
            self._fail(run, "deadline_exceeded", f"{reason}{_NO_SLOTS if unsent else ''}", now)

    def next_look(self) -> float:
        """The time at which `look` must be called again; infinity for never."""
        return self._deadlines.next()

    # -- sending --

    def _send(self, order: OutgoingRequest) -> None:
        if not order.branch.done:
            self.to_send.append(order)

    # -- ends --

    def _close(self, run: TrackedRequest, branch: TrackedChild, now: float) -> None:
        """Finish a branch. The request ends with its last branch."""
        if branch.done:
            return
        branch.done = True
        run.live -= 1
        self._abort(branch)
        if run.live == 0:
            self._end(run, now)

    def _abort(self, branch: TrackedChild) -> None:
        """vLLM ignores ids of requests that have ended."""
        unsent = [order for order in self.to_send if order.branch is not branch]
        if len(unsent) < len(self.to_send):
            self.to_send = unsent
        elif branch.sent is not None:
            self.to_abort.append(branch.request_id)

    def _end(self, run: TrackedRequest, now: float) -> None:
        del self._runs[run.work_id]
        self._unread.discard(run.work_id)
        self._later.pop(run.work_id, None)
        for branch in run.branches.values():
            if not branch.done:
                branch.done = True
                self._abort(branch)
        staged = fetched = 0
        if self._stage is not None:
            sources = self._stage.sources(run.work_id)
            staged, fetched = sources.staged, sources.fetched
            if len(run.first) == len(run.branches):
                self._stage.first_sampled(run.work_id, FirstTokens(tuple(sorted(run.first))))
            self._stage.close(run.work_id)
        self.outbox.end(run.work_id, run.stats(now, staged, fetched))

    def _fail(self, run: TrackedRequest, code: str, message: str, now: float, param: str | None = None) -> None:
        self.outbox.fail(run.work_id, code, message, param)
        self._end(run, now)
