"""What a process on GPUs keeps to: machines in, CPUs, memory and network devices out, never against a choice made
outside."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.devices.applying import bind
from tandem.devices.binding import NET_DEVICES, Binding, binding_of, ranges
from tandem.devices.topology import Gpu, Topology
from tandem.devices.visible import first_seen
from tandem.service.settings import load_settings
from tandem.worker.gpu_binding import gpus_of
from tandem.worker.process_settings import WorkerSettings
from tests.unit.gpu_machines import DGX_H100, L4, MI300X, ONE, SLICED, TWO, UNLIKE, Machine

EVERY_CPU = range(256)


def bound(topology: Topology, ranks: int = 1, cpus: Sequence[int] = EVERY_CPU, **environment: str) -> Binding:
    """As a worker that is told no more than the environment of its pod binds itself."""
    return binding_of(topology, first_seen(topology, environment, ranks), cpus, environment)


def only(machine: Machine, *gpus: int, nics: Sequence[str] | None = None) -> Machine:
    """As a pod sees it: the GPUs it was given alone, and sysfs of the whole machine."""
    given_nics = machine.given if nics is None else frozenset(nics)
    return replace(machine, cards=tuple(machine.cards[at] for at in gpus), given=given_nics)


@pytest.mark.parametrize(
    ("gpu", "nic"),
    list(enumerate(("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"))),
)
def test_every_gpu_of_a_dgx_h100_has_its_own_nic(gpu: int, nic: str, tmp_path: Path) -> None:
    """The pairs that the machine's user guide lists."""
    found = bound(only(DGX_H100, gpu).read(tmp_path))
    assert found.environment == {NET_DEVICES: f"{nic}:1"}
    assert found.nodes == (gpu // 4,)
    assert ranges(found.cpus) == ("0-55,112-167", "56-111,168-223")[gpu // 4]
    assert found.reasons == (
        f"GPU 0: CPUs {ranges(found.cpus)} and memory of NUMA node {gpu // 4}",
        f"GPU 0: {NET_DEVICES}={nic}:1, of 12 ports those with the fewest PCI links",
    )


def test_a_visibility_variable_counts_as_in_cuda(tmp_path: Path) -> None:
    topology = DGX_H100.read(tmp_path)
    assert bound(topology, 2, CUDA_VISIBLE_DEVICES="6,7").environment == {NET_DEVICES: "mlx5_10:1,mlx5_11:1"}
    assert bound(topology, 1, CUDA_VISIBLE_DEVICES="6,7").environment == {NET_DEVICES: "mlx5_10:1"}
    assert bound(topology).environment == {NET_DEVICES: "mlx5_0:1"}, "without one it takes the first"


def test_ranks_on_both_nodes_keep_all_cpus_and_their_nics(tmp_path: Path) -> None:
    found = bound(DGX_H100.read(tmp_path), 8)
    assert (found.cpus, found.nodes) == ((), ())
    assert len(found.environment[NET_DEVICES].split(",")) == 8, "those of storage are left out"


def test_a_pod_with_one_rdma_device_uses_it(tmp_path: Path) -> None:
    """Sysfs shows those of the whole machine, and the pod may open one: nothing is left to choose."""
    found = bound(only(DGX_H100, 0, nics=["mlx5_4"]).read(tmp_path))
    assert found.environment == {}
    assert found.reasons[1] == "GPU 0: every RDMA port (mlx5_4:1) is as near as the others"


def test_a_pod_without_rdma_devices_has_none(tmp_path: Path) -> None:
    found = bound(only(DGX_H100, 0, nics=[]).read(tmp_path))
    assert found.environment == {}
    assert found.reasons[1] == "GPU 0: no RDMA port that is up and given to this process"


def test_an_l4_machine_has_nothing_to_bind_to(tmp_path: Path) -> None:
    found = bound(L4.read(tmp_path))
    assert (found.cpus, found.nodes, found.environment) == ((), (), {})
    assert found.reasons == (
        "GPU 0: CPUs and memory stay as they are: no NUMA node is nearer than the others",
        "GPU 0: no RDMA port that is up and given to this process",
    )


@pytest.mark.parametrize(("gpu", "node"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_an_mi300x_has_the_nic_below_its_switch(gpu: int, node: int, tmp_path: Path) -> None:
    """HIP's variables count, and it is the switch that is shared, four bridges above the card."""
    topology = MI300X.read(tmp_path)
    assert topology.vendor == "amd"
    found = bound(topology, HIP_VISIBLE_DEVICES=str(gpu))
    assert found.environment == {NET_DEVICES: f"bnxt_re{gpu}:1"}
    assert found.nodes == (node,)
    assert bound(topology, ROCR_VISIBLE_DEVICES=f"{gpu}").environment == found.environment


def test_what_was_chosen_outside_stays(tmp_path: Path) -> None:
    topology = only(DGX_H100, 0).read(tmp_path)
    found = bound(topology, UCX_NET_DEVICES="mlx5_9:1")
    assert found.environment == {}
    assert found.reasons[1].endswith("network devices stay as UCX_NET_DEVICES=mlx5_9:1 says")
    elsewhere = bound(topology, cpus=range(56, 72))
    assert (elsewhere.cpus, elsewhere.nodes) == ((), ())
    assert elsewhere.reasons[0].endswith("of the 112 of NUMA node 0 this process was given 0")
    mixed = bound(topology, cpus=range(48, 64))
    assert mixed.cpus == (), "half of what it paid for would be idle"
    # Some are reserved for the system.
    assert ranges(bound(topology, cpus=range(4, 224)).cpus) == "4-55,112-167"


def test_vllm_that_binds_its_ranks_is_left_to_it(tmp_path: Path) -> None:
    topology = only(DGX_H100, 0).read(tmp_path)
    found = binding_of(topology, topology.gpus, EVERY_CPU, {}, ranks_bind=True)
    assert (found.cpus, found.nodes) == ((), ())
    assert found.environment == {NET_DEVICES: "mlx5_0:1"}


def test_a_slice_lies_where_its_card_does(tmp_path: Path) -> None:
    assert first_seen(SLICED.read(tmp_path), {}, 1)[0].slice


def test_numbers_of_unlike_cards_bind_nobody(tmp_path: Path) -> None:
    topology = replace(UNLIKE.read(tmp_path), cpus={0: (0,), 1: (1,)})
    assert bound(topology).cpus == ()
    assert first_seen(topology, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 2)[1].numa == 0


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8),
    st.frozensets(st.integers(0, 15)),
    st.dictionaries(st.sampled_from([NET_DEVICES, "HOME"]), st.just("set")),
)
def test_nobody_leaves_what_it_was_given(
    ranks: int, places: list[tuple[int, int]], allowed: frozenset[int], environment: dict[str, str]
) -> None:
    gpus = tuple(
        Gpu(str(at), "card", f"uuid-{at}", numa=node, path=(f"pci{switch}", str(at)))
        for at, (node, switch) in enumerate(places)
    )
    topology = Topology("nvidia", gpus, (), {node: tuple(range(4 * node, 4 * node + 4)) for node in range(4)})
    found = binding_of(topology, gpus[:ranks], allowed, environment)
    assert set(found.cpus) <= allowed
    assert set(found.environment).isdisjoint(environment)
    assert bool(found.cpus) == bool(found.nodes)
    assert set(found.nodes) <= {gpu.numa for gpu in gpus[:ranks]}
    again = binding_of(topology, gpus[:ranks], found.cpus or allowed, {**environment, **found.environment})
    assert again.cpus in ((), found.cpus)
    assert again.environment == {}, "who is bound is not bound otherwise"


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (["--engine", "vllm", "--vllm.device", "cuda", "--vllm.parallelism.tensor", "4"], 4),
        (["--engine", "vllm"], 0),
        (["--torch.device", "cuda:0"], 1),
        (["--engine", "simulated"], 0),
    ],
)
def test_a_worker_looks_for_as_many_gpus_as_it_takes(flags: list[str], ranks: int) -> None:
    settings = load_settings(WorkerSettings, ["--worker_id", "w", "--role", "decode", *flags], {})
    assert gpus_of(settings) == ranks


