"""Any sequence of edits, scalings, deaths and crashes: the operator brings the cluster to what is asked for, leaves
nothing behind, and does not take what serves before something else can."""

from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from control_plane.objects.names import POOL, REVISION, labels_of
from tandem.apps.simulation.loop import run
from tandem.kube.kinds import CONFIG_MAP, DEPLOYMENT, ENGINE_POOL, JOB, POD, SERVICE, Json
from tests.worlds.operator_world import NEVER_READY, REFUSED, WRONG, World

Step = tuple[str, Any]
_STARTS = 60.0

GOOD = ["one", "two", "three"]
EDITS = st.one_of(
    st.tuples(st.just("image"), st.sampled_from([*GOOD, *GOOD, NEVER_READY, WRONG, REFUSED])),
    st.tuples(st.just("replicas"), st.tuples(st.integers(0, 1), st.integers(1, 4))),
    st.tuples(st.just("weight"), st.sampled_from([0, 30, 100])),
    st.tuples(st.just("paused"), st.booleans()),
    st.tuples(st.just("gate"), st.booleans()),
    st.tuples(st.just("surge"), st.sampled_from([(1, 0), (0, 1), ("50%", 1)])),
    st.tuples(st.just("scaled"), st.tuples(st.integers(0, 1), st.integers(1, 4))),
    st.tuples(st.just("third"), st.booleans()),
    st.tuples(st.just("invalid"), st.none()),
)
TIME = st.tuples(st.just("time"), st.sampled_from([2.0, 15.0, 60.0]))
CRASH = st.one_of(
    st.tuples(st.just("crash"), st.integers(0, 30)),
    st.tuples(st.just("disconnect"), st.none()),
    st.tuples(st.just("compact"), st.none()),
)
DEATH = st.tuples(st.just("kill"), st.integers(0, 9))
CALM = st.lists(st.one_of(EDITS, TIME, CRASH), max_size=12)
WILD = st.lists(st.one_of(EDITS, TIME, CRASH, DEATH), max_size=14)


async def play(world: World, steps: list[Step]) -> None:
    for step in steps:
        await _one(world, *step)
        await world.tick()


async def _one(world: World, name: str, value: Any) -> None:
    if name == "time":
        await world.run(value)
    elif name == "crash":
        world.cluster.writes_left = value
    elif name == "disconnect":
        world.cluster.disconnect()
    elif name == "compact":
        world.cluster.compact()
        world.cluster.disconnect()
    elif name == "kill":
        await world.kill(value)
    elif name == "scaled":
        pool, replicas = value
        await world.edit(lambda spec: spec["pools"][pool].pop("replicas", None))
        await world.tick()
        await world.scale(("prefill", "decode")[pool], replicas)
    else:
        await world.edit(lambda spec: EDIT[name](spec, value))


def _image(spec: Json, image: str) -> None:
    for pool in spec["pools"]:
        pool["image"] = image


def _gate(spec: Json, gated: bool) -> None:
    spec["rollout"] = {**spec["rollout"], "gate": {}} if gated else {**spec["rollout"], "gate": None}
    if not gated:
        del spec["rollout"]["gate"]


def _third(spec: Json, there: bool) -> None:
    image = spec["pools"][0]["image"]
    extra = [{"name": "both", "role": "unified", "replicas": 1, "image": image}] if there else []
    spec["pools"] = [*spec["pools"][:2], *extra]


def _invalid(spec: Json, _value: None) -> None:
    spec["rollout"] |= {"maxSurge": 0, "maxUnavailable": 0}


EDIT: dict[str, Callable[[Json, Any], Any]] = {
    "image": _image,
    "replicas": lambda spec, value: spec["pools"][value[0]].update(replicas=value[1]),
    "weight": lambda spec, value: spec["rollout"].update(weight=value),
    "paused": lambda spec, value: spec["rollout"].update(paused=value),
    "gate": _gate,
    "surge": lambda spec, value: spec["rollout"].update(maxSurge=value[0], maxUnavailable=value[1]),
    "third": _third,
    "invalid": _invalid,
}


async def finish(world: World) -> None:
    """Ask for something good, and wait until there is peace."""

    def good(spec: Json) -> None:
        spec["rollout"] |= {"weight": 100, "paused": False, "maxSurge": 1, "maxUnavailable": 0}
        if spec["pools"][0]["image"] not in GOOD:
            _image(spec, "four")

    await world.edit(good)
    await world.settle(quiet_s=90)


