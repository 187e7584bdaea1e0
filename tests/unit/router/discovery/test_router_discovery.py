"""Workers and services found at an API server: what the fleet is told, and what it keeps while the server is away."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from router.api.chat_templates.render import SimpleRenderer
from router.discovery.kubernetes import KubernetesDiscovery, WatchDeps
from router.discovery.model_service import TextSource, by_model, service_of
from router.discovery.pods import worker_of
from router.discovery.texts import TextSide, TextSides
from router.fleet.services import MemberFacts, ServiceFacts
from router.placement.revisions import Weights
from router.process_settings import ProcessSettings
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.slo import Slo
from tandem.kube.cluster import Cluster, Page, Selector, WatchEvent
from tandem.kube.kinds import MODEL_SERVICE, POD, Json, Ref
from tandem.kube.memory_cluster import MemoryCluster
from tandem.process.metrics import PrometheusMeter
from tandem.process.settings import load_settings
from tandem.spec.tenants import read_tenants

OLD, NEW = "0000000001", "0000000002"


def pod(name: str, ip: str = "", *, service: str = "chat", namespace: str = "default", **more: Any) -> Json:
    labels = {
        "app.kubernetes.io/managed-by": "tandem",
        "tandem.dev/service": service,
        "tandem.dev/pool": "decode",
        "tandem.dev/role": "decode",
        "tandem.dev/revision": OLD,
        **more.get("labels", {}),
    }
    annotations = {"tandem.dev/link-port": "7400", **more.get("annotations", {})}
    status: Json = {"phase": more.get("phase", "Running"), "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        "spec": {"containers": []},
        "status": {**status, **({"podIP": ip} if ip else {})},
    }


def service(name: str, *, namespace: str = "default", spec: Json | None = None, status: Json | None = None) -> Json:
    pools = [{"name": "decode", "role": "decode", "autoscaling": {"minReplicas": 0, "maxReplicas": 2}}]
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"engine": {"type": "simulated"}, "pools": pools, **(spec or {})},
        **({"status": status} if status else {}),
    }


def weighted(**weights: int) -> Json:
    return {"revisions": [{"name": f"000000000{name[1:]}", "weight": weight} for name, weight in weights.items()]}


class AwayCluster(MemoryCluster):
    """Does not answer while `away`."""

    away = False

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        self._answer()
        return await super().list_page(selector, limit, token)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        self._answer()
        async for event in super().watch(selector, version):
            yield event

    def leave(self) -> None:
        self.away = True
        self.disconnect()

    def _answer(self) -> None:
        if self.away:
            raise TandemError("link_lost", "the server is away")


@dataclass
class Fleet:
    """Remembers what it was told, and how often."""

    members: tuple[str, ...] = ()
    drains: dict[str, float] = field(default_factory=dict)
    facts: dict[str, ServiceFacts] = field(default_factory=dict)
    known: dict[str, MemberFacts] = field(default_factory=dict)
    tellings: int = 0

    def change_members(self, joined: Iterable[str], left: Iterable[str]) -> None:
        gone = set(left)
        kept = [each for each in self.members if each not in gone]
        self.members, self.tellings = tuple(dict.fromkeys((*kept, *joined))), self.tellings + 1

    def change_services(
        self, facts: Mapping[str, ServiceFacts | None], members: Mapping[str, MemberFacts | None]
    ) -> None:
        self.facts = {key: each for key, each in {**self.facts, **facts}.items() if each is not None}
        self.known = {key: each for key, each in {**self.known, **members}.items() if each is not None}

    def set_drains(self, within_s: Mapping[str, float]) -> None:
        self.drains = dict(within_s)


@dataclass
class Stage:
    cluster: AwayCluster
    fleet: Fleet
    texts: TextSides
    meter: PrometheusMeter
    loads: list[str]

    async def apply(self, *objects: Json) -> None:
        for obj in objects:
            await self.cluster.apply({key: value for key, value in obj.items() if key != "status"}, "test")
            if "status" in obj:
                await self.cluster.apply_status(obj, "test")
        await asyncio.sleep(1.0)


def staged(
    body: Callable[[Stage], Awaitable[None]],
    *,
    namespaces: Sequence[str] = (),
    away: bool = False,
    tenants: Sequence[str] = (),
) -> None:
    async def main(loop: VirtualLoop) -> None:
        clock, loads = LoopClock(loop), list[str]()
        cluster = AwayCluster(clock)
        cluster.away = away
        texts, meter, fleet = NoThreads(clock, loads), PrometheusMeter(), Fleet()

        async def connect() -> Cluster:
            return cluster

        watching = WatchDeps(texts, clock, SeededEntropy(1), meter, read_tenants(tenants))
        discovery = KubernetesDiscovery(connect, namespaces, fleet, watching, ("tcp://fixed:1",))
        await discovery.open()
        task = asyncio.create_task(discovery.run())
        await asyncio.sleep(1.0)
        await body(Stage(cluster, fleet, texts, meter, loads))
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(main)


class NoThreads(TextSides):
    """Virtual time has no threads: loads when it is told, and notes what."""

    def __init__(self, clock: LoopClock, loads: list[str]) -> None:
        super().__init__(lambda model, source: TextSide(SimpleRenderer(clock), 512), clock)
        self._noted = loads

    async def _bring(self, model: str, source: TextSource) -> None:
        self._noted.append(model)
        self._sides[model] = source, self._load(model, source)
        self.loaded(model)


def test_pods_become_members_and_leave_with_their_objects() -> None:
    async def body(stage: Stage) -> None:
        await stage.apply(service("chat"), pod("b", "10.0.0.2"), pod("a", "10.0.0.1"), pod("starting"))
        assert list(stage.fleet.members) == ["tcp://fixed:1", "tcp://10.0.0.1:7400", "tcp://10.0.0.2:7400"]
        facts = stage.fleet.known["tcp://10.0.0.1:7400"]
        assert (facts.service, facts.pool, facts.ready, facts.pod) == ("default/chat", "decode", True, "a")
        await stage.cluster.delete(Ref(POD, "default", "a"))
        await asyncio.sleep(1.0)
        assert list(stage.fleet.members) == ["tcp://fixed:1", "tcp://10.0.0.2:7400"]

    staged(body)


def test_what_no_router_reads_is_not_told() -> None:
    """Statuses of services and pods are written all the time."""

    async def body(stage: Stage) -> None:
        await stage.apply(service("chat", status=weighted(r1=100)), pod("a", "10.0.0.1"))
        told = stage.fleet.tellings
        again = pod("a", "10.0.0.1")
        again["status"]["containerStatuses"] = [{"name": "worker", "restartCount": 1}]
        await stage.apply(service("chat", status={**weighted(r1=100), "observedGeneration": 7}), again)
        assert stage.fleet.tellings == told
        await stage.apply(service("chat", status=weighted(r1=50, r2=50)))
        assert stage.fleet.tellings == told + 1

    staged(body)


def test_a_tenants_service_takes_no_name_that_it_may_not_have(caplog: pytest.LogCaptureFixture) -> None:
    """However old it is: what is refused keeps nothing from others."""
    squatter = service("old", namespace="aaa", spec={"model": {"name": "b/x"}})
    squatter["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    right = service("chat", namespace="bbb", spec={"model": {"name": "b/x"}})

    async def body(stage: Stage) -> None:
        await stage.apply(squatter, pod("w", "10.0.0.7", service="old", namespace="aaa"))
        assert (stage.fleet.facts, stage.fleet.members) == ({}, ("tcp://fixed:1",))
        await stage.apply(right, pod("a", "10.0.0.1", namespace="bbb"))
        assert stage.fleet.facts["b/x"].name == "bbb/chat"
        assert stage.fleet.members == ("tcp://fixed:1", "tcp://10.0.0.1:7400")

    with caplog.at_level("WARNING"):
        staged(body, tenants=("aaa=a/*", "bbb=b/*"))
    assert any("aaa/old is not served: namespace aaa may" in str(vars(each)) for each in caplog.records)


def test_only_pods_of_services_that_are_served_count() -> None:
    async def body(stage: Stage) -> None:
        foreign = pod("x", "10.0.0.9", labels={"app.kubernetes.io/managed-by": "helm"})
        await stage.apply(service("chat"), pod("a", "10.0.0.1"), pod("b", "10.0.0.2", service="gone"), foreign)
        assert stage.fleet.members == ("tcp://fixed:1", "tcp://10.0.0.1:7400")

    staged(body)


def test_a_pod_that_is_deleted_or_told_to_drain_is_drained() -> None:
    async def body(stage: Stage) -> None:
        leaving = pod("a", "10.0.0.1", annotations={"tandem.dev/drain-within": "15"})
        going = pod("b", "10.0.0.2")
        going["metadata"]["finalizers"] = ["test/keep"]
        going["metadata"]["deletionGracePeriodSeconds"] = 150
        await stage.apply(service("chat"), leaving, going)
        assert stage.fleet.drains == {"tcp://10.0.0.1:7400": 15.0}
        await stage.cluster.delete(Ref(POD, "default", "b"))
        await asyncio.sleep(1.0)
        assert stage.fleet.drains == {"tcp://10.0.0.1:7400": 15.0, "tcp://10.0.0.2:7400": 120.0}
        assert len(stage.fleet.members) == 3, "it stays a member while it drains"

    staged(body)


def test_a_service_says_weights_bounds_policy_and_slo() -> None:
    async def body(stage: Stage) -> None:
        spec = {
            "model": {"name": "big"},
            "routing": {"policy": "round_robin", "maxQueueSeconds": 7},
            "slo": {"ttftMs": 900, "tpotMs": 40, "itlMs": 120},
        }
        await stage.apply(service("chat", spec=spec, status=weighted(r1=90, r2=10)))
        facts = stage.fleet.facts["big"]
        assert facts.weights == Weights("default/chat", ((OLD, 90), (NEW, 10)))
        assert (facts.name, facts.queue_s, facts.policy, facts.slo, facts.revisions) == (
            "default/chat",
            7.0,
            "round_robin",
            Slo(0.9, 0.04, 0.12),
            (OLD, NEW),
        )
        assert facts.context_tokens == 512
        assert isinstance(stage.texts["big"], SimpleRenderer)
        await stage.apply(service("chat", spec=spec, status=weighted(r1=0, r2=100)))
        assert stage.fleet.facts["big"].weights == Weights("default/chat", ((NEW, 100),))

    staged(body)


def test_while_the_server_is_away_the_last_list_stays_and_it_is_said() -> None:
    async def body(stage: Stage) -> None:
        await stage.apply(service("chat"), pod("a", "10.0.0.1"))
        before = stage.fleet.members
        stage.cluster.leave()
        await stage.cluster.delete(Ref(POD, "default", "a"))
        await asyncio.sleep(120.0)
        assert stage.fleet.members == before
        assert b"tandem_discovery_lost 1.0" in stage.meter.render()
        (age,) = [line for line in stage.meter.render().splitlines() if line.startswith(b"tandem_discovery_age_s")]
        assert float(age.split()[1]) > 100
        stage.cluster.away = False
        await asyncio.sleep(60.0)
        stage.cluster.bookmark()
        await asyncio.sleep(2.0)
        assert stage.fleet.members == ("tcp://fixed:1",)
        assert b"tandem_discovery_lost 0.0" in stage.meter.render()

    staged(body)


def test_nothing_is_told_before_the_server_has_answered_once() -> None:
    async def body(stage: Stage) -> None:
        await asyncio.sleep(60.0)
        assert (stage.fleet.tellings, stage.fleet.members) == (0, ())
        stage.cluster.away = False
        await asyncio.sleep(60.0)
        assert stage.fleet.members == ("tcp://fixed:1",)

    staged(body, away=True)


def test_only_the_given_namespaces_are_looked_at() -> None:
    async def body(stage: Stage) -> None:
        for namespace, number in (("a", 1), ("b", 2), ("c", 3)):
            name = f"chat-{namespace}"
            await stage.apply(
                service(name, namespace=namespace),
                pod("w", f"10.0.0.{number}", namespace=namespace, service=name),
            )
        assert sorted(stage.fleet.facts) == ["chat-a", "chat-c"]
        assert stage.fleet.members == ("tcp://fixed:1", "tcp://10.0.0.1:7400", "tcp://10.0.0.3:7400")

    staged(body, namespaces=("a", "c"))


def test_a_service_of_a_newer_kind_stays_what_it_was_and_others_go_on() -> None:
    async def body(stage: Stage) -> None:
        await stage.apply(service("chat", status=weighted(r1=100)), service("other"))
        await stage.apply(service("chat", spec={"novelty": {"x": 1}}, status=weighted(r1=100)))
        assert stage.fleet.facts["chat"].weights == Weights("default/chat", ((OLD, 100),))
        await stage.cluster.delete(Ref(MODEL_SERVICE, "default", "other"))
        await asyncio.sleep(1.0)
        assert list(stage.fleet.facts) == ["chat"]

    staged(body)


def test_of_two_services_with_one_model_name_the_older_has_it() -> None:
    late = {**service("a"), "metadata": {"name": "a", "namespace": "x", "creationTimestamp": "2026-02-01T00:00:00Z"}}
    early = {**service("b"), "metadata": {"name": "b", "namespace": "x", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    for each in (late, early):
        each["spec"] = {**each["spec"], "model": {"name": "m"}}
    named, problems = by_model([service_of(late), service_of(early)])
    assert named["m"].facts.name == "x/b"
    assert problems == [("x/a", "x/a is not served: x/b serves a model called 'm' already")]


def test_text_sides_are_replaced_only_when_no_rollout_is_under_way() -> None:
    async def body(stage: Stage) -> None:
        await stage.apply(service("chat"))
        assert stage.loads == ["chat"]
        other = {"model": {"source": "other/model"}}
        await stage.apply(service("chat", spec=other, status={"updateRevision": NEW}))
        assert stage.loads == ["chat"]
        await stage.apply(service("chat", spec=other, status={"currentRevision": NEW}))
        assert stage.loads == ["chat", "chat"]
        await stage.cluster.delete(Ref(MODEL_SERVICE, "default", "chat"))
        await asyncio.sleep(1.0)
        assert dict(stage.texts) == {}

    staged(body)


@pytest.mark.parametrize(
    "changed",
    [
        {"status": {"phase": "Running"}},
        {"status": {"phase": "Succeeded", "podIP": "10.0.0.1"}},
        {"metadata": {"labels": {"leaderworkerset.sigs.k8s.io/worker-index": "1"}}},
        {"metadata": {"annotations": {"tandem.dev/link-port": "many"}}},
        {"metadata": {"annotations": {"tandem.dev/link-port": "70000"}}},
    ],
)
def test_what_is_no_worker_of_its_own_is_left_out(changed: Json) -> None:
    found = pod("a", "10.0.0.1")
    found["status"] = changed.get("status", found["status"])
    for key, value in changed.get("metadata", {}).items():
        found["metadata"][key] |= value
    assert worker_of(found) is None


def test_addresses_follow_the_family() -> None:
    six, four = pod("a", "fd00::1"), pod("b", "10.0.0.2")
    assert [found.address for each in (six, four) if (found := worker_of(each)) is not None] == [
        "tcp://[fd00::1]:7400",
        "tcp://10.0.0.2:7400",
    ]


def test_where_workers_come_from_is_said_once() -> None:
    found = load_settings(ProcessSettings, ["--kubernetes", "--namespace", "a,b", "--kubeconfig", "/k"])
    assert (found.kubernetes, found.namespace, found.kubeconfig) == (True, ("a", "b"), Path("/k"))
    with pytest.raises(TandemError, match="exclude each other"):
        load_settings(ProcessSettings, ["--kubernetes", "--workers_file", "w.json"])
    with pytest.raises(TandemError, match="one of workers, workers_file and kubernetes"):
        load_settings(ProcessSettings, [])
