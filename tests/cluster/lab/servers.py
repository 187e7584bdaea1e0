"""The command lines of the lab's servers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.lab.certificates import PROXY, Certificates

ISSUER = "https://kubernetes.default.svc.cluster.local"
ADMIN, CONTROLLERS, SCHEDULER = "admin", "kube-controller-manager", "kube-scheduler"


@dataclass(frozen=True)
class Ports:
    """Of loopback. The API server's is on every address of the namespace."""

    etcd: int
    api: int
    controllers: int
    scheduler: int


@dataclass(frozen=True)
class Plan:
    """What the servers are told: directories, ports, and the address by which pods reach the API server."""

    directory: Path
    programs: Mapping[str, Path]
    ports: Ports
    address: str
    certificates: Certificates
    own_network: bool
    controllers: bool

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.ports.api}"

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.etcd}"


def token_of(name: str) -> str:
    """The bearer token of a user of the lab."""
    return f"lab-{name}"


def tokens_file() -> str:
    """token, user, uid and groups of everyone who is no service account."""
    rows = [f'{token_of(ADMIN)},admin,1,"system:masters"']
    rows += [f"{token_of(name)},system:{name},2" for name in (CONTROLLERS, SCHEDULER)]
    return "\n".join(rows) + "\n"


def kubeconfig(plan: Plan, user: str) -> str:
    """A kubeconfig file for one user."""
    cluster = {"server": plan.url, "certificate-authority": str(plan.certificates.authority)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token_of(user)}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
        }
    )


def etcd(plan: Plan) -> list[str]:
    return [
        str(plan.programs["etcd"]),
        f"--data-dir={plan.directory / 'etcd'}",
        f"--listen-client-urls={plan.etcd_url}",
        f"--advertise-client-urls={plan.etcd_url}",
        "--listen-peer-urls=http://127.0.0.1:0",
        # Nothing here has to survive a power cut.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(plan: Plan) -> list[str]:
    files = plan.certificates
    flags: dict[str, object] = {
        "etcd-servers": plan.etcd_url,
        "bind-address": "0.0.0.0" if plan.own_network else "127.0.0.1",
        "advertise-address": plan.address,
        "secure-port": plan.ports.api,
        "cert-dir": plan.directory / "api-server",
        "tls-cert-file": files.server,
        "tls-private-key-file": files.server_key,
        "client-ca-file": files.authority,
        "token-auth-file": plan.directory / "tokens.csv",
        "authorization-mode": "Node,RBAC",
        "service-account-issuer": ISSUER,
        "service-account-key-file": files.tokens_public,
        "service-account-signing-key-file": files.tokens_key,
        "service-cluster-ip-range": "10.96.0.0/16",
        "allow-privileged": "true",
        "endpoint-reconciler-type": "none",
        # Parts of the API that others serve, such as metrics: asked at their pods, as there is no proxy for Services.
        "enable-aggregator-routing": "true",
        "proxy-client-cert-file": files.proxy,
        "proxy-client-key-file": files.proxy_key,
        "requestheader-client-ca-file": files.proxy_authority,
        "requestheader-allowed-names": PROXY,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "v": 1,
    }
    if not plan.controllers:
        # Service accounts are made by a controller; without one no pod could be created at all.
        flags["disable-admission-plugins"] = "ServiceAccount"
    return [str(plan.programs["kube-apiserver"]), *(f"--{key}={value}" for key, value in flags.items())]


def controllers(plan: Plan) -> list[str]:
    return [
        str(plan.programs["kube-controller-manager"]),
        f"--kubeconfig={plan.directory / CONTROLLERS}.kubeconfig",
        f"--service-account-private-key-file={plan.certificates.tokens_key}",
        f"--root-ca-file={plan.certificates.authority}",
        f"--secure-port={plan.ports.controllers}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={plan.directory / 'controllers'}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        "--horizontal-pod-autoscaler-sync-period=5s",
        # A node that is gone is to be noticed within a test.
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=20s",
    ]


def scheduler(plan: Plan) -> list[str]:
    return [
        str(plan.programs["kube-scheduler"]),
        f"--kubeconfig={plan.directory / SCHEDULER}.kubeconfig",
        f"--secure-port={plan.ports.scheduler}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={plan.directory / 'scheduler'}",
        "--leader-elect=false",
    ]
