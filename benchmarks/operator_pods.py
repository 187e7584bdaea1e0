"""What 10,000 pods cost the operator in memory, at rest and while everything is listed again.

`python -m benchmarks.operator_pods [--pods N] [--services N]`. Services like `deploy/examples/llama-70b-tp4.yaml`,
all of them done, with pods as scheduler and kubelet write them (13 kB of JSON each). The operator is a process of its
own that leads and finds nothing to do. Its API server keeps objects and ends all watches at once with 410.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.object_server import ObjectServer
from benchmarks.operator_real import OperatorProcess
from benchmarks.pod_objects import INSTALLATION, running, settled
from benchmarks.rounds import Check, table
from tandem.kube.kinds import POD

_REST_S: Final = 20.0
_BOUND_S: Final = 300.0
_RELISTS: Final = 3
_MIB_MAX: Final = 400.0
_FLAGS: Final = (
    f"--worker-image={INSTALLATION.worker_image}",
    f"--tls-secret={INSTALLATION.tls_secret}",
    f"--cache-host-path={INSTALLATION.cache_host_path}",
    "--own-namespace=default",
    "--look-up-models=false",
)


async def measure(pods: int, services: int) -> list[tuple[str, float, float]]:
    """Name of the look, MiB at its end, and the most that there was until then."""
    decodes = pods // services * 3 // 4
    cluster = await settled(services, pods // services - decodes, decodes)
    there = cluster.objects(POD)
    print(f"{len(there)} pods of {services} services, {len(msgspec.json.encode(running(there[0], 0)))} bytes each")
    server, looks = ObjectServer(cluster), []
    with tempfile.TemporaryDirectory() as folder:
        async with server.kubeconfig(Path(folder)) as kubeconfig:
            process = OperatorProcess(kubeconfig, Path(folder) / "log", _FLAGS)
            try:
                await _until(process.leads)
                await asyncio.sleep(_REST_S)
                looks.append(("at rest", process.rss_mb(), process.peak_mb()))
                for turn in range(_RELISTS):
                    server.expire()
                    await _until(lambda wanted=server.lists + 1: server.lists >= wanted)  # type: ignore[misc]
                    await asyncio.sleep(_REST_S / 2)
                    looks.append((f"listed again, {turn + 1}", process.rss_mb(), process.peak_mb()))
            finally:
                process.stop()
    print(f"{sum(cluster.writes.values())} writes while the fleet was made and afterwards")
    return looks


async def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + _BOUND_S
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"not within {_BOUND_S:g} s")
        await asyncio.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.operator_pods", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--services", type=int, default=500)
    given = parser.parse_args()
    looks = asyncio.run(measure(given.pods, given.services))
    print(table(("", "RSS MiB", "peak MiB"), [(name, f"{rss:.0f}", f"{peak:.0f}") for name, rss, peak in looks]))
    checks = [
        Check("RSS at rest", looks[0][1], _MIB_MAX, at_least=False, unit="MiB"),
        Check("peak RSS, three lists later", looks[-1][2], _MIB_MAX, at_least=False, unit="MiB"),
    ]
    for check in checks:
        print(check.line())
    return 0 if all(check.met for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
