"""Who may do what at the API server, and who may talk to whom."""

import ast
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest

from tandem.kube import kinds
from tandem.kube.kinds import Kind
from tests.helm.charts import NAMESPACE, Json, containers, of_kind, render, rendered, selects, workloads
from tools.chart_values import PAGE

ROOT: Final = Path(__file__).resolve().parents[2]
RENDERED: Final = rendered()
every = pytest.mark.parametrize("objects", RENDERED.values(), ids=RENDERED.keys())
_WORKER: Final = {"tandem.dev/service": "demo", "tandem.dev/pool": "decode", "app.kubernetes.io/managed-by": "tandem"}


# -- rights --


def rules_of(objects: list[Json], account: str, namespace: str) -> list[Json]:
    """Every rule that holds for a service account in a namespace."""
    found: list[Json] = []
    for binding in (*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")):
        here = binding["kind"] == "ClusterRoleBinding" or binding["metadata"]["namespace"] == namespace
        if not here or account not in [subject["name"] for subject in binding["subjects"]]:
            continue
        for role in of_kind(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"]):
            if role["metadata"].get("namespace") == binding["metadata"].get("namespace"):
                found += role["rules"]
    return found


def allowed(rules: list[Json], kind: Kind, verb: str, part: str = "", name: str | None = None) -> bool:
    resource = f"{kind.plural}/{part}" if part else kind.plural
    return any(
        kind.group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and ("resourceNames" not in rule or name in rule["resourceNames"])
        for rule in rules
    )


def kinds_in(package: str) -> set[str]:
    """The constants of `tandem.kube.kinds` that a package uses."""
    known = {name for name, value in vars(kinds).items() if isinstance(value, Kind)}
    trees = (ast.parse(path.read_text("utf-8")) for path in (ROOT / package).rglob("*.py"))
    imports = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return known & {alias.name for node in imports for alias in node.names}


_READ: Final = ("get", "list", "watch")
_MADE: Final = (*_READ, "create", "patch", "delete")
_OPERATOR: Final[dict[str, tuple[str, ...]]] = {
    "MODEL_SERVICE": _READ,
    "ENGINE_POOL": _MADE,
    "POD": (*_READ, "patch"),
    "SERVICE": _MADE,
    "CONFIG_MAP": _MADE,
    "DEPLOYMENT": _MADE,
    "CONTROLLER_REVISION": _MADE,
    "POD_DISRUPTION_BUDGET": _MADE,
    "JOB": _MADE,
    "SCALED_OBJECT": _MADE,
    "TRIGGER_AUTHENTICATION": _MADE,
    "LEADER_WORKER_SET": _MADE,
    "EVENT": ("create", "patch"),
}
_AT_HOME: Final[dict[str, tuple[str, ...]]] = {
    "LEASE": ("create", "get", "update"),
    "CUSTOM_RESOURCE": ("get",),
    "NODE": ("list",),
    "POD": _READ,
}
_PARTS: Final = {
    ("tandem.dev", f"{plural}/{part}"): {verb}
    for plural in ("modelservices", "enginepools")
    for part, verb in (("status", "patch"), ("finalizers", "update"))
}


def rights(rules: list[Json]) -> dict[tuple[str, str], set[str]]:
    """Verbs by group and resource."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def wanted(table: dict[str, tuple[str, ...]]) -> dict[tuple[str, str], set[str]]:
    named = ((getattr(kinds, name), verbs) for name, verbs in table.items())
    return {(kind.group, kind.plural): set(verbs) for kind, verbs in named}


def test_the_operator_may_do_what_it_does_and_no_more() -> None:
    objects = RENDERED["two namespaces"]
    cluster = {("apiextensions.k8s.io", "customresourcedefinitions"): {"get"}, ("", "nodes"): {"list"}}
    for namespace in ("llm", "search"):
        found = rights(rules_of(objects, "tandem-operator", namespace))
        assert found == {**wanted(_OPERATOR), **_PARTS, **cluster}
    assert rights(rules_of(objects, "tandem-operator", NAMESPACE)) == wanted(_AT_HOME)
    everywhere = rights(rules_of(RENDERED["all namespaces"], "tandem-operator", "any"))
    assert everywhere == {**wanted(_OPERATOR), **_PARTS, **cluster}


def test_leases_and_definitions_are_named_one_by_one() -> None:
    home = rules_of(RENDERED["defaults"], "tandem-operator", NAMESPACE)
    assert allowed(home, kinds.LEASE, "create")
    assert allowed(home, kinds.LEASE, "update", name="tandem-operator")
    assert not allowed(home, kinds.LEASE, "update", name="kube-scheduler")
    assert allowed(home, kinds.CUSTOM_RESOURCE, "get", name="modelservices.tandem.dev")
    assert not allowed(home, kinds.CUSTOM_RESOURCE, "get", name="certificates.cert-manager.io")


def test_the_documentation_says_what_the_operators_clusterrole_is_for() -> None:
    (role,) = of_kind(RENDERED["defaults"], "ClusterRole", f"tandem-operator-{NAMESPACE}")
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    (unnamed,) = (rule for rule in role["rules"] if "resourceNames" not in rule)
    assert (unnamed["resources"], unnamed["verbs"]) == (["nodes"], ["list"])
    page = PAGE.read_text("utf-8")
    sentence = page[page.index("a ClusterRole only to read") :].partition("It never reads")[0]
    assert "three" in sentence
    assert "nodes" in sentence
    assert len(names) == 3
    assert {name for name in names if not name.endswith(".tandem.dev")} == {"scaledobjects.keda.sh"}
    assert "`scaledobjects.keda.sh`" in sentence


def test_the_control_plane_touches_what_it_has_rights_to() -> None:
    touched = kinds_in("control_plane")
    assert touched - {"LEASE", "EVENT"} == (_OPERATOR.keys() | _AT_HOME.keys()) - {"LEASE", "EVENT"}
    # Those two are written by what the control plane stands on.
    assert {"LEASE", "EVENT"} <= kinds_in("tandem/kube")


def test_every_kind_that_routers_and_stores_touch_is_among_their_rights() -> None:
    for package, account in (("router", "tandem-router"), ("kv_store", "tandem-kv-store")):
        rules = rules_of(RENDERED["everything"], account, "llm")
        assert rules
        for name in kinds_in(package):
            assert all(allowed(rules, getattr(kinds, name), verb) for verb in _READ), (package, name)


def aggregated(objects: list[Json], to: str) -> list[Json]:
    """The rules that the cluster's role `to` gains."""
    label = f"rbac.authorization.k8s.io/aggregate-to-{to}"
    roles = (role for role in of_kind(objects, "ClusterRole") if role["metadata"]["labels"].get(label) == "true")
    return [rule for role in roles for rule in role["rules"]]


def test_the_clusters_roles_gain_rights_to_modelservices_and_no_others() -> None:
    objects = RENDERED["defaults"]
    viewed = {
        ("tandem.dev", "modelservices"): set(_READ),
        ("tandem.dev", "enginepools"): set(_READ),
        ("tandem.dev", "modelservices/status"): {"get"},
        ("tandem.dev", "enginepools/status"): {"get"},
        ("tandem.dev", "enginepools/scale"): {"get"},
    }
    edited = {
        **viewed,
        ("tandem.dev", "modelservices"): {*_READ, "create", "update", "patch", "delete", "deletecollection"},
        ("tandem.dev", "enginepools/scale"): {"get", "update", "patch"},
    }
    assert rights(aggregated(objects, "view")) == viewed
    assert rights(aggregated(objects, "edit")) == rights(aggregated(objects, "admin")) == edited
    bound = {binding["roleRef"]["name"] for binding in of_kind(objects, "ClusterRoleBinding")}
    assert not bound & {f"tandem-view-{NAMESPACE}", f"tandem-edit-{NAMESPACE}"}, (
        "they give nobody anything by themselves"
    )


@pytest.mark.parametrize("values", [{"rbac": {"aggregate": False}}, {"rbac": {"create": False}}])
def test_they_gain_nothing_where_that_is_not_wanted(values: Json) -> None:
    objects = render(values)
    assert [aggregated(objects, to) for to in ("view", "edit", "admin")] == [[], [], []]


@every
def test_nobody_reads_secrets_or_has_rights_to_everything(objects: list[Json]) -> None:
    for role in (*of_kind(objects, "Role"), *of_kind(objects, "ClusterRole")):
        for rule in role["rules"]:
            asked = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not asked & {"*", "secrets", "escalate", "bind", "impersonate", "pods/exec"}
    for account in ("tandem-router", "tandem-kv-store"):
        for rule in rules_of(objects, account, "llm"):
            assert set(rule["verbs"]) <= set(_READ)


def test_rights_end_at_the_namespaces_that_are_named() -> None:
    objects = RENDERED["two namespaces"]
    assert not allowed(rules_of(objects, "tandem-operator", "else"), kinds.MODEL_SERVICE, "get")
    assert not allowed(rules_of(objects, "tandem-operator", NAMESPACE), kinds.DEPLOYMENT, "patch")
    assert not allowed(rules_of(objects, "tandem-router", "else"), kinds.POD, "list")
    assert of_kind(RENDERED["no policies, rights, budgets"], "Role") == []


# -- policies --


def policies(objects: list[Json], namespace: str, labels: Json) -> list[Json]:
    found = of_kind(objects, "NetworkPolicy")
    return [
        one["spec"]
        for one in found
        if one["metadata"]["namespace"] == namespace and selects(one["spec"]["podSelector"], labels)
    ]


def admits(peers: list[Json] | None, home: str, namespace: str, labels: Json) -> bool:
    """Whether a rule's peers have such a pod among them; `home` is where the policy is."""
    if not peers:
        return True
    for peer in peers:
        if "ipBlock" in peer:
            if "ip" in labels and ip_address(labels["ip"]) in ip_network(peer["ipBlock"]["cidr"]):
                return True
            continue
        place = peer.get("namespaceSelector")
        there = namespace == home if place is None else selects(place, {"kubernetes.io/metadata.name": namespace})
        if there and selects(peer.get("podSelector"), labels):
            return True
    return False


def open_between(objects: list[Json], source: tuple[str, Json], target: tuple[str, Json], port: int) -> bool:
    """Whether policies of both ends let the one open a TCP connection to the other."""

    def passes(side: str, end: tuple[str, Json], other: tuple[str, Json]) -> bool:
        key = "from" if side == "ingress" else "to"
        mine = [spec for spec in policies(objects, *end) if side.capitalize() in spec["policyTypes"]]
        rules = (rule for spec in mine for rule in spec.get(side, ()))
        return not mine or any(
            admits(rule.get(key), end[0], *other)
            and ("ports" not in rule or any(each.get("port") == port for each in rule["ports"]))
            for rule in rules
        )

    return passes("egress", source, target) and passes("ingress", target, source)


def pods_of(objects: list[Json]) -> Iterator[tuple[str, tuple[str, Json], list[int]]]:
    for one in workloads(objects):
        template = one["spec"]["template"]
        ports = [port["containerPort"] for each in containers(one) for port in each["ports"]]
        yield one["metadata"]["name"], (one["metadata"]["namespace"], template["metadata"]["labels"]), ports


@every
def test_every_port_has_a_policy_and_nothing_else_is_open(objects: list[Json]) -> None:
    if not of_kind(objects, "NetworkPolicy"):
        return
    for name, end, ports in pods_of(objects):
        mine = policies(objects, *end)
        assert {kind for spec in mine for kind in spec["policyTypes"]} == {"Ingress", "Egress"}, name
        rules = [rule for spec in mine for rule in spec.get("ingress", ())]
        named = {each["port"] for rule in rules for each in rule.get("ports", ())}
        if name != "tandem-kv-store":
            assert named <= set(ports)
            expected = set(ports)
            if "nobody" in _variant(objects):
                expected -= {8001, 8080, 9090}
            assert named == expected, name
        else:
            assert named <= set(ports)
            assert any("ports" not in rule for rule in rules), "blocks travel over ports of the transports' choice"


def _variant(objects: list[Json]) -> str:
    return next(name for name, each in RENDERED.items() if each is objects)


@pytest.mark.parametrize("variant", ["defaults", "everything", "two namespaces", "all namespaces"])
def test_those_who_belong_together_can_talk(variant: str) -> None:
    objects = RENDERED[variant]
    ends = {name: end for name, end, _ in pods_of(objects)}
    home = "llm" if variant in ("everything", "two namespaces") else NAMESPACE
    worker, other = (home, _WORKER), (home, {**_WORKER, "tandem.dev/pool": "prefill"})
    operator, router = ends["tandem-operator"], ends["tandem-router"]
    assert open_between(objects, router, worker, 7400)
    assert open_between(objects, worker, other, 7401)
    assert open_between(objects, operator, router, 8443)
    assert open_between(objects, worker, router, 8000), "the gate of a rollout"
    assert open_between(objects, ("keda", {"app": "keda-operator"}), operator, 9090)
    assert open_between(objects, ("monitoring", {"app": "prometheus"}), worker, 7480)
    assert open_between(objects, ("monitoring", {"app": "prometheus"}), router, 8001)
    for end in (operator, router):
        assert open_between(objects, end, ("kube-system", {"k8s-app": "kube-dns"}), 53)
    if "tandem-redis" in ends:
        assert open_between(objects, router, ends["tandem-redis"], 6379)
        assert open_between(objects, worker, ends["tandem-redis"], 6379)
        assert not open_between(objects, ("else", {"app": "x"}), ends["tandem-redis"], 6379)
    if "tandem-kv-store" in ends:
        store = ends["tandem-kv-store"]
        assert open_between(objects, router, store, 7400)
        assert open_between(objects, store, worker, 7400)
        assert open_between(objects, worker, store, 7401)


API_SERVER = ("", {"ip": "192.0.2.1"})
HUB = ("", {"ip": "198.51.100.7"})
COLLECTOR = ("observability", {"app": "collector"})


def connections(variant: str, ends: dict[str, tuple[str, Json]]) -> list[tuple[str, str, int]]:
    """Every connection that the processes of an installation make, by the names of both ends, and its port."""
    secure = variant != "no TLS"
    made = [
        ("tandem-operator", "tandem-router", 8443 if secure else 8000),
        ("tandem-router", "worker", 7400),
        *(("worker", "other worker", port) for port in (7400, 7401, 7402, 20_000)),
        # Gates of rollouts have the labels of workers.
        ("worker", "tandem-router", 8000),
        ("client", "tandem-router", 8000),
        ("client", "tandem-router", 9000),
        ("KEDA", "tandem-operator", 9090),
        ("Prometheus", "tandem-operator", 8080),
        ("Prometheus", "tandem-router", 8001),
        ("Prometheus", "worker", 7480),
        *((name, "API server", 6443) for name in ("tandem-operator", "tandem-router", "tandem-kv-store")),
        *((name, "DNS", 53) for name in ("tandem-operator", "tandem-router", "tandem-kv-store", "worker")),
        *((name, "hub", 443) for name in ("tandem-operator", "tandem-router", "worker")),
        *((name, "tandem-redis", 6379) for name in ("tandem-router", "tandem-kv-store", "worker")),
        ("tandem-router", "tandem-kv-store", 7400),
        ("tandem-kv-store", "worker", 7400),
        ("tandem-kv-store", "worker", 7401),
        ("worker", "tandem-kv-store", 7401),
        ("Prometheus", "tandem-kv-store", 7480),
    ]
    if variant == "everything":
        made += [(name, "collector", 4319) for name in ("tandem-operator", "tandem-router", "worker")]
    return [each for each in made if {each[0], each[1]} <= ends.keys()]


@pytest.mark.parametrize(
    "variant",
    ["defaults", "everything", "two namespaces", "all namespaces", "a store in memory", "no TLS", "cert-manager"],
)
def test_policies_let_through_every_connection_that_is_made_and_no_other(variant: str) -> None:
    objects = RENDERED[variant]
    home = "llm" if variant in ("everything", "two namespaces") else NAMESPACE
    ends: dict[str, tuple[str, Json]] = {name: end for name, end, _ in pods_of(objects)}
    ends |= {
        "worker": (home, _WORKER),
        "other worker": (home, {**_WORKER, "tandem.dev/pool": "prefill"}),
        "client": ("gateways", {"app": "gateway"}),
        "KEDA": ("keda", {"app": "keda-operator"}),
        "Prometheus": ("monitoring", {"app": "prometheus"}),
        "DNS": ("kube-system", {"k8s-app": "kube-dns"}),
        "API server": API_SERVER,
        "hub": HUB,
        "collector": COLLECTOR,
    }
    made = connections(variant, ends)
    for source, target, port in made:
        assert open_between(objects, ends[source], ends[target], port), f"{source} to {target}, {port}"
    # Workers and stores are open to each other, whatever the port.
    peers = {"worker", "other worker", "tandem-kv-store"}
    ours = [name for name in ends if name.startswith("tandem-") or "worker" in name]
    for source in (*ours, "client", "KEDA", "Prometheus"):
        for target in ours:
            for port in (6379, 7400, 7401, 7480, 8001, 8080, 9090, 5432):
                plain = tuple(each.removeprefix("other ") for each in (source, target))
                known = (*plain, port) in made or {source, target} <= peers
                assert known or not open_between(objects, ends[source], ends[target], port), (source, target, port)
    assert not open_between(objects, ends["worker"], API_SERVER, 6443), "workers have nothing to ask there"


def test_a_store_runs_beside_workers_with_accelerators() -> None:
    (store,) = of_kind(RENDERED["a store in memory"], "DaemonSet")
    borne = {each["key"] for each in store["spec"]["template"]["spec"]["tolerations"]}
    assert borne == {"nvidia.com/gpu", "amd.com/gpu"}


@pytest.mark.parametrize("variant", ["defaults", "everything", "two namespaces"])
def test_strangers_cannot(variant: str) -> None:
    objects = RENDERED[variant]
    ends = {name: end for name, end, _ in pods_of(objects)}
    home = "llm" if variant in ("everything", "two namespaces") else NAMESPACE
    stranger = (home, {"app": "stranger"})
    assert not open_between(objects, stranger, (home, _WORKER), 7400)
    assert not open_between(objects, stranger, (home, _WORKER), 7401)
    assert not open_between(objects, stranger, ends["tandem-operator"], 9090)
    assert not open_between(objects, ends["tandem-router"], stranger, 5432)
    assert not open_between(objects, ("else", {"app": "client"}), ends["tandem-router"], 8001)
    asks = open_between(objects, ("else", {"app": "client"}), ends["tandem-router"], 8000)
    assert asks is (variant != "everything"), "only where clients are not named may everybody ask"
    assert open_between(objects, ("gateways", {"app": "gateway"}), ends["tandem-router"], 8000)
