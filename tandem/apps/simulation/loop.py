"""An asyncio event loop on virtual time: when nothing is ready, the clock jumps to the next timer.

Nothing else of asyncio is replaced, so tasks, timeouts, queues and task groups behave as they do in
production. There are no sockets and no threads: a loop with nothing ready and no timer would wait for ever in
reality, and is reported as a deadlock here.

A simulated process is a context: what is scheduled from inside it belongs to it, and while it is frozen none of
that runs. Afterwards everything that came due meanwhile runs at once, late, as after a SIGSTOP.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

_SPINS_MAX: Final = 100_000
"""Rounds without the clock moving after which a loop is taken to spin; honest ones need some hundreds."""

_ROUNDS: Final = 256

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(Exception):
    """Every task waits and no timer is set, or they wake each other without end while no time passes: in production
    this would be a hang, or a core at full load."""


class TimeLimit(Exception):
    """Virtual time ran past the bound given to `run`."""


@dataclass(eq=False)
class Process:
    """One simulated process. Its tasks begin in `context`, and so does whatever they start."""

    name: str
    frozen: bool = False
    context: Context = field(init=False)
    held: list[asyncio.Handle] = field(default_factory=list)
    """Handles that came due while the process was frozen, in order."""

    def __post_init__(self) -> None:
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)


_PROCESS: ContextVar[Process] = ContextVar("process")


class _Handle(asyncio.Handle):
    """asyncio's, made in one call: there is one for every turn of every task."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        """asyncio's, without asking for the debug mode."""
        self._cancelled = True
        self._callback, self._args = _nothing, ()


class _Timer(asyncio.TimerHandle):
    """asyncio's timer handle, made in one call, for a moment in virtual time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: Any,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None
        self._when = when
        self._scheduled = True

    def cancel(self) -> None:
        """asyncio's `cancel`, without asking for the debug mode. The loop counts cancelled timers that are still
        scheduled."""
        if not self._cancelled:
            self._cancelled = True
            if self._scheduled:
                self._loop._timer_cancelled_count += 1
            self._callback, self._args = _nothing, ()


class _Task(asyncio.Task[Any]):
    """asyncio keeps tasks in sets and cancels them in the order of these: here that is one of when they began, and
    not of where in memory they lie."""

    def __init__(
        self, number: int, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, context: Context | None
    ) -> None:
        # asyncio puts the task into a set while it is being made.
        self._number = number
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in order of virtual time, ties in order of scheduling. `time()` starts at 0.

    `_ready` and `_timer_cancelled_count` are `BaseEventLoop`'s own (CPython 3.11 to 3.14); timers are kept here, with
    a number each, so that the heap compares numbers and not objects.
    """

    _ready: deque[Any]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, limit_s: float = float("inf")) -> None:
        super().__init__()
        self._now = 0.0
        self._limit_s = limit_s
        self._spins_end = _SPINS_MAX
        """The number of the round by which the clock must have moved."""
        self._frozen: dict[Process, None] = {}
        self._timers: list[tuple[float, int, Any]] = []
        self._timers_set = 0
        self._tasks_made = 0
        self.set_task_factory(self._make_task)
        self.steps = 0
        self.after_step: Callable[[], None] | None = None
        """Called after each round of callbacks: the place for invariants."""

    def time(self) -> float:
        return self._now

    def _make_task(
        self, _loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        self._tasks_made += 1
        return _Task(self._tasks_made, work, self, context)

    def freeze(self, process: Process) -> None:
        """Freeze the process: nothing of it runs from now on."""
        assert not process.frozen, f"{process.name} is frozen already"
        process.frozen = True
        self._frozen[process] = None

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on, beginning with the handles that came due meanwhile."""
        assert process.frozen, f"{process.name} is not frozen"
        process.frozen = False
        del self._frozen[process]
        self._ready.extend(process.held)
        process.held = []

    def thaw_all(self) -> None:
        for process in tuple(self._frozen):
            self.thaw(process)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        # asyncio looks after every call whether it is to stop; nothing is lost by doing so here.
        for _ in range(_ROUNDS):
            self._round()
            if self._stopping:
                return

    def _round(self) -> None:
        ready = self._ready
        if not ready:
            self._jump()
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        take = ready.popleft
        for _ in range(len(ready)):
            handle = take()
            if not handle._cancelled and not (self._frozen and _held(handle)):
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - what a callback raises is the exception handler's
                    self.call_exception_handler({"message": f"{handle!r} failed", "exception": error})
        self.steps += 1
        if self.steps > self._spins_end:
            self._spins_end = self.steps + _SPINS_MAX
            raise Deadlock(f"{_SPINS_MAX} rounds went by at virtual time {self._now:.6f}")
        if self.after_step is not None:
            self.after_step()

    def _jump(self) -> None:
        """Nothing is ready: go to the next timer."""
        if self._timer_cancelled_count:
            self._drop_cancelled_timers()
        if self._timers:
            due = self._timers[0][0]
            if due > self._now:
                self._now, self._spins_end = due, self.steps + _SPINS_MAX
            if due > self._limit_s:
                raise TimeLimit(f"virtual time passed {self._limit_s} s")
        elif not self._stopping:
            raise Deadlock(f"nothing is ready and no timer is set at virtual time {self._now:.6f}")

    def _drop_cancelled_timers(self) -> None:
        if self._timer_cancelled_count * 2 > len(self._timers) > 100:
            self._sweep_cancelled_timers()
        while self._timers and self._timers[0][2]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(self._timers)[2]._scheduled = False

    def _sweep_cancelled_timers(self) -> None:
        kept = []
        for entry in self._timers:
            if entry[2]._cancelled:
                entry[2]._scheduled = False
            else:
                kept.append(entry)
        heapify(kept)
        self._timers = kept
        self._timer_cancelled_count = 0

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("a virtual loop has no selector")

    def _write_to_self(self) -> None:
        return None

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        raise AssertionError("simulated code must not use threads")


def _nothing() -> None:
    """The callback of a cancelled handle. Does nothing."""


def _held(handle: Any) -> bool:
    """Keep what belongs to a frozen process for later."""
    process = handle._context.get(_PROCESS)
    if process is None or not process.frozen:
        return False
    process.held.append(handle)
    return True


class LoopClock:
    """`tandem.core.clock.Clock` over an event loop's time. `skew_s` shifts the wall clock only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_s: float = 0.0) -> None:
        self._loop = loop
        self._skew_s = skew_s

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return 1_800_000_000.0 + self._loop.time() + self._skew_s


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, limit_s: float = 36_000.0) -> T:
    """Run `main(loop)` to its end on virtual time. Raises `Deadlock` and `TimeLimit`; leaves no task behind."""
    loop = VirtualLoop(limit_s)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.after_step = None
        loop.set_exception_handler(lambda _loop, _context: None)
        with suppress(Deadlock, TimeLimit):
            _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _cancel_all(loop: VirtualLoop) -> None:
    loop.thaw_all()
    tasks = asyncio.all_tasks(loop)
    for task in sorted(tasks, key=lambda task: task.get_name()):
        task.cancel()
    if tasks:
        loop.run_until_complete(_gather(tasks))
    loop.run_until_complete(loop.shutdown_asyncgens())


async def _gather(tasks: "set[asyncio.Task[Any]]") -> None:
    waiting: list[Awaitable[Any]] = list(tasks)
    await asyncio.gather(*waiting, return_exceptions=True)
