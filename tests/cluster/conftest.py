"""Tests against a real Kubernetes control plane. Collected only where they are asked for (`make test-cluster`):
building its programs takes long the first time.
"""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tandem.kube.kube_cluster import KubeCluster, connect
from tests.cluster.lab import network
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.lab import Lab
from tests.cluster.lab.nodes import node, wait_until_ready
from tests.cluster.lab.processes import Server
from tests.cluster.scenario.helm import CHARTS, Helm
from tests.cluster.scenario.platform import Platform
from tests.cluster.scenario.spans import Spans, collector
from tools import cluster_binaries
from tools.cluster_binaries import PROGRAMS, SERVER

COLLECTOR = f"{network.GATEWAY}:4317"
"""Where pods send their spans."""
_HERE = Path(__file__).parent
_names = itertools.count(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Everything here, unless a path on the command line leads here."""
    if collection_path != _HERE and _HERE not in collection_path.parents:
        return None
    asked = (Path(str(argument).split("::")[0]).resolve() for argument in config.invocation_params.args)
    return None if any(path == _HERE or _HERE in path.parents for path in asked) else True


@pytest.fixture(scope="session")
def pods_run() -> None:
    """Skips where pods cannot be run as processes; where they can, this process has a network of its own."""
    reason = network.why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A control plane for all tests of this run."""
    found = {name: cluster_binaries.find(name) for name in PROGRAMS}
    programs = {name: path for name, path in found.items() if path is not None}
    missing = [name for name in SERVER if name not in programs]
    if missing and not cluster_binaries.can_build():
        pytest.skip(
            f"no {' and no '.join(missing)}: neither KUBEBUILDER_ASSETS has them, nor is there Go to build them"
        )
    assert not missing, f"{', '.join(missing)} to be built first: make cluster-binaries"
    own_network = network.why_not() is None
    if own_network:
        network.enter()
    lab = Lab(tmp_path_factory.mktemp("lab"), programs, own_network=own_network)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


@pytest.fixture(scope="session")
def complete_lab(lab: Lab) -> Lab:
    """The same with controllers and scheduler, skipped where they are not built."""
    if not lab.complete:
        pytest.skip("kube-controller-manager and kube-scheduler are not built: make test-cluster-full")
    return lab


@pytest.fixture(scope="session")
def admin(lab: Lab) -> Admin:
    return Admin(lab.plan.url)


@pytest.fixture
async def cluster(lab: Lab) -> AsyncIterator[KubeCluster]:
    """The cluster seam as the operator uses it."""
    connected = await connect(str(lab.kubeconfig()))
    yield connected
    await connected.close()


@pytest.fixture
def namespace(admin: Admin) -> str:
    """One of the test's own."""
    return admin.namespace(f"test-{next(_names)}")


@pytest.fixture(scope="session")
def nodes(pods_run: None, complete_lab: Lab, admin: Admin) -> Iterator[list[Server]]:
    """Two nodes with eight accelerators each, ready for pods."""
    servers = [node(complete_lab, number, {"nvidia.com/gpu": "8"}) for number in range(2)]
    try:
        for server in servers:
            server.start()
        wait_until_ready(admin, servers)
        yield servers
    finally:
        for server in servers:
            server.stop()


@pytest.fixture(scope="session")
def helm(lab: Lab) -> Helm:
    program = cluster_binaries.find("helm")
    if program is None:
        pytest.skip("helm is not built: make cluster-binaries")
    return Helm(program, lab.kubeconfig(), lab.directory)


@pytest.fixture(scope="session")
def spans(pods_run: None, lab: Lab) -> Iterator[Spans]:
    """What routers and workers of the platform tell of themselves."""
    with collector(COLLECTOR) as spans:
        yield spans


@pytest.fixture(scope="session")
def platform(nodes: list[Server], complete_lab: Lab, admin: Admin, helm: Helm, spans: Spans) -> Platform:
    """Both charts installed: two operators and two routers, ready."""
    release = ("--namespace", "tandem", "--create-namespace")
    # The definitions may be there already, applied by a test without Helm.
    helm("install", "tandem-crds", str(CHARTS / "tandem-crds"), *release, "--take-ownership")
    # Without a proxy for Services their ports are those of the pods.
    values = ("--set", "router.service.port=8000", "--set", f"telemetry.otlpEndpoint=http://{COLLECTOR}")
    helm("install", "tandem", str(CHARTS / "tandem"), *release, *values, "--wait", "--timeout", "120s")
    return Platform(complete_lab, admin, "tandem")
