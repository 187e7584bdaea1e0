"""Tenants of the chart: each namespace has Secrets of its own, and nothing in them opens another's."""

import base64
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from control_plane.objects.worker_flags import worker_flags
from kv_transfer.index import redis_scripts
from tandem.spec.reading import read_service
from tandem.spec.service import Metadata, ModelService
from tandem.spec.tenants import read_tenants
from tests.helm import charts
from tests.helm.charts import CHART, NAMESPACE, VARIANTS, Json, helm, notes, of_kind, render, rendered
from tests.helm.secret_server import SecretServer, serving
from tests.helm.test_helm_flags import operator, router, store

TENANTS: Final = ("llm", "search")
OBJECTS: Final = rendered()["tenants"]
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="reads certificates with openssl")


@pytest.fixture
def cluster() -> Iterator[tuple[SecretServer, Any]]:
    """A cluster that remembers Secrets, and Helm's connection to it."""
    with serving() as server, helm.Config(kubeconfig_content=server.kubeconfig, namespace=NAMESPACE) as config:
        yield server, config


def secrets(objects: list[Json], namespace: str) -> dict[str, dict[str, str]]:
    """Contents by name, as they lie in one namespace."""
    found = {}
    for one in of_kind(objects, "Secret"):
        if one["metadata"]["namespace"] == namespace:
            plain = {key: base64.b64decode(value).decode() for key, value in one.get("data", {}).items()}
            found[one["metadata"]["name"]] = {**plain, **one.get("stringData", {})}
    return found


def install(server: SecretServer, objects: list[Json]) -> None:
    for secret in of_kind(objects, "Secret"):
        server.put(secret)


def service_in(namespace: str) -> ModelService:
    service = read_service(Path("deploy/examples/cpu-demo.yaml"))
    return ModelService(service.api_version, service.kind, Metadata(name="chat", namespace=namespace), service.spec)


def test_a_tenants_secrets_have_nothing_of_another() -> None:
    for namespace in TENANTS:
        assert secrets(OBJECTS, namespace).keys() == {"tandem-kv-key", "tandem-tls", "tandem-redis"}
    values = {
        place: {
            (name, key): value
            for name, data in secrets(OBJECTS, place).items()
            for key, value in data.items()
            if key != "ca.crt"
        }
        for place in (*TENANTS, NAMESPACE)
    }
    for one, other in ((TENANTS[0], TENANTS[1]), (TENANTS[0], NAMESPACE), (TENANTS[1], NAMESPACE)):
        shared = set(values[one].values()) & set(values[other].values())
        # Routers sign with the keys of those whom they serve.
        known = {value for (name, _), value in values[NAMESPACE].items() if name == "tandem-tenant-keys"}
        assert shared <= (known if other == NAMESPACE else set()), (one, other)


def test_routers_have_the_keys_of_those_whom_they_serve() -> None:
    ours = secrets(OBJECTS, NAMESPACE)
    assert ours["tandem-tenant-keys"] == {
        namespace: secrets(OBJECTS, namespace)["tandem-kv-key"]["keys"] for namespace in TENANTS
    }
    assert ours["tandem-kv-key"]["keys"] not in ours["tandem-tenant-keys"].values(), "of what routers alone read"
    settings = router("tenants")
    assert settings.tenants == ("llm=llm/*", "llm=common", "search=*")
    assert settings.tenant_keys == Path("/var/run/tandem/tenant-keys")
    (workload,) = of_kind(OBJECTS, "Deployment", "tandem-router")
    volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"]["volumes"]}
    assert volumes["tenant-keys"]["secret"]["secretName"] == "tandem-tenant-keys"
    assert settings.tenant_credentials is not None
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    mounted = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    places = {namespace: str(settings.tenant_credentials / namespace) for namespace in TENANTS}
    assert mounted[places["llm"]]["secret"]["secretName"] == "hub"
    assert places["search"] not in mounted, "it has none"
    assert "envFrom" not in container


def test_operator_and_routers_look_at_tenants_alone_and_have_no_rights_on_secrets() -> None:
    assert operator("tenants").namespace == router("tenants").namespace == TENANTS
    assert operator("tenants").installation.tenants == router("tenants").tenants
    rules = [rule for kind in ("Role", "ClusterRole") for one in of_kind(OBJECTS, kind) for rule in one["rules"]]
    assert not [rule for rule in rules if "secrets" in rule["resources"]]


