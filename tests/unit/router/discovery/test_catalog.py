"""The catalog of services and workers: whatever changes in whatever order, it is what a reading of everything gives,
and of a change nothing is read but what it is about."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.discovery import catalog as catalog_module
from router.discovery.catalog import Catalog
from router.discovery.model_service import DiscoveredService, by_model, service_of
from router.discovery.pods import WorkerPod, kept, worker_of
from router.fleet.served import served_models
from router.fleet.services import MemberFacts, ServiceFacts, ServiceRegistry
from router.generation import ServedModel
from tandem.core.errors import TandemError
from tandem.core.messages import Adapter, Hello
from tandem.kube.kinds import Json
from tandem.kube.store import Key
from tandem.spec.tenants import read_tenants
from tests.unit.router.discovery.test_router_discovery import pod, service
from tests.worlds.router_world import LAYOUT

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
TIMES = st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"])
SERVICES = st.tuples(
    st.just("service"),
    NAMES,
    st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {"since": TIMES, "model": NAMES, "aliases": st.lists(NAMES, max_size=3), "weight": st.integers(0, 1)},
            optional={"novelty": st.just(True)},
        ),
    ),
)
PODS = st.tuples(
    st.just("pod"),
    st.integers(0, 9),
    st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {"since": TIMES, "service": NAMES, "ip": st.sampled_from(["", "10.0.0.1", "10.0.0.2", "10.0.0.3"])},
            optional={"ready": st.booleans(), "leaves": st.booleans(), "ended": st.booleans()},
        ),
    ),
)
CHANGES = st.lists(st.one_of(SERVICES, PODS, st.just(("take", 0, None))), max_size=40)


def service_object(name: str, drawn: Any) -> Json:
    spec = {"model": {"name": drawn["model"], "aliases": drawn["aliases"]}}
    if "novelty" in drawn:
        spec["novelty"] = {}
    weights = {"revisions": [{"name": "0000000001", "weight": 100 * drawn["weight"]}]}
    found = service(name, spec=spec, status=weights)
    if "novelty" in drawn:
        found["spec"]["pools"] = "others"
    found["metadata"]["creationTimestamp"] = drawn["since"]
    return found


def pod_object(number: int, drawn: Any) -> Json:
    phase = "Failed" if drawn.get("ended") else "Running"
    found = pod(f"pod-{number}", drawn["ip"], service=drawn["service"], phase=phase)
    found["metadata"]["creationTimestamp"] = drawn["since"]
    if not drawn.get("ready", True):
        found["status"]["conditions"] = []
    if drawn.get("leaves"):
        found["metadata"]["annotations"]["tandem.dev/drain-within"] = "15"
    return found


class Everything:
    """All objects, and what a reading of all of them gives."""

    def __init__(self) -> None:
        self.pods: dict[Key, Json] = {}
        self.understood: dict[Key, DiscoveredService] = {}
        self.unread: dict[Key, str] = {}

    def take(self, what: str, key: Key, obj: Json | None) -> None:
        if what == "pod":
            self.pods.pop(key, None)
            if obj is not None:
                self.pods[key] = obj
            return
        self.unread.pop(key, None)
        if obj is None:
            self.understood.pop(key, None)
            return
        try:
            self.understood[key] = service_of(obj)
        except TandemError as error:
            self.unread[key] = error.message

    def read(self) -> tuple[dict[str, DiscoveredService], dict[str, WorkerPod], set[str]]:
        named, problems = by_model(self.understood.values())
        served = {each.facts.name for each in named.values()}
        workers = [(key, worker) for key, each in self.pods.items() if (worker := worker_of(each)) is not None]
        oldest_first = sorted(workers, key=lambda each: (each[1].since, each[0]))
        members = {worker.address: worker for _, worker in oldest_first if worker.service in served}
        return named, members, {each.sentence for each in problems} | set(self.unread.values())


@settings(max_examples=400)
@given(CHANGES)
def test_any_sequence_of_changes_gives_what_a_reading_of_everything_gives(changes: list[Any]) -> None:
    catalog, everything = Catalog(), Everything()
    services: dict[str, DiscoveredService] = {}
    members: dict[str, WorkerPod] = {}
    said: set[str] = set()
    for what, name, drawn in (*changes, ("take", 0, None)):
        if what == "take":
            taken = catalog.take_changes()
            put(services, taken.services)
            put(members, taken.members)
            named, workers, problems = everything.read()
            assert (services, members) == (named, workers), "told one by one"
            assert (catalog.named, catalog.members) == (named, workers)
            assert set(taken.problems) >= problems - said
            said = problems
            continue
        key = ("default", name if what == "service" else f"pod-{name}")
        made: Callable[[Any, Any], Json] = service_object if what == "service" else pod_object
        obj = None if drawn is None else made(name, drawn)
        everything.take(what, key, obj)
        if what == "service":
            catalog.take_service(key, obj)
        else:
            catalog.take_pod(key, obj)


def put(there: dict[str, Any], changes: Any) -> None:
    there.update(changes)
    for key in [key for key, value in there.items() if value is None]:
        del there[key]


def test_a_name_that_is_free_again_moves_on_through_all_that_want_names() -> None:
    """`first` had m; `second`, which takes it over, has the alias x then, which `third` had so far."""
    catalog, everything = Catalog(), Everything()
    wants: tuple[tuple[str, str, list[str], str], ...] = (
        ("first", "m", [], "2026-01-01T00:00:00Z"),
        ("second", "m", ["x"], "2026-01-02T00:00:00Z"),
        ("third", "other", ["x", "y"], "2026-01-03T00:00:00Z"),
        ("fourth", "last", ["y"], "2026-01-04T00:00:00Z"),
    )
    for name, model, aliases, since in wants:
        obj = service_object(name, {"since": since, "model": model, "aliases": aliases, "weight": 1})
        everything.take("service", ("default", name), obj)
        catalog.take_service(("default", name), obj)
    assert catalog.take_changes().services["other"].facts.aliases == ("x", "y")  # type: ignore[union-attr]
    everything.take("service", ("default", "first"), None)
    catalog.take_service(("default", "first"), None)
    changes = catalog.take_changes()
    assert catalog.named == everything.read()[0]
    assert sorted(changes.services) == ["m", "other"]
    assert catalog.named["other"].facts.aliases == ("y",)
    assert changes.problems == ("default/third is not served as 'x': default/second has that name already",)


def test_an_address_that_two_pods_have_is_the_newer_ones_whichever_changed_last() -> None:
    catalog = Catalog()
    catalog.take_service(
        ("default", "a"),
        service_object("a", {"since": "2026-01-01T00:00:00Z", "model": "m", "aliases": [], "weight": 1}),
    )
    drawn = {"service": "a", "ip": "10.0.0.1"}
    catalog.take_pod(("default", "pod-1"), pod_object(1, {**drawn, "since": "2026-01-02T00:00:00Z"}))
    catalog.take_pod(("default", "pod-2"), pod_object(2, {**drawn, "since": "2026-01-01T00:00:00Z", "leaves": True}))
    assert catalog.take_changes().members["tcp://10.0.0.1:7400"].name == "pod-1"  # type: ignore[union-attr]
    catalog.take_pod(("default", "pod-2"), pod_object(2, {**drawn, "since": "2026-01-01T00:00:00Z"}))
    assert catalog.take_changes().members == {}
    catalog.take_pod(("default", "pod-1"), None)
    assert catalog.take_changes().members["tcp://10.0.0.1:7400"].name == "pod-2"  # type: ignore[union-attr]


@pytest.mark.parametrize("spec", [{"model": {"aliases": [{"a": "b"}]}}, {"engine": {"adapters": [{"a": "b"}]}}])
def test_a_tenants_service_that_names_objects_is_a_problem_and_no_error(spec: Any) -> None:
    catalog = Catalog(read_tenants(["default=*"]))
    catalog.take_service(("default", "chat"), service("chat", spec=spec))
    changes = catalog.take_changes()
    assert not changes.services
    (problem,) = changes.problems
    assert problem.startswith("default/chat: ")


def test_what_changes_nothing_is_of_no_interest() -> None:
    """Heartbeats and counts, of which there are many."""
    catalog = Catalog()
    for number in range(3):
        drawn = {"since": "2026-01-01T00:00:00Z", "model": f"m{number}", "aliases": ["x"], "weight": 1}
        obj = service_object(f"s{number}", drawn)
        assert catalog.take_service(("default", f"s{number}"), obj)
        obj["status"]["observedGeneration"] = 7
        assert not catalog.take_service(("default", f"s{number}"), obj)
        worker = pod_object(number, {"since": "2026-01-01T00:00:00Z", "service": f"s{number}", "ip": "10.0.0.1"})
        assert catalog.take_pod(("default", f"pod-{number}"), worker)
        worker["status"]["containerStatuses"] = [{"restartCount": number}]
        assert not catalog.take_pod(("default", f"pod-{number}"), worker)


def test_a_pod_reads_the_same_as_a_whole_one() -> None:
    whole = pod("a", "10.0.0.1", annotations={"tandem.dev/drain-within": "15", "other": "x"})
    whole["metadata"] |= {"deletionTimestamp": "x", "deletionGracePeriodSeconds": 40, "managedFields": [{}]}
    assert worker_of(kept(whole)) == worker_of(whole) != None  # noqa: E711
    assert "managedFields" not in kept(whole)["metadata"]
    assert list(kept(whole)["metadata"]["annotations"]) == ["tandem.dev/link-port", "tandem.dev/drain-within"]


@pytest.mark.parametrize("count", [10, 1000])
def test_of_a_change_only_what_it_is_about_is_read(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others there are."""
    catalog, parsed, compared = Catalog(), list[str](), list[int]()

    def counting(name: str) -> None:
        before = getattr(catalog_module, name)

        def counted(obj: Any) -> Any:
            found = list(obj) if name == "by_model" else obj
            parsed.append(name)
            compared.append(len(found) if name == "by_model" else 0)
            return before(found)

        monkeypatch.setattr(catalog_module, name, counted)

    for name in ("worker_of", "service_of", "by_model"):
        counting(name)
    drawn = {"since": "2026-01-01T00:00:00Z", "weight": 0}
    for number in range(count):
        catalog.take_service(
            ("default", f"s{number}"),
            service_object(f"s{number}", {**drawn, "model": f"m{number}", "aliases": [f"x{number // 2}"]}),
        )
        catalog.take_pod(("default", f"pod-{number}"), pod_of(number, f"s{number}"))
    assert len(catalog.take_changes().members) == count
    del parsed[:], compared[:]
    catalog.take_pod(("default", "pod-3"), pod_of(3, "s3", ready=False))
    changes = catalog.take_changes()
    assert (parsed, list(changes.members), changes.services) == (["worker_of"], ["tcp://10.0.0.3:7400"], {})
    del parsed[:], compared[:]
    again = service_object("s4", {**drawn, "model": "m4", "aliases": ["x2"], "weight": 1})
    catalog.take_service(("default", "s4"), again)
    changes = catalog.take_changes()
    assert (parsed, list(changes.services), changes.members) == (["service_of", "by_model"], ["m4"], {})
    assert sum(compared) == 2, "the service, and the one that wants the same alias"


