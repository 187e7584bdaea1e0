"""`tandem doctor` on a node or in a pod: judges of what was read, readers on directories as Linux has them, and one
run of all of it here."""

import asyncio
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kv_transfer.transport.locked_memory import LockedMemory
from tandem.apps.cli.doctor import node, node_reading
from tandem.apps.cli.doctor.findings import Finding, healthy
from tandem.apps.cli.doctor.node import (
    Access,
    ClockReading,
    DiskSpeed,
    Gpus,
    Interface,
    Ucx,
)
from tandem.apps.cli.doctor.node_command import CHECKS, Asked, examine_node
from tandem.apps.cli.doctor.node_reading import Probes
from tandem.apps.cli.doctor.unwatched import look_for_unwatched, unwatched
from tandem.apps.cli.main import main
from tandem.core.errors import TandemError
from tandem.devices.reading import read_rdma
from tandem.devices.topology import RdmaDevice
from tandem.kube.cluster import Page, Selector
from tandem.kube.kinds import DEPLOYMENT, Json
from tandem.kube.memory_cluster import MemoryCluster
from tandem.kube.times import timestamp
from tests.worlds.loop_clock import LoopClock

MIB, GIB = 1 << 20, 1 << 30
PLENTY = LockedMemory(None, 64 * MIB, 64 * MIB)
SHORT = LockedMemory(8 * MIB, 64 * MIB, 8 * MIB, "Cannot allocate memory")
PORT = RdmaDevice("mlx5_0", active=True, openable=True)
CLOSED, DOWN = replace(PORT, openable=False), replace(PORT, name="mlx5_1", active=False)
KEPT = ClockReading(True, 0.0004, 0.02, source="tsc")
NOW = 1_800_000_000.0