def test_a_name_is_let_in_by_workers_of_its_own_namespace_alone() -> None:
    installation = operator("tenants").installation
    for namespace in TENANTS:
        service = service_in(namespace)
        flags = worker_flags(service, service.spec.pools[0], "r", installation, ("tcp",))
        given = dict(zip(flags[::2], flags[1::2], strict=True))
        assert given["--link.tls.server_name"] == f"tandem-worker.{namespace}"
        assert given["--link.tls.client_names"] == f"tandem-router,tandem-worker.{namespace}"
    assert store("tenants").link.tls.client_names == ("tandem-router", "tandem-worker.llm")
    assert store("tenants").link_tls.server_name == "tandem-worker.llm"
    assert router("tenants").link_tls.client_names == ("tandem-operator",)
    plain = service_in(NAMESPACE)
    flags = worker_flags(plain, plain.spec.pools[0], "r", operator("defaults").installation, ("tcp",))
    assert "--link.tls.client_names" not in flags
    assert flags[flags.index("--link.tls.server_name") + 1] == "tandem-worker"


@needs_openssl
def test_the_certificate_of_a_tenant_names_its_workers_and_nothing_else(tmp_path: Path) -> None:
    for namespace, names in (("llm", "DNS:tandem-worker.llm"), ("search", "DNS:tandem-worker.search")):
        (tmp_path / "tls.crt").write_text(secrets(OBJECTS, namespace)["tandem-tls"]["tls.crt"])
        (tmp_path / "ca.crt").write_text(secrets(OBJECTS, NAMESPACE)["tandem-tls"]["ca.crt"])
        asked = ["openssl", "x509", "-in", str(tmp_path / "tls.crt"), "-noout", "-ext", "subjectAltName"]
        said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
        assert [line.strip() for line in said.splitlines()[1:]] == [names]
        checked = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "tls.crt")]
        assert "OK" in subprocess.run(checked, check=True, capture_output=True, text=True).stdout


def test_users_of_redis_may_do_what_the_index_does() -> None:
    scripts = [value for name, value in vars(redis_scripts).items() if name.isupper() and "redis.call" in str(value)]
    asked = {each for script in scripts for each in re.findall(r"\bcall\('([A-Z]+)'", script)}
    assert len(asked) > 10
    (users,) = of_kind(OBJECTS, "Secret", "tandem-redis-users")
    for line in users["stringData"]["users.acl"].splitlines()[1:]:
        assert {"+eval", "+evalsha", "+script|load", "+role", "+info"} <= set(line.split())
        assert {f"+{each.lower()}" for each in asked} <= set(line.split())


def test_redis_has_a_user_for_each_with_keys_of_its_own() -> None:
    (users,) = of_kind(OBJECTS, "Secret", "tandem-redis-users")
    lines = users["stringData"]["users.acl"].splitlines()
    assert lines[0] == "user default on nopass resetkeys resetchannels -@all +ping"
    found = {}
    for line in lines[1:]:
        _, name, _, hashed, *rest = line.split()
        found[name] = (hashed, [each for each in rest if each.startswith("~")])
    places = {"routers": NAMESPACE, "tenant-llm": "llm", "tenant-search": "search"}
    assert found.keys() == places.keys()
    for name, place in places.items():
        own = secrets(OBJECTS, place)["tandem-redis"]
        assert own["url"] == f"redis://{name}:{own['password']}@tandem-redis.{NAMESPACE}:6379/0"
        assert found[name][0] == f"#{hashlib.sha256(own['password'].encode()).hexdigest()}"
    assert {name: keys for name, (_, keys) in found.items()} == {
        "routers": ["~tandem:*", "~llm.*", "~search.*"],
        "tenant-llm": ["~llm.*"],
        "tenant-search": ["~search.*"],
    }


