"""Carries plans out: the writes that are needed, in order, and none besides."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from control_plane.objects.names import COST_MANAGER, HANDOVER_MANAGER, SPEC_MANAGER, STATUS_MANAGER
from control_plane.observe.reading import OPTIONAL
from control_plane.operator.apply_diff import fingerprint, holds, signature, signed
from control_plane.operator.status_throttle import INTERIM_AFTER_S, interim
from control_plane.reconcile import Deletion, Plan
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.kube.cluster import Cluster, NotFound
from tandem.kube.kinds import Json, Ref, ref_of
from tandem.kube.recorder import EventRecorder

_AWAITED_S: Final = 10.0
_LACKED_S: Final = 1.0
"""Seconds until the next look at a service with objects of a kind that does not exist: the kind is being removed or
redefined, and the mirror will show it soon."""
_SLACK_S: Final = 0.001
"""A clock may stand this much before the time that was waited for."""


@dataclass
class _Memory:
    """The writes to one service's objects: for each object the digest it was applied as and its fingerprint then, and
    the versions that the mirror has yet to show."""

    applied: dict[Ref, tuple[str, str]] = field(default_factory=dict)
    awaited: dict[Ref, int] = field(default_factory=dict)
    gone: dict[Ref, str] = field(default_factory=dict)
    wrote_at: float = 0.0
    waiting_since: float | None = None
    """Time since which statuses that differ only in counts have been waiting; None where none waits."""
    lacked_kind: bool = False
    """Whether an object was left out whose kind was not there, though it is mirrored."""


class Applier:
    """Applies plans to the cluster. `allowed` says whether this process may write now; after it has lost its Lease it
    may not."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        recorder: EventRecorder,
        meter: Meter,
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self._meter = meter
        self._allowed = allowed
        self._memories: dict[tuple[str, str], _Memory] = {}

    def forget(self, key: tuple[str, str]) -> None:
        """The service is gone."""
        self._memories.pop(key, None)

    def caught_up(self, key: tuple[str, str], stored: Callable[[Ref], Json | None]) -> bool:
        """Whether the mirror shows what was written last: on an older view the same would be decided twice."""
        memory = self._memories.get(key)
        if memory is None or not (memory.awaited or memory.gone):
            return True
        memory.awaited = {ref: version for ref, version in memory.awaited.items() if _version(stored(ref)) < version}
        memory.gone = {ref: uid for ref, uid in memory.gone.items() if _stays(stored(ref), uid)}
        if self._clock.now() - memory.wrote_at > _AWAITED_S:
            # Somebody else may have deleted it in between.
            memory.awaited, memory.gone = {}, {}
        return not (memory.awaited or memory.gone)

    def waits_s(self, key: tuple[str, str]) -> float | None:
        """Seconds that deferred writes of a service still have to wait; None when none is deferred."""
        memory = self._memories.get(key)
        if memory is None:
            return None
        if memory.lacked_kind:
            return _LACKED_S
        if memory.waiting_since is None:
            return None
        return max(0.0, memory.waiting_since + INTERIM_AFTER_S - self._clock.now())

    async def carry_out(self, key: tuple[str, str], plan: Plan, stored: Callable[[Ref], Json | None]) -> int:
        """Carry out a plan and return the number of writes it took. A refused write does not prevent the others; the
        first refusal is raised at the end."""
        memory = self._memories.setdefault(key, _Memory())
        refused: list[TandemError] = []
        writes = 0
        memory.lacked_kind = False
        for obj in plan.handovers:
            writes += await self._guarded(refused, self._write(memory, obj, HANDOVER_MANAGER))
        for obj in plan.costs:
            writes += await self._guarded(refused, self._write(memory, obj, COST_MANAGER))
        applied: set[Ref] = set()
        for obj in plan.apply:
            if await self._guarded(refused, self._apply(memory, obj, stored(ref_of(obj)))):
                applied.add(ref_of(obj))
        writes += len(applied)
        for deletion in plan.delete:
            if _stays(stored(deletion.ref), deletion.uid):
                writes += await self._guarded(refused, self._delete(memory, deletion))
        due = self._put_off(memory, plan.statuses, stored)
        for obj in due:
            writes += await self._guarded(refused, self._status(memory, obj))
        written = {ref_of(obj) for obj in due}
        for note in plan.notes:
            # Of a status that waits it comes again.
            if ref_of(note.about) in (applied if note.of_apply else written):
                await self._recorder.record(note.about, note.kind, note.reason, note.sentence)
        if writes:
            memory.wrote_at = self._clock.now()
            self._meter.add("tandem_operator_writes_total", float(writes))
        if refused:
            raise refused[0]
        return writes

    def _put_off(
        self, memory: _Memory, statuses: tuple[Json, ...], stored: Callable[[Ref], Json | None]
    ) -> tuple[Json, ...]:
        """The statuses to write now. The others change counts alone, and more changes may come soon."""
        now = self._clock.now()
        if memory.waiting_since is not None and now - memory.waiting_since > INTERIM_AFTER_S - _SLACK_S:
            memory.waiting_since = None
            return statuses
        due = tuple(obj for obj in statuses if not interim(stored(ref_of(obj)), obj))
        if len(due) == len(statuses):
            memory.waiting_since = None
        elif memory.waiting_since is None:
            memory.waiting_since = now
        return due

    async def _guarded(self, refused: list[TandemError], write: Coroutine[Any, Any, int]) -> int:
        if not self._allowed():
            write.close()
            raise TandemError("not_allowed", "this operator does not lead any more")
        try:
            return await write
        except TandemError as error:
            refused.append(error)
            return 0

    async def _apply(self, memory: _Memory, obj: Json, there: Json | None) -> int:
        ref = ref_of(obj)
        whole, digest = signed(obj)
        if there is not None and signature(there) == digest:
            print_ = fingerprint(there)
            if memory.applied.get(ref) == (digest, print_):
                return 0
            if holds(there, obj):
                memory.applied[ref] = (digest, print_)
                return 0
        try:
            answer = await self._cluster.apply(whole, SPEC_MANAGER)
        except NotFound:
            if ref.kind not in OPTIONAL:
                raise
            memory.lacked_kind = True
            return 0
        memory.applied[ref] = (digest, fingerprint(answer))
        return self._await(memory, ref, answer, there)

    async def _write(self, memory: _Memory, obj: Json, manager: str) -> int:
        answer = await self._cluster.apply(obj, manager)
        return self._await(memory, ref_of(obj), answer, None)

    async def _status(self, memory: _Memory, obj: Json) -> int:
        answer = await self._cluster.apply_status(obj, STATUS_MANAGER)
        return self._await(memory, ref_of(obj), answer, None)

    async def _delete(self, memory: _Memory, deletion: Deletion) -> int:
        try:
            await self._cluster.delete(deletion.ref, uid=deletion.uid)
        except NotFound:
            return 0
        memory.gone[deletion.ref] = deletion.uid
        memory.applied.pop(deletion.ref, None)
        return 1

    def _await(self, memory: _Memory, ref: Ref, answer: Json, there: Json | None) -> int:
        version = _version(answer)
        if version != _version(there):
            memory.awaited[ref] = version
        return 1


def _version(obj: Json | None) -> int:
    """Versions grow with every write, as the API promises since 1.35 and has always been."""
    version = "" if obj is None else str(obj["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdigit() else 0


def _stays(obj: Json | None, uid: str) -> bool:
    """Whether `obj` is the object with this uid and is not being deleted."""
    return obj is not None and obj["metadata"].get("uid") == uid and "deletionTimestamp" not in obj["metadata"]