CASES: tuple[tuple[Finding, str, str, str], ...] = (
    (node.gpus(Gpus(("NVIDIA H100",) * 2, ())), "ok", "2 x NVIDIA H100", ""),
    (node.gpus(Gpus((), ("/dev/nvidia0",))), "problem", "there is /dev/nvidia0, and neither", "vendor's runtime"),
    (node.gpus(Gpus()), "not checked", "no device file", "nvidia.com/gpu"),
    (node.rdma((PORT,)), "ok", "mlx5_0 can be used", ""),
    (node.rdma((PORT, DOWN)), "ok", "mlx5_0 can be used; no port of mlx5_1 is up", ""),
    (node.rdma((DOWN,)), "problem", "no port of mlx5_1 is up", "ibstat"),
    (node.rdma((CLOSED,)), "not checked", "were not given to this pod", "network.resources"),
    (node.rdma(()), "not checked", "no RDMA device", "KV goes over TCP"),
    (node.memlock(PLENTY, ()), "ok", "64 MiB of 64 MiB can be locked (no limit)", ""),
    (node.memlock(SHORT, (PORT,)), "problem", "only 8 MiB of 64 MiB", "LimitMEMLOCK=infinity"),
    (node.memlock(SHORT, (CLOSED,)), "not checked", "nothing needs it", "lockedMemory"),
    (node.shared_memory(64 * MIB, 1), "problem", "/dev/shm has 64 MiB; 1 ranks may take 320 MiB", "medium Memory"),
    (node.shared_memory(GIB, 4), "ok", "4 ranks may take 800 MiB", ""),
    (node.shared_memory(None, 4), "not checked", "there is no /dev/shm", "tmpfs"),
    (node.clock(KEPT), "ok", "+0.4 ms off by the kernel's account, at most 20 ms (clock source tsc)", ""),
    (node.clock(replace(KEPT, offset_s=-3.0)), "problem", "-3000.0 ms off", "time daemon"),
    (node.clock(replace(KEPT, synchronized=False)), "problem", "nothing keeps this machine's time", "chrony"),
    (node.clock(replace(KEPT, step_s=-2.5)), "problem", "time of day jumped by -2.50 s", "clock source"),
    (node.clock(replace(KEPT, went_back=True)), "problem", "the monotonic clock went back", "clock source"),
    (node.clock(ClockReading(None, why="refused")), "not checked", "not known: refused", "chronyc"),
    (node.mtu((Interface("eth0", 9000),)), "ok", "eth0 9000", ""),
    (node.mtu((Interface("eth0", 1450),)), "ok", "eth0 1450; KV over TCP takes less", ""),
    (node.mtu((Interface("eth0", 1500), Interface("net1", 1200))), "problem", "net1 below 1280", "overlay"),
    (node.mtu(()), "not checked", "no network interface", "pod's network"),
    (node.ucx(Ucx("1.23.0", ("tcp/eth0",)), ()), "ok", "UCX 1.23.0: tcp/eth0", ""),
    (node.ucx(Ucx("1.23.0", ("tcp/eth0",)), (PORT,)), "problem", "none of them is RDMA", "UCX_TLS"),
    (node.ucx(Ucx("1.23.0", ("tcp/eth0",)), (CLOSED,)), "ok", "tcp/eth0", ""),
    (node.ucx(Ucx("1.23.0", ("rc_mlx5/mlx5_0:1",)), (PORT,)), "ok", "rc_mlx5/mlx5_0:1", ""),
    (node.ucx(Ucx("1.23.0", ("srd/rdmap0s6:1",)), (PORT,)), "ok", "srd/rdmap0s6:1", ""),
    (node.ucx(Ucx(why="it is not installed here"), ()), "not checked", "not installed", "extra `nixl`"),
    (node.disk(DiskSpeed("/d", 1.5e9, 3e9)), "ok", "/d: writes 1.50 GB/s, reads 3.00 GB/s", ""),
    (node.disk(DiskSpeed("/d", 1.5e9, 50e6)), "problem", "of a 70B model would take 47 min", "NVMe"),
    (node.disk(DiskSpeed("/d", failed="Permission denied")), "problem", "/d: Permission denied", "may write"),
    (node.disk(None), "not checked", "no directory", "--disk"),
    (node.registry(Access("hf://a/b", 9, 0.5)), "ok", "hf://a/b: 9 files, listed in 0.5 s", ""),
    (
        node.registry(Access("hf://a/b", failed="bad_model: 401")),
        "problem",
        "hf://a/b: bad_model: 401",
        "HF_ENDPOINT",
    ),
    (node.registry(None), "not checked", "no model was named", "--source"),
)


@pytest.mark.parametrize(("found", "verdict", "said", "cure"), CASES)
def test_each_check_says_what_it_found_and_the_cure(found: Finding, verdict: str, said: str, cure: str) -> None:
    assert found.verdict == verdict
    assert said in found.said
    assert cure in found.advice
    assert bool(found.advice) == (verdict != "ok"), "whatever is not right has a cure"
    assert "\n" not in found.advice


def probes(**given: Any) -> Probes:
    """Of a machine where everything is right, but for what is given."""
    facts: dict[str, Any] = {
        "gpus": Gpus(("NVIDIA L4",)), "rdma": (PORT,), "locked": PLENTY, "shm_bytes": GIB, "clock": KEPT,
        "interfaces": (Interface("eth0", 9000),), "ucx": Ucx("1.23.0", ("rc_mlx5/mlx5_0:1",)), **given,
    }  # fmt: skip
    named = {name: functools.partial(lambda value: value, value) for name, value in facts.items()}
    disk = DiskSpeed("/d", 1e9, 1e9)
    return Probes(**named, disk=lambda _: disk, access=lambda source: Access(source, 3, 0.1))


def test_without_names_what_is_absent_is_no_problem() -> None:
    bare = probes(gpus=Gpus(), rdma=(), locked=SHORT, ucx=Ucx(why="it is not installed here"))
    found = examine_node(Asked(), bare)
    assert [each.check for each in found] == list(CHECKS)
    assert healthy(found)
    absent = {each.check for each in found if each.verdict == "not checked"}
    assert absent == {"gpus", "rdma", "memlock", "ucx", "disk", "registry", "services"}