@pytest.mark.parametrize("written", ["x", "", "abcd", "0" * 63, " ".join(["0" * 64] * 3), "0" * 64 + "\ny"])
def test_what_a_tenant_wrote_for_its_key_is_replaced_where_it_is_none(
    cluster: tuple[SecretServer, Any], written: str
) -> None:
    server, config = cluster
    objects = render(VARIANTS["tenants"], config=config)
    install(server, objects)
    keys = {place: secrets(objects, place)["tandem-kv-key"]["keys"] for place in (NAMESPACE, *TENANTS)}
    (own,) = [one for one in of_kind(objects, "Secret", "tandem-kv-key") if one["metadata"]["namespace"] == "llm"]
    server.put({**own, "data": {"keys": base64.b64encode(written.encode()).decode()}})
    again = render(VARIANTS["tenants"], config=config, upgrade=True)
    drawn = secrets(again, "llm")["tandem-kv-key"]["keys"]
    assert re.fullmatch("[0-9a-f]{64}", drawn)
    assert secrets(again, NAMESPACE)["tandem-tenant-keys"] == {"llm": drawn, "search": keys["search"]}
    assert secrets(again, NAMESPACE)["tandem-kv-key"]["keys"] == keys[NAMESPACE]


def test_a_key_that_is_being_rotated_stays(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    objects = render(VARIANTS["tenants"], config=config)
    install(server, objects)
    (own,) = [one for one in of_kind(objects, "Secret", "tandem-kv-key") if one["metadata"]["namespace"] == "llm"]
    two = "0A" * 16 + "\n" + "1" * 64 + "\n"
    server.put({**own, "data": {"keys": base64.b64encode(two.encode()).decode()}})
    again = render(VARIANTS["tenants"], config=config, upgrade=True)
    assert secrets(again, "llm")["tandem-kv-key"]["keys"] == two


def test_a_store_that_is_off_gives_its_namespace_no_secrets_and_redis_no_user() -> None:
    """Redis does not start with two users of one name, and that namespace would have those of routers."""
    objects = render({**VARIANTS["tenants"], "kvStore": {"enabled": False, "namespace": "old"}})
    assert secrets(objects, "old") == {}
    (users,) = of_kind(objects, "Secret", "tandem-redis-users")
    names = [line.split()[1] for line in users["stringData"]["users.acl"].splitlines()]
    assert sorted(names) == ["default", "routers", "tenant-llm", "tenant-search"]


def test_secrets_of_tenants_stay_and_a_new_tenant_gets_its_own(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    first = render(VARIANTS["tenants"], config=config)
    install(server, first)
    more = {
        **VARIANTS["tenants"],
        "tenants": [*VARIANTS["tenants"]["tenants"], {"namespace": "new", "models": ["n"]}],
    }
    again = render(more, config=config, upgrade=True)
    for namespace in TENANTS:
        assert secrets(again, namespace) == secrets(first, namespace)
    assert secrets(again, NAMESPACE)["tandem-tls"] == secrets(first, NAMESPACE)["tandem-tls"]
    assert secrets(again, NAMESPACE)["tandem-tenant-keys"].keys() == {*TENANTS, "new"}
    before, after = (of_kind(objects, "Deployment", "tandem-redis")[0] for objects in (first, again))
    noted = [one["spec"]["template"]["metadata"]["annotations"] for one in (before, after)]
    assert noted[0] != noted[1], "it reads its users when it starts"


def test_redis_starts_anew_where_its_users_may_do_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise routers and workers of a new version would be refused what only the file allows them."""
    copied = shutil.copytree(CHART, tmp_path / "tandem")
    names = copied / "templates" / "_names.tpl"
    names.write_text(names.read_text("utf-8").replace("\n+ping +role ", "\n+ping +role +llen "), "utf-8")
    monkeypatch.setattr(charts, "CHART", copied)
    changed = render(VARIANTS["tenants"])
    (users,) = of_kind(changed, "Secret", "tandem-redis-users")
    assert "+llen" in users["stringData"]["users.acl"]
    noted = [
        of_kind(objects, "Deployment", "tandem-redis")[0]["spec"]["template"]["metadata"]["annotations"]
        for objects in (OBJECTS, changed)
    ]
    assert noted[0] != noted[1]


def test_a_namespace_that_becomes_a_tenants_keeps_nothing_that_it_shared(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    shared = render({"namespaces": list(TENANTS), "redis": {"enabled": True}}, config=config)
    install(server, shared)
    parted = render(VARIANTS["tenants"], config=config, upgrade=True)
    for namespace in TENANTS:
        before, after = secrets(shared, namespace), secrets(parted, namespace)
        assert before["tandem-kv-key"] != after["tandem-kv-key"]
        assert before["tandem-tls"]["tls.key"] != after["tandem-tls"]["tls.key"]
    before, after = secrets(shared, NAMESPACE), secrets(parted, NAMESPACE)
    assert before["tandem-ca"] != after["tandem-ca"], "a tenant has a certificate of routers by the old one"
    for name, key in (("tandem-tls", "tls.key"), ("tandem-kv-key", "keys")):
        assert before[name][key] != after[name][key]
    install(server, parted)
    again = render(VARIANTS["tenants"], config=config, upgrade=True)
    for place in (NAMESPACE, *TENANTS):
        assert secrets(again, place) == secrets(parted, place)
    keys = [secrets(parted, namespace)["tandem-kv-key"]["keys"] for namespace in (NAMESPACE, *TENANTS)]
    assert len(set(keys)) == 3


def test_cert_manager_makes_a_certificate_for_each() -> None:
    objects = rendered()["tenants of a cluster's issuer"]
    names = {one["metadata"]["namespace"]: one["spec"] for one in of_kind(objects, "Certificate")}
    assert names["llm"]["dnsNames"] == ["tandem-worker.llm"]
    assert "ipAddresses" not in names["llm"]
    assert "commonName" not in names["llm"], "of at most 64 bytes, while a namespace alone may have 63"
    assert names[NAMESPACE]["commonName"] == "tandem-worker"
    assert "tandem-router" in names[NAMESPACE]["dnsNames"]
    assert of_kind(objects, "Secret") == []


_TENANT: Final[Json] = {"tenants": [{"namespace": "llm", "models": ["*"]}]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**_TENANT, "namespaces": ["llm"]}, "leave namespaces and allNamespaces out"),
        ({**_TENANT, "allNamespaces": True}, "leave namespaces and allNamespaces out"),
        ({"tenants": [{"namespace": NAMESPACE, "models": ["*"]}]}, "is the namespace of the release"),
        ({"tenants": _TENANT["tenants"] * 2}, "each namespace may be named once"),
        ({**_TENANT, "kvStore": {"enabled": True, "modelService": "chat"}}, "name the tenant's namespace"),
        ({**_TENANT, "redis": {"url": "redis://cache"}}, "the Redis at redis.url knows no users"),
        ({**_TENANT, "kvKey": {"existingSecret": "key"}}, "name it in kvKey.tenantsSecret"),
        (
            {**_TENANT, "gitops": True, "tls": {"enabled": False}},
            "make a Secret with a key of its own of 64 hexadecimal digits",
        ),
        ({**_TENANT, "router": {"cache": {"credentialsSecret": "hub"}}}, "in tenants[].credentialsSecret"),
        ({"tenants": [{"namespace": "llm", "models": []}]}, "models"),
        ({"tenants": [{"namespace": "llm"}]}, "models"),
        ({"tenants": [{"namespace": "llm", "models": ["a,b"]}]}, "models"),
    ],
)
def test_what_would_not_part_them_is_refused(values: Json, said: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        render(values)
    assert said in str(caught.value)


def test_notes_show_a_service_that_the_first_tenant_may_have() -> None:
    said = notes(VARIANTS["tenants"])
    (shown,) = re.findall(r"<<YAML\n(.*?)\n *YAML", said, re.DOTALL)
    service = yaml.safe_load(shown)
    assert service["metadata"]["namespace"] == "llm"
    assert read_tenants(router("tenants").tenants).refused(service) is None
    assert f'"model": "{service["spec"]["model"]["name"]}"' in said


def test_gitops_draws_no_passwords() -> None:
    given = {
        **VARIANTS["tenants of a cluster's issuer"],
        "gitops": True,
    }
    assert render(given) == render(given)
    with pytest.raises(helm.HelmError, match="take a Redis of your own and"):
        render({**given, "redis": {"enabled": True}})
