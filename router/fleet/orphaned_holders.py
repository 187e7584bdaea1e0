"""Tracks holders of blocks that a shared index reports: those to which this router has no link, or whose feed it has
lost.

A request asks the index before it is placed, within a few milliseconds, and only while there is such a holder.
Placement then finds the answer here. No request is ever placed on a holder without a link: it is only a source to
fetch from.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from kv_transfer.index.redis_wire import RedisHolder
from router.placement.view import WorkerView
from tandem.core.clock import Clock
from tandem.core.messages import Hello

_ANSWERS_MAX: Final = 1024
_HOLDERS_MAX: Final = 1024
"""Holders that are remembered for a scope, those told of last."""
_NOTHING: Final[Mapping[str, RedisHolder]] = MappingProxyType({})
_NOT_TOLD: Final[Mapping[str, Hello]] = MappingProxyType({})


class IndexScope(NamedTuple):
    """What a request may be told of by a shared index: the records of its own service, and of these the ones for its
    model. Another service's records are not its own, whatever worker they name."""

    service: str
    """The name under which the service's blocks are recorded; empty for that of the index's own settings."""
    model: str


class SharedIndex(Protocol):
    """`kv_transfer.index.redis_index.RedisIndex`."""

    def holders(self, service: str = "") -> frozenset[str]:
        """Ids of the workers that report a service's blocks to the shared index. The empty name is that of the
        index's own settings."""
        ...

    async def longest(self, names: Sequence[bytes], service: str = "") -> Mapping[str, RedisHolder]:
        """The number of leading names that each holder of a service's blocks has. The call is bounded, and its result
        is empty whenever something is wrong."""
        ...


@dataclass(frozen=True)
class OrphanedHolder:
    """A holder without a link."""

    worker_id: str
    epoch: int
    addresses: tuple[str, ...]

    @classmethod
    def of(cls, hello: Hello) -> "OrphanedHolder":
        return cls(hello.worker_id, hello.epoch, hello.addresses)

    def addresses_by(self, path: str) -> tuple[str, ...]:
        """The addresses from which the holder's blocks can be pulled, in the holder's own order except that transport
        `path` comes first."""
        return tuple(sorted(self.addresses, key=lambda address: address.partition("://")[0] != path))


class OrphanedHolders:
    """Recent answers of the shared index, each for the scope it was asked in. A prompt's last name stands for the
    whole prompt."""

    def __init__(self, index: SharedIndex, clock: Clock, answer_s: float) -> None:
        self._index = index
        self._clock = clock
        self._answer_s = answer_s
        self._answers: OrderedDict[tuple[IndexScope, bytes], tuple[float, Mapping[str, RedisHolder]]] = OrderedDict()
        self._hellos: dict[IndexScope, OrderedDict[str, Hello]] = {}

    def some(self, known: Sequence[str], service: str) -> bool:
        """Whether any holder other than `known` reports a service's blocks."""
        return not self._index.holders(service).issubset(known)

    async def seek(self, names: Sequence[bytes], scope: IndexScope) -> None:
        """Ask about a prompt. Records for another model than the scope's are not believed."""
        told = await self._index.longest(names, scope.service)
        found = {holder: each for holder, each in told.items() if each.hello.model == scope.model}
        self._answers[scope, names[-1]] = self._clock.now(), found
        self._answers.move_to_end((scope, names[-1]))
        if len(self._answers) > _ANSWERS_MAX:
            self._answers.popitem(last=False)
        hellos = self._hellos.setdefault(scope, OrderedDict())
        for holder, each in found.items():
            hellos[holder] = each.hello
            hellos.move_to_end(holder)
        while len(hellos) > _HOLDERS_MAX:
            hellos.popitem(last=False)

    def holding(self, names: Sequence[bytes], scope: IndexScope) -> Mapping[str, RedisHolder]:
        """The index's answer about a prompt while it is fresh, else an empty mapping."""
        if not names or (scope, names[-1]) not in self._answers:
            return _NOTHING
        when, found = self._answers[scope, names[-1]]
        return found if self._clock.now() - when <= self._answer_s else _NOTHING

    def stranger(self, holder: str, scope: IndexScope) -> OrphanedHolder | None:
        """A holder that an answer in this scope named."""
        hello = self._hellos.get(scope, _NOT_TOLD).get(holder)
        return None if hello is None else OrphanedHolder.of(hello)


def view_of(hello: Hello, pairing: int) -> WorkerView:
    """A holder without a link as placement sees it: a worker of role `store`, which only keeps blocks."""
    return replace(WorkerView.of(hello, pairing), role="store")
