"""An asyncio event loop on virtual time: when nothing is ready, the clock jumps to the next timer.

Nothing else of asyncio is replaced, so tasks, timeouts, queues and task groups behave as they do in
production. There are no sockets and no threads: a loop with nothing ready and no timer would wait for ever in
reality, and is reported as a deadlock here.

A simulated process is a context: what is scheduled from inside it belongs to it, and while it is frozen none of
that runs. Afterwards everything that came due meanwhile runs at once, late, as after a SIGSTOP.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

_SPINS_MAX: Final = 100_000
"""Rounds without the clock moving after which a loop is taken to spin; honest ones need some hundreds."""

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
    """What came due while it was frozen, in order."""

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


class _Timer(asyncio.TimerHandle):
    """The same for a moment in virtual time."""

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
        self._spins = 0
        self._frozen: dict[Process, None] = {}
        self._timers: list[tuple[float, int, Any]] = []
        self._timers_set = 0
        self.steps = 0
        self.after_step: Callable[[], None] | None = None
        """Called after each round of callbacks: the place for invariants."""

    def time(self) -> float:
        return self._now

    def freeze(self, process: Process) -> None:
        """From now on nothing of this process runs."""
        assert not process.frozen, f"{process.name} is frozen already"
        process.frozen = True
        self._frozen[process] = None

    def thaw(self, process: Process) -> None:
        """It goes on, beginning with what it missed."""
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
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if self._timer_cancelled_count:
            self._drop_cancelled_timers()
            timers = self._timers
        if not ready:
            self._jump()
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and not (self._frozen and _held(handle)):
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - what a callback raises is the exception handler's
                    self.call_exception_handler({"message": f"{handle!r} failed", "exception": error})
        self.steps += 1
        self._spins += 1
        if self._spins > _SPINS_MAX:
            self._spins = 0
            raise Deadlock(f"{_SPINS_MAX} rounds went by at virtual time {self._now:.6f}")
        if self.after_step is not None:
            self.after_step()

    def _jump(self) -> None:
        """Nothing is ready: go to the next timer."""
        if self._timers:
            self._advance(max(self._now, self._timers[0][0]))
            if self._now > self._limit_s:
                raise TimeLimit(f"virtual time passed {self._limit_s} s")
        elif not self._stopping:
            raise Deadlock(f"nothing is ready and no timer is set at virtual time {self._now:.6f}")

    def _advance(self, now: float) -> None:
        if now > self._now:
            self._now, self._spins = now, 0

    def _drop_cancelled_timers(self) -> None:
        if self._timer_cancelled_count * 2 > len(self._timers) > 100:
            self._sweep_cancelled_timers()
        while self._timers and self._timers[0][2]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._timers)[2]._scheduled = False

    def _sweep_cancelled_timers(self) -> None:
        kept = []
        for entry in self._timers:
            if entry[2]._cancelled:
                entry[2]._scheduled = False
            else:
                kept.append(entry)
        heapq.heapify(kept)
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


def run(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]],
    *,
    limit_s: float = 36_000.0,
    after_step: Callable[[], None] | None = None,
) -> T:
    """Run `main(loop)` to its end on virtual time. Raises `Deadlock` and `TimeLimit`; leaves no task behind."""
    loop = VirtualLoop(limit_s)
    loop.after_step = after_step
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
