"""Status writes of changes that only count: put off and put together, and never lost."""

import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st

from control_plane.operator.applier import Applier
from control_plane.operator.status_throttle import INTERIM_AFTER_S, interim
from control_plane.reconcile import Plan
from control_plane.reconcile.plan import PlannedEvent
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.metrics import NullMeter
from tandem.kube.kinds import MODEL_SERVICE, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.recorder import EventRecorder

KEY = ("default", "chat")
REF = Ref(MODEL_SERVICE, *KEY)


def status(ready: bool = False, left: int = 0, replicas: int = 0, weight: int = 0, failed: str = "") -> Json:
    word = "True" if ready else "False"
    return {
        "observedGeneration": 1,
        "pools": [{"name": "decode", "replicas": replicas}],
        "revisions": [{"name": "r1", "weight": weight, "routable": replicas > 0}],
        "rollout": {"failedRevision": failed, "aim": "r1", "left": left, "since": float(left)},
        "conditions": [
            {
                "type": "Ready",
                "status": word,
                "reason": "Complete" if ready else "Progressing",
                "message": f"{left} pods have yet to change.",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 1,
            }
        ],
    }


def service(told: Json) -> Json:
    metadata = {"name": KEY[1], "namespace": KEY[0]}
    return {"apiVersion": MODEL_SERVICE.api_version, "kind": MODEL_SERVICE.kind, "metadata": metadata, "status": told}


def test_counts_sentences_and_progress_can_wait_and_nothing_else_can() -> None:
    before = service(status())
    assert interim(before, service(status(left=3, replicas=2)))
    for acted_on in ({"ready": True}, {"weight": 10}, {"failed": "r1"}):
        assert not interim(before, service(status(**acted_on)))


def test_a_first_status_waits_only_where_it_says_no_more_than_that_work_goes_on() -> None:
    assert interim(None, service(status()))
    assert interim({"metadata": {}}, service(status(left=3)))
    assert not interim(None, service(status(ready=True)))
    assert not interim(None, service(status(weight=100))), "routers go by weights"


STATUSES = st.builds(status, st.booleans(), st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 100]))
STEPS = st.lists(st.tuples(st.floats(0.0, 2.5), STATUSES), min_size=1, max_size=25)


@given(STEPS)
def test_the_last_status_is_always_written_and_counts_at_most_once_a_second(steps: list[tuple[float, Json]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = LoopClock(loop)
        cluster = MemoryCluster(clock)
        bare = {key: value for key, value in service({}).items() if key != "status"}
        await cluster.apply({**bare, "spec": {"pools": [{"name": "d", "role": "decode"}]}}, "user")
        applier = Applier(cluster, clock, EventRecorder(cluster, clock, "t", "t"), NullMeter())
        counted: list[float] = []

        def stored(ref: Ref) -> Json | None:
            (found,) = cluster.objects(MODEL_SERVICE)
            return found if ref == REF else None

        async def look(wanted: Json) -> None:
            there = stored(REF)
            assert there is not None
            waits = interim(there, service(wanted))
            differs = there.get("status") != wanted
            plan = Plan(statuses=(service(wanted),) if differs else ())
            writes = await applier.carry_out(KEY, plan, stored)
            if writes and waits:
                counted.append(clock.now())
            if differs and not waits:
                assert writes == 1, "what somebody acts on does not wait"

        async def wait_until(end: float, wanted: Json) -> None:
            """As the queue does: look again when the applier says so."""
            while (due := applier.waits_s(KEY)) is not None and clock.now() + due <= end:
                await asyncio.sleep(due)
                await look(wanted)
            await asyncio.sleep(max(0.0, end - clock.now()))

        for pause, wanted in steps:
            await look(wanted)
            await wait_until(clock.now() + pause, wanted)
        await wait_until(clock.now() + INTERIM_AFTER_S, steps[-1][1])
        there = stored(REF)
        assert there is not None
        assert there["status"] == steps[-1][1]
        assert applier.waits_s(KEY) is None
        apart = [later - earlier for earlier, later in itertools.pairwise(counted)]
        assert all(each >= INTERIM_AFTER_S - 0.01 for each in apart)

    run(main)


def test_an_event_comes_with_the_status_that_it_is_about() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = LoopClock(loop)
        cluster = MemoryCluster(clock)
        bare = {key: value for key, value in service({}).items() if key != "status"}
        obj = await cluster.apply({**bare, "spec": {"pools": [{"name": "d", "role": "decode"}]}}, "user")
        said: list[str] = []

        class Recorder(EventRecorder):
            async def record(self, about: Json, kind: str, reason: str, note: str, action: str = "") -> bool:
                said.append(note)
                return True

        applier = Applier(cluster, clock, Recorder(cluster, clock, "t", "t"), NullMeter())

        async def look(wanted: Json, sentence: str) -> None:
            note = PlannedEvent(obj, "Normal", "Progressing", sentence)
            (there,) = cluster.objects(MODEL_SERVICE)
            await applier.carry_out(KEY, Plan(statuses=(service(wanted),), notes=(note,)), lambda ref: there)

        await look(status(left=3, weight=100), "first")
        await look(status(left=2, weight=100), "second")
        assert said == ["first"]
        await asyncio.sleep(INTERIM_AFTER_S)
        await look(status(left=1, weight=100), "third")
        assert said == ["first", "third"]

    run(main)