def pod_of(number: int, service_name: str, *, ready: bool = True) -> Json:
    ip = f"10.0.{number >> 8}.{number & 255}"
    return pod_object(number, {"since": "2026-01-01T00:00:00Z", "service": service_name, "ip": ip, "ready": ready})


# -- the registry that is told of it --

FACTS = st.dictionaries(
    NAMES, st.one_of(st.none(), st.tuples(st.lists(NAMES, max_size=2), st.integers(1, 3))), max_size=3
)
MEMBERS = st.dictionaries(st.sampled_from(["p1", "p2"]), st.one_of(st.none(), st.booleans()), max_size=2)
HELLOS = st.lists(
    st.tuples(NAMES, st.sampled_from(["decode", "prefill", "unified"]), st.one_of(st.none(), NAMES)), max_size=4
)


class Reread:
    """Lists everything anew each time, as the registry did before it was told of changes."""

    def __init__(self) -> None:
        self.facts: dict[str, ServiceFacts] = {}
        self.remembered: dict[str, tuple[ServedModel, ...]] = {}

    def list(self, hellos: Iterable[Hello], registry: ServiceRegistry) -> tuple[ServedModel, ...]:
        known = {hello.model: hello for hello in hellos if hello.role not in ("prefill", "store")}
        told = registry._as_told
        here = [told(each) for each in served_models(hellos, known)]
        self.remembered = {model: each for model, each in self.remembered.items() if model in self.facts}
        for model in self.facts.keys() & known.keys():
            self.remembered[model] = tuple(each for each in here if each.base == model)
        names = {each.name for each in here}
        asleep = []
        for model in sorted(self.facts.keys() - known.keys()):
            facts = self.facts[model]
            unseen = (ServedModel(model, facts.context_tokens, (), "", facts.features),)
            asleep += [told(each) for each in self.remembered.get(model, unseen)]
        return (*here, *(each for each in asleep if each.name not in names))