def judge(world: World) -> None:
    """What is asked for is there, and nothing else."""
    assert world.condition("Ready")["status"] == "True", world.object["status"]
    assert world.condition("Stalled")["status"] == "False"
    revision = world.status.current_revision
    pools = {pool["name"]: pool for pool in world.spec["pools"]}
    for name, pool in pools.items():
        wanted = next(obj for obj in world.of(ENGINE_POOL) if labels_of(obj)[POOL] == name)["spec"]["replicas"]
        assert pool.get("replicas", wanted) == wanted
        assert len(world.pods(name, revision, ready=True)) == wanted
        assert {pod["spec"]["containers"][0]["image"] for pod in world.pods(name)} == {pool["image"]}
    for kind in (DEPLOYMENT, CONFIG_MAP, POD):
        assert {(labels_of(obj)[POOL], labels_of(obj)[REVISION]) for obj in world.of(kind)} == {
            (name, revision) for name in pools
        }, f"orphans of {kind.kind}"
    assert {labels_of(obj)[POOL] for obj in world.of(ENGINE_POOL)} == set(pools)
    assert {labels_of(obj)[POOL] for obj in world.of(SERVICE)} == set(pools)
    assert world.of(JOB) == []
    assert {each.name: each.weight for each in world.status.revisions} == {revision: 100}


async def quiet(world: World) -> None:
    asked = world.cluster.asked
    world.crash()
    await world.run(_STARTS)
    assert world.cluster.asked == asked, "a new operator writes although nothing has changed"


def in_world(story: Callable[[World], Awaitable[None]]) -> None:
    async def told() -> None:
        world = World()
        try:
            await world.submit()
            await world.settle(quiet_s=30)
            await story(world)
        finally:
            await world.close()

    run(lambda _loop: told(), limit_s=100_000)


@given(WILD)
@settings(max_examples=25, deadline=None)
def test_it_always_gets_there(steps: list[Step]) -> None:
    async def story(world: World) -> None:
        await play(world, steps)
        world.cluster.writes_left = None
        await finish(world)
        judge(world)
        await quiet(world)

    in_world(story)


class Capacity:
    """Looks after every write whether enough workers serve.

    Two things take traffic from a revision at once, as they should: answers that fail, and a user who lowers its
    weight or asks for a gate when it has traffic already. The workers that had made room for its own are *missed*
    until they are back; nobody may take one more.
    """

    def __init__(self, world: World) -> None:
        self.broken: list[str] = []
        self._world = world
        self._least = {"prefill": 2, "decode": 3}
        self._missed = dict.fromkeys(self._least, 0)
        self._withdrawn = False

    def asked(self, name: str, value: Any) -> None:
        """A user is about to ask for something."""
        if name in ("replicas", "scaled"):
            pool = ("prefill", "decode")[value[0]]
            self._least[pool] = min(self._least[pool], value[1])
        lowered = name == "weight" and value < self._world.spec["rollout"].get("weight", 100)
        self._withdrawn |= lowered or (name == "gate" and value)

    def look(self) -> None:
        world = self._world
        if not world.reachable():
            self._note("nothing can be reached")
        for pool, count in self._least.items():
            serve, missed = world.available(pool), self._taken(pool)
            self._missed[pool] = max(self._missed[pool], missed) if serve < count else missed
            if serve + self._missed[pool] < count - 1:
                self._note(f"{pool} has {serve} of {count}, {self._missed[pool]} missed")
        settled = world.status.observed_generation == world.object["metadata"]["generation"]
        if settled and world.condition("Reconciling")["status"] == "False":
            self._withdrawn = False

    def _taken(self, pool: str) -> int:
        """Ready workers whose traffic was taken from them."""
        idle = [each.name for each in self._world.status.revisions if not each.weight] if self._withdrawn else []
        idle = [name for name in idle if self._world.image_of(name) != WRONG]
        pods = sum(len(self._world.pods(pool, name, ready=True)) for name in idle)
        return pods + self._world.available(pool, WRONG)

    def _note(self, what: str) -> None:
        self.broken.append(f"{self._world.clock.now():.0f}: {what}")


# The operator deletes a Deployment while its controller takes a pod away.
RACE = [
    ("invalid", None),
    ("paused", False),
    ("invalid", None),
    ("surge", ("50%", 1)),
    ("image", "three"),
    ("weight", 0),
    ("invalid", None),
    ("crash", 20),
    ("time", 60.0),
    ("invalid", None),
]


# A user takes the traffic from a revision that had most of it, then asks for a gate.
WITHDRAWN = [
    ("scaled", (0, 4)),
    ("replicas", (0, 4)),
    ("third", True),
    ("time", 60.0),
    ("third", True),
    ("crash", 10),
    ("weight", 0),
    ("gate", True),
    ("time", 60.0),
]


@given(CALM)
@example(RACE)
@example(WITHDRAWN)
@example([("image", WRONG), ("time", 15.0), ("surge", (0, 1)), ("time", 15.0), ("paused", True)])
@settings(max_examples=25, deadline=None)
def test_it_never_takes_what_serves(steps: list[Step]) -> None:
    """As long as no worker dies by itself, every request finds a revision, and no pool has fewer workers that serve
    than the least that was asked for, less what may be unavailable."""

    async def story(world: World) -> None:
        capacity = Capacity(world)
        world.cluster.seen = capacity.look
        for name, value in steps:
            capacity.asked(name, value)
            await play(world, [(name, value)])
        world.cluster.writes_left = None
        await finish(world)
        judge(world)
        assert capacity.broken == []

    in_world(story)
