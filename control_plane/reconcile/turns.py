"""Which services may take over new defaults of the installation now, such as another image. Pure.

A changed default makes a new revision of every service that goes by it, and a fleet that rolls over all at once finds
no room and has nothing left that is known to work. So only some roll over at once, in the order of their age. Nothing
is remembered: who rolls over stands in the services' own statuses. One that has failed, or that rests on purpose, is
not waited for.
"""

import math
from collections.abc import Iterable
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


@dataclass(frozen=True, order=True)
class Standing:
    """One service in the line; the oldest is the first. `since` is when it was made, as the API server writes it."""

    since: str
    service: str
    state: State
    until_s: float = math.inf
    """Wall-clock seconds after which one that moves is not waited for."""


def state_of(
    status: ModelServiceStatus, own: Spec | None, revision: str, records: dict[str, RevisionRecord]
) -> State:
    """How the service stands to new defaults. `own` is the specification without defaults, `revision` that of the
    specification with them; `records` are of the service's revisions."""
    current = records.get(status.current_revision)
    if own is None or current is None or current.name == revision:
        return ""
    failed = status.rollout.failed_revision if status.rollout is not None else ""
    if failed == revision or not _by_defaults(own, current):
        return ""
    if _blocked(status):
        return "blocked"
    # One that is on its way goes on to newer defaults: waiting for them, it would go back first.
    if status.update_revision in ("", failed):
        return "waits"
    reconciling = any(each.type == "Reconciling" and each.status == "True" for each in status.conditions)
    return "moves" if reconciling else ""


def awaited_until_s(status: ModelServiceStatus, own: Spec) -> float:
    """Until when others wait for the service while it rolls over. Its progress deadline ends most rollouts, but not
    one whose pods are all there: a comparison that nobody can make, as where a quota refuses its Job or a queue
    holds it, has no end."""
    since = status.rollout.since if status.rollout is not None else 0.0
    return since + max(_COMPARED_S, float(own.rollout.progress_deadline_seconds))


def turns_until(service: str, line: Iterable[Standing], at_once: int, now: float) -> int:
    """How many services have to be done before this one may begin; 0 when it may now. `at_once` is the bound, 0 for
    none; `now` is wall-clock seconds."""
    standings = sorted(line)
    asks = any(each.service == service and each.state in ASKING for each in standings)
    if at_once == 0 or not asks:
        return 0
    waiting = [each.service for each in standings if each.state == "waits" or each.service == service]
    free = at_once - sum(each.state == "moves" and now < each.until_s for each in standings)
    return max(0, waiting.index(service) - max(0, free) + 1)


def look_again_s(turns: int, at_once: int) -> float:
    """Seconds until the next look of a service that waits: nothing of its own tells when its turn comes, and those at
    the end of a long line need not ask often."""
    return min(_LOOK_MAX_S, _LOOK_S * max(1, turns // max(1, at_once)))


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
    return revision_of(msgspec.structs.replace(own, pools=filled, redis=redis), current.defaults) == current.name