@pytest.mark.parametrize("name", ["gpus", "rdma", "memlock", "ucx", "disk", "registry"])
def test_what_is_asked_for_by_name_has_to_be_there(name: str) -> None:
    bare = probes(gpus=Gpus(), rdma=(), locked=SHORT, ucx=Ucx(why="it is not installed here"))
    (found,) = examine_node(Asked((name,)), bare)
    assert (found.check, found.verdict) == (name, "problem")
    assert found.advice
    full = Asked((name,), disk=Path("/d"), source="hf://a/b")
    assert [each.verdict for each in examine_node(full, probes())] == ["ok"]


def test_only_what_is_asked_for_is_read() -> None:
    def never(*_: object) -> Any:
        raise AssertionError("read although nobody asked")

    eager = replace(probes(), gpus=never, ucx=never, clock=never, locked=never, disk=never, access=never)
    assert [each.check for each in examine_node(Asked(("mtu", "rdma")), eager)] == ["rdma", "mtu"]


def test_devices_of_the_node_and_of_the_pod_are_told_apart(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", "4: ACTIVE")):
        device = tmp_path / "sys/class/infiniband" / name
        (device / "ports/1").mkdir(parents=True)
        (device / "ports/1/state").write_text(f"{state}\n")
        (device / f"device/infiniband_verbs/uverbs{name[-1]}").mkdir(parents=True)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for number in (0, 1):
        (tmp_path / f"dev/infiniband/uverbs{number}").touch()
    assert read_rdma(tmp_path) == (
        RdmaDevice("mlx5_0", active=True, openable=True),
        RdmaDevice("mlx5_1", active=False, openable=True),
        RdmaDevice("mlx5_2", active=True, openable=False),
    )
    assert read_rdma(tmp_path / "nowhere") == ()


def test_interfaces_that_are_up_have_their_mtu(tmp_path: Path) -> None:
    for name, state in (("lo", "unknown"), ("eth0", "up"), ("eth1", "down"), ("net1", "unknown")):
        interface = tmp_path / "sys/class/net" / name
        interface.mkdir(parents=True)
        (interface / "operstate").write_text(f"{state}\n")
        (interface / "mtu").write_text("1450\n")
    assert node_reading.read_interfaces(tmp_path) == (Interface("eth0", 1450), Interface("net1", 1450))


def test_a_context_of_ucx_is_read() -> None:
    lines = [
        "#     component 1  :  tcp",
        "#            md 1  :  component 1  tcp ",
        "#      resource 0  :  md 0  dev 0  flags -- self/memory",
        "#      resource 1  :  md 5  dev 1  flags -- rc_mlx5/mlx5_0:1",
        "#      resource 2  :  md 5  dev 1  flags -- rc_mlx5/mlx5_0:1",
    ]
    assert node_reading.resources_of(lines) == ("self/memory", "rc_mlx5/mlx5_0:1")


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reading, "_FILE_BYTES", 16 * MIB)
    found = node_reading.measure_disk(tmp_path)
    assert found.failed == ""
    assert found.written > 0
    assert found.read > 0
    assert list(tmp_path.iterdir()) == []
    assert node_reading.measure_disk(tmp_path / "nowhere").failed == "No such file or directory"


def test_a_source_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert node_reading.try_access(str(tmp_path)).files == 1
    assert node_reading.try_access(str(tmp_path / "nowhere")).failed == "No such file or directory"
    assert "bad_setting" in node_reading.try_access("ftp://models/a").failed
    # Nothing listens on port 1.
    registry = "oci://127.0.0.1:1/models/a:1"
    assert node_reading.try_access(registry, {}).failed


