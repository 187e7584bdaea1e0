"""`tandem doctor [CHECK ...]`: checks what this machine or pod has for Tandem: GPUs, RDMA, locked memory, clock and
so on, each with the cure. `tandem doctor --dry-run FILE`: checks whether a ModelService would work, without a GPU, a
cluster or its weights.

The exit status is 1 when something is wrong, or absent that was asked for by name. A fact that cannot be known here
is reported as "not checked", with the way to check it.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tandem.apps.cli.doctor import checks
from tandem.apps.cli.doctor.cases import Case, Host, case_of
from tandem.apps.cli.doctor.engine_checks import Resolve, engine_findings
from tandem.apps.cli.doctor.findings import Finding, healthy, text_of
from tandem.apps.cli.doctor.node_command import CHECKS, asked_for, examine_node
from tandem.apps.cli.local_model import model_config, model_directory
from tandem.apps.cli.ports import check_free
from tandem.apps.cli.single_node import local_source
from tandem.core.errors import TandemError
from tandem.devices.reading import read_topology
from tandem.engine.vllm.dry_run import resolve
from tandem.spec.reading import read_service
from tandem.spec.service import ModelService
from tandem.worker.host_memory import host_memory_bytes


def main(arguments: Sequence[str]) -> int:
    """0 when nothing that could be checked is wrong. Raises `bad_setting` for a check that there is not."""
    parser = argparse.ArgumentParser(prog="tandem doctor", description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)}; by default all")
    parser.add_argument("--disk", type=Path, metavar="DIR", help="a directory to write 256 MiB to, and to read them")
    parser.add_argument("--source", help="a model whose files are to be listed, as in model.source")
    parser.add_argument("--kubeconfig", metavar="FILE", help="cluster of the check `services`; by default a pod's")
    parser.add_argument("--dry-run", type=Path, metavar="FILE", help="a ModelService in YAML")
    parser.add_argument("--model", type=Path, help="a directory with the model's config.json, if FILE's is not here")
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    given = parser.parse_args(arguments)
    if given.dry_run is None:
        findings = examine_node(asked_for(given.checks, given.disk, given.source, given.kubeconfig))
    elif given.checks:
        parser.error("--dry-run FILE judges a file, and CHECK this machine: give one of them")
    else:
        service = read_service(given.dry_run)
        directory = given.model or model_directory(local_source(service.spec.model.source))
        findings = examine(service, directory, host_of(service))
    if given.json:
        sys.stdout.write(msgspec.json.encode(findings).decode() + "\n")
    else:
        print(text_of(findings))
    return 0 if healthy(findings) else 1


def examine(
    service: ModelService, directory: Path | None, host: Host, resolving: Resolve = resolve
) -> tuple[Finding, ...]:
    """All findings about a service. `directory` has the model's `config.json`; asks vLLM where it is installed."""
    config = None if directory is None else model_config(directory)
    cases = [case_of(service, pool, config, host) for pool in service.spec.pools]
    found = list[Finding]()
    by_pool = engine_findings(cases, None if config is None else directory, resolving)
    for case in cases:
        found += by_pool[case.name]
        found += (check(case) for check in (checks.user, checks.stage, checks.share, checks.memlock))
        found += (check(case, host) for check in _OF_HOST)
    return (*found, *checks.ports(_ports(service), host))


_OF_HOST: tuple[Callable[[Case, Host], Finding], ...] = (checks.shared_memory, checks.allocator)


def host_of(service: ModelService) -> Host:
    """The facts about this machine that matter to the service."""
    shared = Path("/dev/shm")
    busy = dict[int, str]()
    for field, port in _ports(service).items():
        try:
            check_free(service.spec.router.host, {field: port})
        except TandemError as error:
            busy[port] = error.message
    return Host(
        memory_bytes=host_memory_bytes(),
        shm_bytes=shutil.disk_usage(shared).total if shared.is_dir() else None,
        gpus=bool(_topology_has_gpus()),
        environment={name: os.environ[name] for name in checks.ALLOCATOR_VARIABLES if name in os.environ},
        busy=busy,
    )


def _topology_has_gpus() -> bool:
    topology = read_topology()
    return topology is not None and bool(topology.gpus)


def _ports(service: ModelService) -> dict[str, int]:
    router = service.spec.router
    found = {"spec.router.port": router.port}
    return found if router.grpc_port is None else {**found, "spec.router.grpcPort": router.grpc_port}
