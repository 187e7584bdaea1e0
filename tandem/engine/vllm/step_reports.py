"""Report from vLLM's engine process to the worker what each step is about, before it is computed, and how old the
step is.

The scheduler's decisions are read where they are made, after `Scheduler.schedule` and before the model runs. That is
the one place where every engine, with a connector or without, knows which requests have their place.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tandem.engine.vllm.heartbeat import Heartbeat
from tandem.engine.vllm.internals import PATCHED
from tandem.engine.vllm.notices import Notice

_FRONTEND: Final = 0
"""Number of the only client that an engine of ours has."""


def report_steps(heartbeat: Heartbeat) -> None:
    """Report every step of an engine in this process from now on. Does nothing where no engine can be."""
    core = sys.modules.get(PATCHED["engine_core"])
    if core is not None:
        _wrap(core.EngineCoreProc, heartbeat)


def _wrap(engine: Any, heartbeat: Heartbeat) -> None:
    process_step = engine._process_engine_step
    tellers: dict[int, StepReporter] = {}

    def told(core: Any) -> Any:
        if id(core) not in tellers:
            tellers[id(core)] = StepReporter(core.scheduler, core.output_queue.put_nowait, heartbeat, _words())
        heartbeat.step_begins()
        try:
            return process_step(core)
        finally:
            heartbeat.step_ends()

    engine._process_engine_step = told


@dataclass(frozen=True)
class VllmTypes:
    """The parts of vLLM that a `StepReporter` needs: the class of an output record, that of a message of them, and
    the status of a request that waits for KV."""

    record: Callable[..., Any]
    message: Callable[..., Any]
    awaits_kv: object


def _words() -> VllmTypes:
    from tandem.engine.vllm.internals import EngineCoreOutput, EngineCoreOutputs, RequestStatus

    return VllmTypes(EngineCoreOutput, EngineCoreOutputs, RequestStatus.WAITING_FOR_REMOTE_KVS)


class StepListener(Protocol):
    """Hears what steps have to compute, and that a message of notices is about to be sent; `heartbeat.Pulse` does."""

    def scheduled(self, rows: int, prompt_tokens: int) -> None: ...
    def says(self) -> None: ...


class StepReporter:
    """Stands in front of one scheduler's `schedule`."""

    def __init__(
        self, scheduler: Any, send: Callable[[tuple[int, Any]], None], load: StepListener, words: VllmTypes
    ) -> None:
        self._scheduler = scheduler
        self._schedule = scheduler.schedule
        self._send = send
        self._load = load
        self._words = words
        self._awaiting: set[str] = set()
        scheduler.schedule = self.schedule

    def schedule(self, *given: Any, **named: Any) -> Any:
        """The decision of vLLM's scheduler, unchanged; notices about it are sent before it is returned."""
        scheduled = self._schedule(*given, **named)
        notices = [
            self._words.record(request_id, [], kv_transfer_params=notice.as_params())
            for request_id, notice in self._notices(scheduled)
        ]
        if notices:
            # First, so that nobody has heard more than was said.
            self._load.says()
            self._send((_FRONTEND, self._words.message(outputs=notices)))
        return scheduled

    def _notices(self, scheduled: Any) -> Iterator[tuple[str, Notice]]:
        for request_id in scheduled.preempted_req_ids or ():
            yield request_id, Notice("preempted")
        yield from self._of_kv(scheduled.num_scheduled_tokens)
        prompt_tokens = 0
        for request_id, start, count in _computed(scheduled, self._scheduler.requests):
            prompt_tokens += count
            yield request_id, Notice("computes", start, count)
        total = scheduled.total_num_scheduled_tokens
        self._load.scheduled(total - prompt_tokens, prompt_tokens)

    def _of_kv(self, scheduled: Mapping[str, int]) -> Iterator[tuple[str, Notice]]:
        """Requests that wait for KV since this step, and those that have it and are not in the step all the same.

        vLLM leaves a request in its status until there is room to look at it."""
        if self._scheduler.connector is None or not (self._awaiting or self._scheduler.kv_holding_waiting):
            return
        requests, came = self._scheduler.requests, self._scheduler.finished_recving_kv_req_ids
        found = {
            request_id
            for request_id, request in requests.items()
            if request.status == self._words.awaits_kv and request_id not in came
        }
        for request_id in found - self._awaiting:
            yield request_id, Notice("awaits_kv")
        for request_id in self._awaiting - found:
            if request_id in requests and request_id not in scheduled:
                yield request_id, Notice("has_kv")
        self._awaiting = found


def _computed(scheduled: Any, requests: Any) -> Iterator[tuple[str, int, int]]:
    """(request, first token, tokens) of each scheduled request that has more to compute than its last known token,
    and gives no output before that. A new request is always included."""
    counts, cached = scheduled.num_scheduled_tokens, scheduled.scheduled_cached_reqs
    for new in scheduled.scheduled_new_reqs:
        yield new.req_id, new.num_computed_tokens, counts[new.req_id]
    for request_id, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        if start + 1 < requests[request_id].num_tokens:
            yield request_id, start, counts[request_id]