def test_all_of_it_runs_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whatever this machine has: every check has a verdict, and the exit status is that of the verdicts."""
    status = main(["doctor", "--json", "--source", str(tmp_path)])
    found = msgspec.json.decode(capsys.readouterr().out, type=list[Finding])
    assert [each.check for each in found] == list(CHECKS)
    assert status == (0 if healthy(found) else 1)
    verdicts = {each.check: each.verdict for each in found}
    assert (verdicts["registry"], verdicts["disk"], verdicts["services"]) == ("ok", "not checked", "not checked")
    locked = next(each for each in found if each.check == "memlock")
    assert "of 64 MiB can be locked" in locked.said


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "gpus", "bogus"]) != 0
    assert "there is no check bogus; there are gpus, rdma" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["doctor", "gpus", "--dry-run", "file.yaml"])


# -- ModelServices that nobody looks at --


def service(namespace: str, *, seen: int = 0, generation: int = 1, age_s: float = 600.0) -> Json:
    made = timestamp(NOW - age_s)
    metadata = {"name": "chat", "namespace": namespace, "generation": generation, "creationTimestamp": made}
    status = {"status": {"observedGeneration": seen}} if seen else {}
    kind = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService"}
    return {**kind, "metadata": metadata, "spec": {}, **status}


def operator(*flags: str) -> Json:
    container = {"name": "operator", "command": ["python", "-m", "control_plane"], "args": list(flags)}
    labels = {"app.kubernetes.io/name": "tandem-operator"}
    metadata = {"name": "tandem-operator", "namespace": "tandem", "labels": labels}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}


@pytest.mark.parametrize(
    ("services", "operators", "verdict", "said"),
    [
        ([service("models", seen=1)], [operator("--namespace=models,tandem")], "ok", "each of 1 ModelServices"),
        (
            [service("default")],
            [operator("--namespace=models")],
            "problem",
            "namespace of default/chat; watched are mod",
        ),
        ([service("default", seen=1)], [operator()], "ok", "each of 1"),
        ([service("default")], [operator()], "problem", "taken up the specification of default/chat within 60 s"),
        ([service("default", age_s=5)], [operator()], "ok", "each of 1"),
        ([service("a", seen=1, generation=2)], None, "problem", "taken up the specification of a/chat"),
        ([service("a")], [], "problem", "no operator is installed, and there are 1 ModelServices: a/chat"),
        ([], [], "ok", "each of 0"),
        ([service(f"n{at}") for at in range(7)], [operator("--namespace=m")], "problem", "n4/chat and 2 more"),
    ],
)
def test_a_service_that_nobody_looks_at_is_found(
    services: list[Json], operators: list[Json] | None, verdict: str, said: str
) -> None:
    found = unwatched(services, operators, NOW)
    assert found.verdict == verdict
    assert said in found.said


def test_services_of_all_namespaces_are_read_from_the_cluster() -> None:
    async def main() -> None:
        cluster = MemoryCluster(LoopClock(asyncio.get_running_loop()))
        await cluster.create(service("models"))
        await cluster.create(service("default"))
        await cluster.create(operator("--namespace=models"))
        found = await look_for_unwatched(cluster, NOW)
        assert found.verdict == "problem"
        assert "default/chat; watched are models" in found.said

    asyncio.run(main())


def test_without_the_right_to_see_operators_statuses_count() -> None:
    class Limited(MemoryCluster):
        async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
            if selector.kind == DEPLOYMENT or self.blind:
                raise TandemError("not_allowed", "forbidden")
            return await super().list_page(selector, limit, token)

        blind = False

    async def main() -> None:
        cluster = Limited(LoopClock(asyncio.get_running_loop()))
        await cluster.create(service("default"))
        assert (await look_for_unwatched(cluster, NOW + 1e9)).verdict == "problem"
        cluster.blind = True
        found = await look_for_unwatched(cluster, NOW)
        assert (found.verdict, found.said) == ("not checked", "ModelServices cannot be listed: forbidden")

    asyncio.run(main())
