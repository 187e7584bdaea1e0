"""What `tandem up --on ray` is told, and what it refuses before it asks any cluster."""

import socket
import sys
from pathlib import Path

import pytest
import yaml

from tandem.apps.cli import main as tandem
from tandem.apps.ray import cluster
from tandem.apps.ray.up_options import host_and_port, parse, read_for_ray
from tandem.core.errors import TandemError


def written(folder: Path, **spec: object) -> Path:
    """The file of a service with one unified pool and these further fields."""
    pools = [{"name": "all", "role": "unified", "replicas": 2}]
    service = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat"},
        "spec": {"engine": {"type": "simulated"}, "pools": pools, **spec},
    }
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump(service))
    return path


def refusal(*arguments: str) -> str:
    with pytest.raises(TandemError) as refused:
        parse(arguments)
    assert refused.value.code == "bad_setting"
    return refused.value.message


def test_what_is_not_said_has_defaults(tmp_path: Path) -> None:
    options = parse(("--on", "ray", str(written(tmp_path))))
    settings = options.settings
    assert (settings.address, settings.ingress, settings.routers) == ("auto", "haproxy", None)
    assert (settings.route_prefix, settings.keep, settings.vllm_python) == ("/", False, None)
    assert settings.given == frozenset()
    assert options.service.spec.router.port == 8000


def test_what_is_said_is_taken_over(tmp_path: Path) -> None:
    file = written(tmp_path)
    flags = (
        "--address ray://head:10001 --ingress direct --routers 3 --route-prefix /llm --vllm-python /v/python --keep"
    )
    options = parse(("--on", "ray", *flags.split(), "--port", "9000", str(file)))
    settings = options.settings
    assert (settings.address, settings.ingress, settings.routers) == ("ray://head:10001", "direct", 3)
    assert (settings.route_prefix, settings.keep, settings.vllm_python) == ("/llm", True, "/v/python")
    assert options.reread().spec.router.port == 9000
    assert settings.given == {"ingress", "routers", "route_prefix", "vllm_python"}


def test_a_default_that_is_said_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    settings = parse(("--ingress", "haproxy", "--route-prefix", "/llm/", str(written(tmp_path)))).settings
    assert (settings.ingress, settings.route_prefix) == ("haproxy", "/llm")
    assert settings.given == {"ingress", "route_prefix"}


def test_routers_with_keys_need_one_by_which_the_hub_asks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--api-keys", "/etc/keys.json", str(written(tmp_path)))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "set OPENAI_API_KEY to a key of that file with" in refusal(*arguments)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    settings = parse(arguments).settings
    assert (settings.api_keys, settings.router_key) == ("/etc/keys.json", "secret")


def test_a_file_that_cannot_be_on_ray_is_refused_by_its_path(tmp_path: Path) -> None:
    said = refusal("--on", "ray", str(written(tmp_path, store={"dram": "1Gi"})))
    assert "service.yaml: spec.store is not for Ray" in said
    assert "clients need a port" in refusal("--on", "ray", str(written(tmp_path, router={"port": 0})))
    with pytest.raises(TandemError, match="cannot be read"):
        read_for_ray(tmp_path / "none.yaml")


@pytest.mark.parametrize("address", ["head", "head:", "ray://head", "head:http", "head:70000", ":1"])
def test_what_is_no_address_is_refused(address: str, tmp_path: Path) -> None:
    assert "expected auto, HOST:PORT or ray://HOST:PORT" in refusal("--address", address, str(written(tmp_path)))


def test_other_flags_that_cannot_be_are_refused(tmp_path: Path) -> None:
    file = str(written(tmp_path))
    assert "at least 1" in refusal("--routers", "0", file)
    assert "begins with a slash" in refusal("--route-prefix", "llm", file)


def test_addresses_are_read() -> None:
    assert host_and_port("ray://head:10001") == ("head", 10001)
    assert host_and_port("[::1]:6379") == ("::1", 6379)


def test_without_ray_the_command_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert tandem.main(("up", str(written(tmp_path)), "--on", "ray")) == tandem.USAGE_ERROR
    assert capsys.readouterr().err == (
        "tandem up: Ray is not installed here; run `pip install 'tandem-serve[ray]'`\n"
    )


def test_a_cluster_that_does_not_listen_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TandemError) as refused, cluster.connected(f"127.0.0.1:{port}"):
        pass
    assert refused.value.code == "link_lost"
    assert f"127.0.0.1:{port} cannot be reached" in refused.value.message
    assert "use ray://HOST:10001" in refused.value.message


def test_the_ports_of_the_ingress_lie_above_that_of_clients() -> None:
    ports = cluster.ingress_ports(8000)
    assert (ports.http, ports.statistics, ports.metrics, ports.fallback) == (8000, 8404, 8101, 8500)
    with pytest.raises(TandemError, match="too high"):
        cluster.ingress_ports(65100)
