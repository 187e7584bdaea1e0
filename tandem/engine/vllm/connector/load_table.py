"""Worker side, pure: which blocks have landed, which are copied, and which requests are to be reported.

The engine dies of a request that is reported twice, or that it does not know, and it waits for ever for one that is
never reported. So every load given to `begin` is in exactly one `take`, whatever happens in between.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tandem.engine.vllm.conduit_messages import (
    BlocksReceived,
    Closed,
    DrawFirst,
    First,
    NoMore,
    OutputSlots,
    Spoiled,
    ToRank,
    Welcome,
    Withheld,
)
from tandem.engine.vllm.connector.orders import LoadOrder, PageTarget

_CLOSED_MAX: Final = 4096


@dataclass
class _Work:
    """What the stage has reported about a work."""

    landed: dict[int, None] = field(default_factory=dict)
    withheld: dict[int, None] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    no_more: bool = False
    drawn_here: bool = False


@dataclass
class _Load:
    order: LoadOrder
    open: dict[int, PageTarget]
    flying: dict[int, PageTarget] = field(default_factory=dict)
    """Being copied."""
    spoiled: dict[int, None] = field(default_factory=dict)
    """The blocks among `flying` that are spoiled: their copies must not be used."""
    copied: dict[int, PageTarget] = field(default_factory=dict)
    failed: dict[int, PageTarget] = field(default_factory=dict)
    aborted: bool = False


class LoadCopy(NamedTuple):
    """One block of a request's load."""

    request_id: str
    target: PageTarget


@dataclass(frozen=True)
class EndedLoad:
    """A load that is reported now. `failed` are the engine's blocks that were not filled; `first` is the position
    that was provided, if one was; `aborted` when the request is over."""

    request_id: str
    work: int
    sequence: int
    copied: int
    failed: tuple[int, ...]
    first: int | None
    aborted: bool


class LoadTable:
    """Owned by one worker."""

    def __init__(self) -> None:
        self._works: dict[int, _Work] = {}
        self._closed: OrderedDict[int, None] = OrderedDict()
        """Works that are over; later messages about them are not recorded."""
        self._loads: dict[str, _Load] = {}
        self._lost = False

    @property
    def waiting(self) -> int:
        """Loads that have not been reported."""
        return len(self._loads)

    def begin(self, order: LoadOrder) -> None:
        """A request waits for these blocks."""
        assert order.request_id not in self._loads, f"request {order.request_id} loads twice"
        load = _Load(order, {target.index: target for target in order.targets if target.slot >= 0})
        load.failed = {target.index: target for target in order.targets if target.slot < 0}
        self._loads[order.request_id] = load
        if self._lost or order.work in self._closed:
            self._works.setdefault(order.work, _Work()).no_more = True
            self._works[order.work].drawn_here = True

    def held(self, work: int, index: int) -> bool:
        """Whether the block's slot must not be written: it is complete, or not this engine's to fill."""
        if work in self._closed:
            return True
        known = self._works.get(work)
        return known is not None and (index in known.landed or index in known.withheld)

    def saved(self, work: int, index: int) -> None:
        """Record that this worker has written its part of the block."""
        if work not in self._closed:
            self._works.setdefault(work, _Work()).landed[index] = None

    def abort(self, request_id: str) -> None:
        """The request is over. If its load was not reported it is now; otherwise nothing is."""
        load = self._loads.get(request_id)
        if load is not None:
            load.aborted = True

    def hear(self, message: ToRank) -> None:
        """Take in a message from the stage."""
        if isinstance(message, Welcome | OutputSlots):
            return
        if message.work in self._closed:
            return
        work = self._works.setdefault(message.work, _Work())
        match message:
            case BlocksReceived():
                work.landed.update(dict.fromkeys(message.indices))
            case Spoiled():
                self._spoil(message)
            case Withheld():
                work.withheld.update(dict.fromkeys(message.indices))
            case First():
                work.firsts.setdefault(message.sequence, message.token)
            case NoMore():
                work.no_more = True
            case DrawFirst():
                work.drawn_here = True
            case Closed():
                self._close(message.work)

    def lose(self) -> None:
        """The stage is gone: what has not landed never will, and no position comes any more."""
        self._lost = True
        for load in self._loads.values():
            self._works.setdefault(load.order.work, _Work())
        for work in self._works.values():
            work.no_more = work.drawn_here = True

    def next_copies(self, limit: int | None = None) -> list[LoadCopy]:
        """Up to `limit` blocks to copy from their slots now. Call `copied` when their copies are over."""
        taken = list[LoadCopy]()
        for load in self._loads.values():
            work = self._works.get(load.order.work)
            if load.aborted or work is None:
                continue
            room = None if limit is None else limit - len(taken)
            for index in [index for index in load.open if index in work.landed][:room]:
                target = load.flying[index] = load.open.pop(index)
                taken.append(LoadCopy(load.order.request_id, target))
        return taken

    def copied(self, copies: Iterable[LoadCopy]) -> None:
        """Record that these copies are over. Pass the messages of the stage to `hear` first: a slot whose request was
        closed before its copy was over may already have held other bytes."""
        for request_id, target in copies:
            load = self._loads[request_id]
            del load.flying[target.index]
            good = target.index not in load.spoiled and load.order.work not in self._closed
            (load.copied if good else load.failed)[target.index] = target

    def take(self) -> list[EndedLoad]:
        """The loads that have ended since the last call. Each load is returned once."""
        ended = [load for load in self._loads.values() if self._is_over(load)]
        reports = [self._ended(load) for load in ended]
        for load in ended:
            del self._loads[load.order.request_id]
            self._forget(load.order.work)
        return reports

    def _forget(self, work_id: int) -> None:
        """A work that is over is kept only as long as a load of it is open."""
        if work_id in self._closed and all(load.order.work != work_id for load in self._loads.values()):
            self._works.pop(work_id, None)

    def _is_over(self, load: _Load) -> bool:
        if load.flying:
            return False
        if load.aborted:
            return True
        work = self._works.get(load.order.work)
        if work is None:
            return not load.open and not load.order.first
        to_come = any(index in work.landed for index in load.open)
        if to_come or (load.open and not work.no_more):
            return False
        return not load.order.first or work.drawn_here or load.order.sequence in work.firsts

    def _ended(self, load: _Load) -> EndedLoad:
        order, work = load.order, self._works.get(load.order.work) or _Work()
        lost = (*load.failed.values(), *load.open.values())
        failed = {target.block: None for target in (order.targets if lost and order.whole else lost)}
        return EndedLoad(
            order.request_id,
            order.work,
            order.sequence,
            len(load.copied),
            () if load.aborted else tuple(failed),
            None if load.aborted else work.firsts.get(order.sequence),
            load.aborted,
        )

    def _spoil(self, message: Spoiled) -> None:
        work = self._works[message.work]
        for index in message.indices:
            work.landed.pop(index, None)
        for load in self._loads.values():
            if load.order.work == message.work:
                for index in message.indices:
                    if index in load.flying:
                        load.spoiled[index] = None
                    target = load.copied.pop(index, None) or load.open.pop(index, None)
                    if target is not None:
                        load.failed[index] = target

    def _close(self, work_id: int) -> None:
        """Loads that are still open end without what they await."""
        work = self._works[work_id]
        work.no_more = work.drawn_here = True
        # What lies in its slots belongs to others from now on.
        work.landed.clear()
        self._closed[work_id] = None
        self._forget(work_id)
        while len(self._closed) > _CLOSED_MAX:
            self._closed.popitem(last=False)
