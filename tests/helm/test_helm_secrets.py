"""Keys and certificates of the chart: random, good for the processes that read them, and kept over upgrades."""

import asyncio
import base64
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from kv_transfer.key_file import read_keyring
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.link.dialer import open_dialer
from tandem.link.protocol import WorkerLink
from tandem.link.servers import open_server
from tandem.process.tls_settings import TlsSettings
from tests.helm.charts import CHART, NAMESPACE, RELEASE, VARIANTS, Json, helm, of_kind, render
from tests.helm.secret_server import SecretServer, serving

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="reads certificates with openssl")
_NAMES: Final = ("tandem-kv-key", "tandem-ca", "tandem-tls")


@pytest.fixture
def cluster() -> Iterator[tuple[SecretServer, Any]]:
    """A cluster that remembers Secrets, and Helm's connection to it."""
    with serving() as server, helm.Config(kubeconfig_content=server.kubeconfig, namespace=NAMESPACE) as config:
        yield server, config


def data(objects: list[Json], name: str, namespace: str = NAMESPACE) -> dict[str, str]:
    (secret,) = (one for one in of_kind(objects, "Secret", name) if one["metadata"]["namespace"] == namespace)
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def installed(server: SecretServer, objects: list[Json]) -> None:
    for secret in of_kind(objects, "Secret"):
        server.put(secret)


