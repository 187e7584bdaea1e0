"""Starts and ends a whole lab."""

import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tandem.apps.cli.ports import free_port
from tests.cluster.lab import certificates, servers
from tests.cluster.lab.http import Json, Unreachable, ask
from tests.cluster.lab.network import GATEWAY
from tests.cluster.lab.processes import Server
from tests.cluster.lab.servers import ADMIN, CONTROLLERS, SCHEDULER, Plan, Ports

ETCD_S, API_S, CONTROLLERS_S = 30.0, 120.0, 60.0
"""Bounds of each start: the API server alone takes some seconds on an idle machine."""


class Lab:
    """etcd and the API server, and controllers with the scheduler where their programs are there."""

    def __init__(self, directory: Path, programs: Mapping[str, Path], *, own_network: bool) -> None:
        address = GATEWAY if own_network else "127.0.0.1"
        names = ("localhost", "kubernetes", "kubernetes.default.svc")
        self.complete = CONTROLLERS in programs and SCHEDULER in programs
        self.directory = directory
        self.plan = Plan(
            directory,
            programs,
            Ports(*free_ports(4)),
            address,
            certificates.make(directory, sorted({"127.0.0.1", address, "10.96.0.1"}), names),
            own_network,
            self.complete,
        )
        (directory / "tokens.csv").write_text(servers.tokens_file())
        for user in (ADMIN, CONTROLLERS, SCHEDULER):
            self.kubeconfig(user).write_text(servers.kubeconfig(self.plan, user))
        self.etcd = self._server("etcd", servers.etcd(self.plan))
        self.api = self._server("kube-apiserver", servers.api_server(self.plan))
        self.others = []
        if self.complete:
            self.others.append(self._server(CONTROLLERS, servers.controllers(self.plan)))
            self.others.append(self._server(SCHEDULER, servers.scheduler(self.plan)))

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """The file with the credentials of one user."""
        return self.directory / f"{user}.kubeconfig"

    def start(self) -> None:
        """Everything, in order; raises RuntimeError with the end of a log."""
        self.etcd.start()
        self.etcd.wait_until(self._etcd_is_well, ETCD_S)
        self.start_api()

    def start_api(self) -> None:
        """With controllers and scheduler, where they do not run: while they start they end if it goes away, and a
        kubelet would start them again."""
        self.api.start()
        self.api.wait_until(self._api_is_ready, API_S)
        ended = [server for server in self.others if not server.running]
        for server in ended:
            server.start()
        ports = {CONTROLLERS: self.plan.ports.controllers, SCHEDULER: self.plan.ports.scheduler}
        for server in ended:
            url = f"https://127.0.0.1:{ports[server.name]}/healthz"
            server.wait_until(partial(_answers, url), CONTROLLERS_S)

    def restart_api(self, number: int = signal.SIGKILL) -> None:
        """End the API server, as a crash by default, and start it again on the same port."""
        self.api.stop(number)
        self.start_api()

    def stop(self) -> None:
        for server in (*reversed(self.others), self.api, self.etcd):
            server.stop(signal.SIGKILL)

    def compact(self) -> int:
        """Make etcd forget every version before the newest one, which is returned."""
        revision = int(self._etcd("kv/range", {"key": "AA=="})["header"]["revision"])
        self._etcd("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def _server(self, name: str, argv: list[str]) -> Server:
        return Server(name, argv, self.directory / f"{name}.log")

    def _etcd(self, path: str, body: dict[str, object]) -> Json:
        answer = ask("POST", f"{self.plan.etcd_url}/v3/{path}", body)
        assert answer.status == 200, answer
        return answer.body

    def _etcd_is_well(self) -> bool:
        return _answers(f"{self.plan.etcd_url}/health")

    def _api_is_ready(self) -> bool:
        return _answers(f"{self.plan.url}/readyz", servers.token_of(ADMIN))


def _answers(url: str, token: str | None = None) -> bool:
    try:
        return ask("GET", url, token=token).status == 200
    except Unreachable:
        return False


def free_ports(count: int) -> list[int]:
    """Different ports of loopback that nobody has now."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port("127.0.0.1"))
    return list(found)