def test_no_tool_and_a_gpu_named_twice_bind_nobody(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    assert bind(1, environment, read=lambda: None) == Binding()
    twice = {"CUDA_VISIBLE_DEVICES": "0,GPU-00000000"}
    with pytest.raises(TandemError, match="twice"):
        first_seen(TWO.read(tmp_path), twice, 1)
    assert bind(1, twice, read=lambda: TWO.read(tmp_path / "again")) == Binding()


_CHILD = """
import json, logging, os, sys, threading
logging.basicConfig(level="INFO")
from tandem.devices.applying import bind
from tandem.devices.topology import Gpu, Nic, Topology
cpus = sorted(os.sched_getaffinity(0))
mine = tuple(cpus[: len(cpus) // 2])
near, far = ("pci0", "switch", "nic"), ("pci1", "nic")
gpus = (Gpu("0", "card", "0", "GPU-0", numa=0, path=("pci0", "switch", "gpu")),)
topology = Topology("nvidia", gpus, (Nic("a:1", 0, near), Nic("b:1", 0, far)), {0: mine, 1: (9_999,)})
stop = threading.Event()
before = threading.Thread(target=stop.wait)
before.start()
bind(1, os.environ, read=lambda: topology)
print(json.dumps({
    "mine": mine,
    "threads": [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")],
    "child": os.popen(f"{sys.executable} -c 'import os; print(sorted(os.sched_getaffinity(0)))'").read(),
    "memory": open("/proc/self/numa_maps").read() if os.path.exists("/proc/self/numa_maps") else "",
    "nics": os.environ["UCX_NET_DEVICES"],
}))
stop.set()
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs"
)
def test_a_bound_process_is_really_bound() -> None:
    """In a process of its own, which stays bound."""
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=120, check=True,
        env={name: value for name, value in os.environ.items() if name != NET_DEVICES},
    )  # fmt: skip
    said: dict[str, Any] = json.loads(ended.stdout)
    assert said["threads"] == [said["mine"]] * len(said["threads"])
    assert len(said["threads"]) == 2
    assert json.loads(said["child"]) == said["mine"]
    assert said["nics"] == "a:1"
    # A container that may not set policies is told so in the log, and stays as it is.
    assert "prefer" in said["memory"] or "memory policy stays as it is" in ended.stderr


def test_one_gpu_of_a_plain_machine_is_not_bound(tmp_path: Path) -> None:
    assert bound(ONE.read(tmp_path)).cpus == ()


def test_a_worker_binds_itself_when_it_starts(tmp_path: Path) -> None:
    """A whole process, as a pod starts it; the model that it does not find ends it."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-1, NVIDIA L4, 23034, 00000000:FF:1F.7, Disabled'\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "UCX_NET_DEVICES": "mlx5_9:1"}
    command = [sys.executable, "-m", "decode_worker", "--torch.device", "cuda", "--model", str(tmp_path / "none")]
    for flags, said in (((), True), (("--bind", "false"), False)):
        ended = subprocess.run(
            [*command, *flags], capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        assert ended.returncode != 0
        assert "none" in ended.stderr + ended.stdout
        assert ("network devices stay as UCX_NET_DEVICES=mlx5_9:1 says" in ended.stderr) is said