def test_keys_are_random_and_stay(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    first, other = render(config=config), render(config=config)
    for name in _NAMES:
        assert data(first, name) != data(other, name), "what is drawn twice is drawn anew"
    installed(server, first)
    for _ in range(2):
        again = render({"router": {"replicas": 3}}, config=config, upgrade=True)
        assert {name: data(again, name) for name in _NAMES} == {name: data(first, name) for name in _NAMES}
        installed(server, again)


def test_a_namespace_that_comes_later_gets_the_same_keys(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    first = render(config=config)
    installed(server, first)
    wider = render({"namespaces": [NAMESPACE, "llm"]}, config=config, upgrade=True)
    for name in ("tandem-kv-key", "tandem-tls"):
        assert data(wider, name, "llm") == data(wider, name) == data(first, name)
    assert [one["metadata"]["namespace"] for one in of_kind(wider, "Secret", "tandem-ca")] == [NAMESPACE]


def test_rotation_issues_a_certificate_of_the_same_authority(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    first = render(config=config)
    installed(server, first)
    rotated = render({"tls": {"rotation": "2026-11"}}, config=config, upgrade=True)
    assert data(rotated, "tandem-ca") == data(first, "tandem-ca")
    assert data(rotated, "tandem-tls")["ca.crt"] == data(first, "tandem-tls")["ca.crt"]
    assert data(rotated, "tandem-tls")["tls.crt"] != data(first, "tandem-tls")["tls.crt"]
    assert data(rotated, "tandem-kv-key") == data(first, "tandem-kv-key")
    installed(server, rotated)
    again = render({"tls": {"rotation": "2026-11"}}, config=config, upgrade=True)
    assert data(again, "tandem-tls") == data(rotated, "tandem-tls")


def test_a_certificate_that_lacks_a_name_is_issued_again(cluster: tuple[SecretServer, Any]) -> None:
    server, config = cluster
    first = render(config=config)
    for secret in of_kind(first, "Secret"):
        # As a version of the chart left it that knew fewer names.
        secret["metadata"]["annotations"].pop("tandem.dev/names", None)
        server.put(secret)
    upgraded = render(config=config, upgrade=True)
    assert data(upgraded, "tandem-tls")["ca.crt"] == data(first, "tandem-tls")["ca.crt"]
    assert data(upgraded, "tandem-tls")["tls.crt"] != data(first, "tandem-tls")["tls.crt"]
    installed(server, upgraded)
    assert data(render(config=config, upgrade=True), "tandem-tls") == data(upgraded, "tandem-tls")


_GITOPS: Final[Json] = {
    "cert-manager": {"tls": {"source": "certManager"}},
    "existing": {"tls": {"source": "existing", "existingSecret": "certificates"}},
    "no TLS": {"tls": {"enabled": False}},
}


@pytest.mark.parametrize("tls", _GITOPS)
@pytest.mark.parametrize("base", ["everything", "defaults"])
def test_gitops_renders_the_same_bytes_every_time(base: str, tls: str) -> None:
    issuer = {"tls": {"certManager": {"issuerRef": {"name": "company"}}}} if tls == "cert-manager" else {}
    given = {**VARIANTS[base], **_GITOPS[tls], "gitops": True, "kvKey": {"existingSecret": "key"}}
    given["tls"] = {**given["tls"], **issuer.get("tls", {})}

    def texts() -> dict[str, str]:
        with helm.Chart.load(CHART) as chart:
            found: dict[str, str] = chart.render(given, name=RELEASE, namespace=NAMESPACE)
        return found

    assert texts() == texts()
    names = {one["metadata"]["name"] for one in of_kind(render(given), "Secret")}
    assert names <= {"tandem-redis"}, "which has what values say"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"tls": {"enabled": False}},
            rf"a key of 64 hexadecimal digits under `keys` in each namespace \({NAMESPACE}\), and name it in kvKey",
        ),
        ({"kvKey": {"existingSecret": "key"}}, "tls.source chart would draw other certificates with each rendering"),
        (
            {"kvKey": {"existingSecret": "key"}, "tls": {"source": "existing"}},
            "tls.source is existing: name the Secret in tls.existingSecret",
        ),
    ],
)
def test_gitops_refuses_what_would_be_drawn(values: Json, said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        render({"gitops": True, **values})


def test_secrets_outlive_the_release() -> None:
    for name in _NAMES:
        (secret,) = of_kind(render(), "Secret", name)
        assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_key_is_one_that_workers_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(data(render(), "tandem-kv-key")["keys"])
    assert len(bytes.fromhex(path.read_text())) == 32
    read_keyring(path)


def _files(folder: Path, values: dict[str, str], server_name: str | None = None) -> TlsSettings:
    for name, text in values.items():
        (folder / name).write_text(text)
    return TlsSettings(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", server_name)


@needs_openssl
def test_the_certificate_is_the_authoritys_and_names_what_is_dialed(tmp_path: Path) -> None:
    _files(tmp_path, data(render({"tls": {"certificateDays": 30}}), "tandem-tls"))

    def asked(*arguments: str) -> str:
        ran = subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return ran.stdout

    for name in ("tandem-worker", f"tandem-operator.{NAMESPACE}", f"tandem-operator.{NAMESPACE}.svc"):
        assert "OK" in asked("verify", "-CAfile", "ca.crt", "-verify_hostname", name, "tls.crt")
    assert "will not expire" in asked("x509", "-in", "tls.crt", "-noout", "-checkend", str(29 * 86_400))
    with pytest.raises(subprocess.CalledProcessError):
        asked("x509", "-in", "tls.crt", "-noout", "-checkend", str(31 * 86_400))


async def test_routers_and_workers_meet_with_the_charts_certificates(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    ours = _files(tmp_path, data(render(), "tandem-tls"), "tandem-worker")
    theirs = _files(tmp_path / "theirs", data(render(), "tandem-tls"), "tandem-worker")

    async def accept(link: WorkerLink) -> None:
        with suppress(TandemError):
            while True:
                await link.tokens.receive()

    # Over an address that no certificate has, as pods have it.
    server = open_server("127.0.0.2:0", None, ours, 2.0)
    address = await server.start(accept)
    async with asyncio.timeout(10.0):
        link = await open_dialer("router", SeededEntropy(1), ours).dial(address, 5.0)
        with pytest.raises(TandemError):
            await open_dialer("stranger", SeededEntropy(2), theirs).dial(address, 2.0)
        link.close("done")
        await server.stop()


def test_certificates_of_cert_manager_are_what_processes_expect() -> None:
    objects = render({"tls": {"source": "certManager"}})
    assert of_kind(objects, "Secret", "tandem-tls") == []
    (certificate,) = of_kind(objects, "Certificate", "tandem-tls")
    assert certificate["spec"]["secretName"] == "tandem-tls"
    assert "tandem-worker" in certificate["spec"]["dnsNames"]
    assert set(certificate["spec"]["usages"]) == {"server auth", "client auth"}
    assert certificate["spec"]["issuerRef"]["name"] == "tandem-ca"
    assert {one["metadata"]["name"] for one in of_kind(objects, "Issuer")} == {"tandem-selfsigned", "tandem-ca"}
    company = {"tls": {"source": "certManager", "certManager": {"issuerRef": {"name": "company"}}}}
    asked = render({"namespaces": ["llm", "search"], **company})
    assert of_kind(asked, "Issuer") == []
    assert {one["metadata"]["namespace"] for one in of_kind(asked, "Certificate")} == {NAMESPACE, "llm", "search"}
    assert {one["spec"]["issuerRef"]["kind"] for one in of_kind(asked, "Certificate")} == {"ClusterIssuer"}
