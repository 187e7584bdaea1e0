"""Keeps all pairs of prefill and decode workers of a router: which pairs there are, and whose canary is due. Pure.

A worker that joins is paired with a bounded number of partners at once, so that the first request finds proved pairs.
Every other pair is made when placement has looked at it. The number of canaries therefore grows with the fleet, not
with its square.
"""

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from router.fleet.breaker import Breaker, Outcome, State
from router.placement.pairs import Pairs, PairView
from router.settings import PairSettings

Key = tuple[str, str]
"""(id of the worker that computes a prompt, id of the one that answers)."""


@dataclass(frozen=True)
class Partner:
    """One worker. Partners are found among workers of the other kind with an equal `group`; `preference` are the
    transports a worker that hands prompts over offers, best first. With `either` it is of both kinds."""

    worker_id: str
    prefill: bool
    group: Hashable
    preference: tuple[str, ...] = ()
    either: bool = False

    @property
    def hands_over(self) -> bool:
        """Whether others may pull from it."""
        return self.prefill or self.either

    @property
    def pulls(self) -> bool:
        """Whether it may pull from others."""
        return self.either or not self.prefill


@dataclass
class _Seat:
    partner: Partner
    pairs: dict[Key, None] = field(default_factory=dict)


class PairRegistry:
    """Owns the breakers of all live pairs. `views` is what placement reads."""

    def __init__(self, settings: PairSettings) -> None:
        self._settings = settings
        self._seats: dict[str, _Seat] = {}
        self._breakers: dict[Key, Breaker] = {}
        self._views: dict[Key, PairView] = {}
        self._due: list[tuple[float, Key]] = []
        self.under_way = 0
        """Canaries begun and not ended."""

    @property
    def views(self) -> Pairs:
        return MappingProxyType(self._views)

    @property
    def breakers(self) -> Mapping[Key, Breaker]:
        return MappingProxyType(self._breakers)

    # -- workers --

    def add(self, partner: Partner, now: float) -> None:
        """A worker takes work from now on."""
        self.remove(partner.worker_id)
        self._seats[partner.worker_id] = _Seat(partner)
        others = sorted(self._seats.values(), key=lambda seat: (len(seat.pairs), seat.partner.worker_id))
        both = [ways for seat in others for ways in ((partner, seat.partner), (seat.partner, partner))]
        for prefill, decode in [ways for ways in both if _fit(*ways)][: self._settings.partners_max]:
            self._make(prefill, decode, now)

    def remove(self, worker_id: str) -> None:
        """A worker is gone, and all its pairs. A canary under way is not waited for."""
        seat = self._seats.pop(worker_id, None)
        for key in seat.pairs if seat is not None else ():
            self.under_way -= self._breakers.pop(key).probing
            del self._views[key]
            other = self._seats[key[0] if key[1] == worker_id else key[1]]
            del other.pairs[key]
        self._tidy()

    def want(self, keys: Iterable[Key], now: float) -> bool:
        """Make the pairs that placement has looked at in vain. Returns whether one of them is new."""
        made = False
        for prefill, decode in keys:
            one, other = self._seats.get(prefill), self._seats.get(decode)
            if (prefill, decode) in self._breakers or one is None or other is None:
                continue
            if _fit(one.partner, other.partner):
                self._make(one.partner, other.partner, now)
                made = True
        return made

    def _make(self, prefill: Partner, decode: Partner, now: float) -> None:
        key = prefill.worker_id, decode.worker_id
        breaker = self._breakers[key] = Breaker(self._settings, prefill.preference, now)
        self._views[key] = breaker.view
        for worker_id in key:
            self._seats[worker_id].pairs[key] = None
        self._schedule(key, breaker, None)

    # -- canaries --

    @property
    def next_due(self) -> float | None:
        """When `begin_due` next has a canary to begin, if there is room; None while none is due before something
        changes."""
        while self._due:
            at, key = self._due[0]
            breaker = self._breakers.get(key)
            if breaker is not None and breaker.due_at == at:
                return at
            heapq.heappop(self._due)
        return None

    def begin_due(self, now: float) -> tuple[Key, ...]:
        """Begin the canaries that are due, as many as there is room for."""
        begun: list[Key] = []
        while self.under_way < self._settings.canaries_max and (at := self.next_due) is not None and at <= now:
            _, key = heapq.heappop(self._due)
            self._breakers[key].begin()
            self.under_way += 1
            begun.append(key)
        return tuple(begun)

    def probed(self, key: Key, outcome: Outcome, now: float) -> None:
        """A canary that was begun has ended."""
        breaker = self._breakers.get(key)
        if breaker is not None and breaker.probing:
            self.under_way -= 1
            breaker.probed(outcome, now)
            self._schedule(key, breaker, None)

    def transferred(self, key: Key, outcome: Outcome, now: float) -> None:
        """A transfer of a request has ended."""
        breaker = self._breakers.get(key)
        if breaker is not None:
            before = breaker.due_at
            breaker.transferred(outcome, now)
            self._schedule(key, breaker, before)

    def _schedule(self, key: Key, breaker: Breaker, before: float | None) -> None:
        """Remember when its canary is due, where that has changed."""
        at = breaker.due_at
        if at is not None and at != before:
            heapq.heappush(self._due, (at, key))
        self._tidy()

    def _tidy(self) -> None:
        """Entries of pairs that are gone, or due at another time, are left where they are until they are too many."""
        if len(self._due) > 2 * len(self._breakers) + 16:
            self._due = [(each.due_at, key) for key, each in self._breakers.items() if each.due_at is not None]
            heapq.heapify(self._due)

    # -- figures --

    def counts(self) -> dict[str, int]:
        """The number of pairs in each state."""
        counts = {state.value: 0 for state in State}
        for breaker in self._breakers.values():
            counts[breaker.state.value] += 1
        return counts

    def of(self, worker_id: str) -> tuple[Key, ...]:
        """The pairs of a worker."""
        seat = self._seats.get(worker_id)
        return tuple(seat.pairs) if seat is not None else ()

    def unproven(self) -> str | None:
        """Why no prompt could be handed off although there are workers for it, as long as no canary has given a
        result. None when a pair is usable, when every canary has ended at least once, or without pairs. Pairs of
        workers that can do both are not waited for: until these are proved, each worker computes its prompts
        itself."""
        breakers = [each for key, each in self._breakers.items() if not self._seats[key[0]].partner.either]
        if any(breaker.view.usable for breaker in breakers) or all(breaker.tried for breaker in breakers):
            return None
        return f"none of {len(breakers)} pairs of prefill and decode workers has been proved yet"


def _fit(prefill: Partner, decode: Partner) -> bool:
    """Whether the one may compute prompts that the other answers."""
    apart = prefill.worker_id != decode.worker_id and prefill.group == decode.group
    return apart and prefill.hands_over and decode.pulls