@settings(max_examples=200)
@given(st.lists(st.tuples(FACTS, MEMBERS, st.one_of(st.none(), HELLOS)), max_size=12))
def test_a_registry_that_is_told_of_changes_lists_what_one_that_reads_everything_lists(steps: list[Any]) -> None:
    registry, reread, hellos = ServiceRegistry(), Reread(), list[Hello]()
    members: dict[str, bool] = {}
    for drawn, told, introduced in steps:
        facts = {
            model: None
            if each is None
            else ServiceFacts(f"n/{model}", model, context_tokens=each[1] * 100, aliases=tuple(each[0]))
            for model, each in drawn.items()
        }
        put(reread.facts, facts)
        put(members, told)
        changed = {a: None if r is None else MemberFacts(a, "n/a", "decode", r) for a, r in told.items()}
        registry.change(facts, changed)
        assert registry.served == reread.list(hellos, registry)
        if introduced is not None:
            hellos = [hello(*each) for each in introduced]
            registry.renew(hellos)
            assert registry.served == reread.list(hellos, registry)
        assert registry.awaited == any(members.values())
        assert {each.model for each in registry.all()} == set(reread.facts)


def hello(model: str, role: str, adapter: str | None) -> Hello:
    adapters = () if adapter is None else (Adapter(adapter, "hash"),)
    return Hello(
        1, "w", 1, role, model, "h", "r", LAYOUT, b"", 1, 4096, (0,), (), features=(role,), adapters=adapters
    )
