"""`tandem doctor [CHECK …]`: what this machine or pod lacks for Tandem, each with its cure."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.apps.cli.doctor import node
from tandem.apps.cli.doctor.findings import Finding, problem, unchecked
from tandem.apps.cli.doctor.node_reading import HERE, Probes
from tandem.apps.cli.doctor.unwatched import CHECK as SERVICES
from tandem.apps.cli.doctor.unwatched import look_for_unwatched
from tandem.core.errors import TandemError


@dataclass(frozen=True)
class Asked:
    """The checks to make, all of them without `names`. What cannot be checked is a problem only where its check is in
    `names`. `kubeconfig` is the way to a cluster; None takes the service account of this pod."""

    names: tuple[str, ...] = ()
    disk: Path | None = None
    source: str | None = None
    kubeconfig: str | None = None

    def wants(self, name: str) -> bool:
        return not self.names or name in self.names


def examine_node(asked: Asked, probes: Probes = HERE) -> tuple[Finding, ...]:
    """Findings about this machine, in the order of `CHECKS`. Reads only what the checks that are wanted need."""
    return tuple(_judged(name, CHECKS[name](asked, probes), asked) for name in CHECKS if asked.wants(name))


def _judged(name: str, found: Finding, asked: Asked) -> Finding:
    """What was asked for by name and cannot be checked is a problem."""
    missing = found.verdict == "not checked" and name in asked.names
    return problem(found.check, "", found.said, found.advice) if missing else found


def _disk(asked: Asked, probes: Probes) -> Finding:
    return node.disk(None if asked.disk is None else probes.disk(asked.disk))


def _registry(asked: Asked, probes: Probes) -> Finding:
    return node.registry(None if asked.source is None else probes.access(asked.source))


def _services(asked: Asked, _probes: Probes) -> Finding:
    if SERVICES not in asked.names and asked.kubeconfig is None:
        return unchecked(SERVICES, "", "no cluster was named", "ask for it by name, or with --kubeconfig FILE")
    try:
        return asyncio.run(_of_cluster(asked.kubeconfig))
    except TandemError as error:
        return problem(
            SERVICES, "", error.message, "give --kubeconfig FILE, or run it in a pod with a service account"
        )


async def _of_cluster(kubeconfig: str | None) -> Finding:
    # Imported on use: the extra `kubernetes` is not everywhere.
    try:
        from tandem.kube.kube_cluster import connect
    except ImportError as error:
        raise TandemError("bad_setting", f"the extra `kubernetes` is not installed here ({error})") from error
    cluster = await connect(kubeconfig)
    try:
        return await look_for_unwatched(cluster, time.time())
    finally:
        await cluster.close()


CHECKS: Mapping[str, Callable[[Asked, Probes], Finding]] = {
    "gpus": lambda _, probes: node.gpus(probes.gpus()),
    "rdma": lambda _, probes: node.rdma(probes.rdma()),
    "memlock": lambda _, probes: node.memlock(probes.locked(), probes.rdma()),
    "shm": lambda _, probes: node.shared_memory(probes.shm_bytes(), len(probes.gpus().names)),
    "clock": lambda _, probes: node.clock(probes.clock()),
    "mtu": lambda _, probes: node.mtu(probes.interfaces()),
    "ucx": lambda _, probes: node.ucx(probes.ucx(), probes.rdma()),
    "disk": _disk,
    "registry": _registry,
    SERVICES: _services,
}
"""All checks of a node or a pod, by name."""


def asked_for(names: Sequence[str], disk: Path | None, source: str | None, kubeconfig: str | None) -> Asked:
    """Raises `bad_setting` for a check that there is not."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        said = f"there is no check {', '.join(unknown)}; there are {', '.join(CHECKS)}"
        raise TandemError("bad_setting", said, param="CHECK")
    return Asked(tuple(names), disk, source, kubeconfig)
