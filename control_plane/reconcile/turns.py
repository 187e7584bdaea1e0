"""Which services may take over new defaults of the installation now, such as another image. Pure.

A changed default makes a new revision of every service that goes by it, and a fleet that rolls over all at once finds
no room and has nothing left that is known to work. So only some roll over at once, in the order of their age. Nothing
is remembered: who rolls over stands in the services' own statuses. One that has failed, or that rests on purpose, is
not waited for.
"""

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from control_plane.objects.revisions import RevisionRecord
from control_plane.rollout import LATE
from tandem.spec.revision import revision_of
from tandem.spec.service import Spec
from tandem.spec.status import ModelServiceStatus

_LOOK_S: Final = 5.0
_LOOK_MAX_S: Final = 300.0
_COMPARED_S: Final = 2400.0
"""Seconds after which a comparison has ended that is ever made: those of its Job, and some to start."""

State = Literal["", "blocked", "waits", "moves"]
"""Of a service and new defaults: it has nothing to do with them, cannot begin, has yet to begin, or rolls over to
them. Nobody waits for one that cannot begin; it has its turn like any other once it can."""
ASKING: Final[tuple[State, ...]] = ("waits", "blocked")
"""States in which a service may not begin before its turn."""


@dataclass(frozen=True)
class Standing:
    """One service in the line; the oldest is the first. `since` is when it was made, as the API server writes it."""

    since: str
    service: str
    state: State
    until_s: float = math.inf
    """Wall-clock seconds after which one that moves is not waited for."""

    @property
    def place(self) -> tuple[str, str]:
        return self.since, self.service


class Line:
    """The standings of all services, kept up by one at a time: a look does not read them all."""

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._waiting: list[tuple[str, str]] = []
        """Places of those that wait, in order."""
        self._moving: dict[str, float] = {}
        """Until when those that move are waited for."""

    def put(self, standing: Standing) -> None:
        """The service stands like this from now on."""
        self.remove(standing.service)
        self._standings[standing.service] = standing
        if standing.state == "waits":
            insort(self._waiting, standing.place)
        elif standing.state == "moves":
            self._moving[standing.service] = standing.until_s

    def remove(self, service: str) -> None:
        """There is no such service any more."""
        old = self._standings.pop(service, None)
        self._moving.pop(service, None)
        if old is not None and old.state == "waits":
            del self._waiting[bisect_left(self._waiting, old.place)]

    def turns_until(self, service: str, at_once: int, now: float) -> int:
        """How many services have to be done before this one may begin; 0 when it may now. `at_once` is the bound, 0
        for none; `now` is wall-clock seconds."""
        own = self._standings.get(service)
        if at_once == 0 or own is None or own.state not in ASKING:
            return 0
        free = at_once - sum(now < until_s for until_s in self._moving.values())
        return max(0, bisect_left(self._waiting, own.place) - max(0, free) + 1)


def state_of(
    status: ModelServiceStatus, own: Spec | None, revision: str, records: dict[str, RevisionRecord]
) -> State:
    """How the service stands to new defaults. `own` is the specification without defaults, `revision` that of the
    specification with them; `records` are of the service's revisions."""
    current, update = records.get(status.current_revision), status.update_revision
    failed = _failed(status)
    if own is None or current is None or revision in (current.name, failed):
        return ""
    reconciling = any(each.type == "Reconciling" and each.status == "True" for each in status.conditions)
    plain = _by_defaults(own, current)
    if update == revision:
        comes = plain or any(_by_defaults(own, each) for name, each in records.items() if name != revision)
        return "moves" if comes and reconciling else ""
    tried = records.get(goes_on_with(status))
    if not plain and (tried is None or not _by_defaults(own, tried)):
        return ""
    if _blocked(status):
        return "blocked"
    # One that is on its way goes on to newer defaults, unless its user's change is what is on its way.
    return "moves" if plain and reconciling and update not in ("", failed) else "waits"


def goes_on_with(status: ModelServiceStatus) -> str:
    """The revision that is the target while new defaults wait for their turn: the one that takes over already."""
    update = status.update_revision
    return status.current_revision if update in ("", _failed(status)) else update


def awaited_until_s(status: ModelServiceStatus, own: Spec) -> float:
    """Until when others wait for the service while it rolls over. Its progress deadline ends most rollouts, but not
    one whose pods are all there: a comparison that nobody can make, as where a quota refuses its Job or a queue
    holds it, has no end."""
    since = status.rollout.since if status.rollout is not None else 0.0
    return since + max(_COMPARED_S, float(own.rollout.progress_deadline_seconds))


def look_again_s(turns: int, at_once: int) -> float:
    """Seconds until the next look of a service that waits: nothing of its own tells when its turn comes, and those at
    the end of a long line need not ask often."""
    return min(_LOOK_MAX_S, _LOOK_S * max(1, turns // max(1, at_once)))


def _failed(status: ModelServiceStatus) -> str:
    return status.rollout.failed_revision if status.rollout is not None else ""


def _blocked(status: ModelServiceStatus) -> bool:
    """Whether the specification cannot be carried out; a service that is only late with its pods can begin."""
    stalled = any(
        each.type == "Stalled" and each.status == "True" and each.reason != LATE for each in status.conditions
    )
    return stalled and not status.update_revision


def _by_defaults(own: Spec, current: RevisionRecord) -> bool:
    """Whether the current revision is what the specification asks for, but for what an installation fills in."""
    pools = {each.get("name"): each for each in current.spec.get("pools", ())}
    filled = tuple(
        pool if pool.image is not None else msgspec.structs.replace(pool, image=pools.get(pool.name, {}).get("image"))
        for pool in own.pools
    )
    redis = own.redis if own.redis is not None else current.spec.get("redis")
    filled_in = msgspec.structs.replace(own, pools=filled, redis=redis)
    return any(revision_of(filled_in, current.defaults, tenant=tenant) == current.name for tenant in (False, True))
