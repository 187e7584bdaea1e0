"""What a process on GPUs keeps to: machines in, CPUs, memory and network devices out, never against a choice made
outside."""

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.devices import applying
from tandem.devices.applying import bind
from tandem.devices.binding import NET_DEVICES, Binding, Near, binding_of, nearest, ranges
from tandem.devices.topology import Gpu, Nic, Topology
from tandem.devices.visible import seen_at
from tandem.process.settings import load_settings
from tandem.worker.gpu_binding import bind_near_gpus, gpus_of
from tandem.worker.process_settings import WorkerSettings
from tests.worlds.gpu_machines import DGX_H100, L4, MI300X, ONE, PCIE, TWO, UNLIKE, Card, Machine

EVERY_CPU = range(256)


def bound(topology: Topology, ranks: int = 1, cpus: Sequence[int] = EVERY_CPU, **environment: str) -> Binding:
    """As a worker that is told no more than the environment of its pod binds itself."""
    return binding_of(topology, seen_at(topology, environment, range(ranks)), cpus, environment)


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
        f"GPU 0: {NET_DEVICES}={nic}:1, the nearest of 12 ports",
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
    assert found.reasons[1] == "GPU 0: no RDMA port is known to be nearer than the others (mlx5_4:1)"


def test_a_pod_without_rdma_devices_has_none(tmp_path: Path) -> None:
    found = bound(only(DGX_H100, 0, nics=[]).read(tmp_path))
    assert found.environment == {}
    assert found.reasons[1] == "GPU 0: no RDMA port that is up and given to this process"


def test_links_do_not_count_without_a_bridge_in_common(tmp_path: Path) -> None:
    """Each device has a root port of its own: how deep a port lies does not say how near it is."""
    found = bound(PCIE.read(tmp_path))
    assert found.environment == {NET_DEVICES: "mlx5_0:1,mlx5_1:1"}, "the on-board one alone would be the slow one"
    assert found.nodes == (0,)


def test_a_gpu_whose_node_has_no_port_leaves_the_choice_to_ucx(tmp_path: Path) -> None:
    found = bound(PCIE.read(tmp_path / "one"), CUDA_VISIBLE_DEVICES="1")
    assert found.environment == {}
    assert "no RDMA port is known to be nearer" in found.reasons[1]
    assert bound(PCIE.read(tmp_path / "both"), 2).environment == {}, "nothing is known of one of them"


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


@pytest.mark.parametrize(("gpu", "node"), [(0, 0), (3, 1)])
def test_a_pod_has_the_amd_cards_that_it_may_open(gpu: int, node: int, tmp_path: Path) -> None:
    """rocm-smi may tell of all cards of the machine; the pod was given one, which HIP counts as its first."""
    found = bound(replace(MI300X, opened=frozenset([gpu])).read(tmp_path))
    assert (found.environment, found.nodes) == ({NET_DEVICES: f"bnxt_re{gpu}:1"}, (node,))


def test_what_was_chosen_outside_stays(tmp_path: Path) -> None:
    topology = only(DGX_H100, 0).read(tmp_path)
    found = bound(topology, UCX_NET_DEVICES="mlx5_9:1")
    assert found.environment == {}
    assert found.reasons[1].endswith("network devices stay as UCX_NET_DEVICES=mlx5_9:1 says")
    elsewhere = bound(topology, cpus=range(56, 72))
    assert (elsewhere.cpus, elsewhere.nodes) == ((), ())
    assert elsewhere.reasons[0].endswith("this process was given 0 of the 112 of NUMA node 0")
    mixed = bound(topology, cpus=range(48, 64))
    assert mixed.cpus == (), "half of what it paid for would be idle"
    # Some are reserved for the system.
    assert ranges(bound(topology, cpus=range(4, 224)).cpus) == "4-55,112-167"
    # Chosen without an eye on the GPU: 60 CPUs of its node and 52 of the other.
    split = bound(topology, cpus=(*range(52), *range(56, 108), *range(112, 120)))
    assert (split.cpus, split.nodes) == ((), ())
    assert split.reasons[0].endswith("only 60 of the 112 that this process was given are of NUMA node 0")
    assert ranges(bound(topology, cpus=(*range(60), *range(112, 160))).cpus) == "0-55,112-159", "4 are elsewhere"


GPU_WORKER: Final = ["--worker_id", "w", "--role", "decode", "--engine", "vllm", "--vllm.device", "cuda"]


@pytest.mark.parametrize(("value", "ranks_bind"), [("true", True), ("1", True), ("yes", True), ("no", False)])
def test_vllm_that_binds_its_ranks_is_left_to_it(
    value: str, ranks_bind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the worker's flags on: the argument is one that can be passed on."""
    topology, ran_on = only(DGX_H100, 0).read(tmp_path), list[tuple[int, ...]]()
    without_system_calls(monkeypatch, ran_on)
    monkeypatch.setattr(applying, "bind", partial(applying.bind, read=lambda: topology))
    settings = load_settings(WorkerSettings, [*GPU_WORKER, "--vllm.extra.numa_bind", value], {})
    environment: dict[str, str] = {}
    assert bind_near_gpus(settings, environment) == f"{topology.gpus[0].name} x 1"
    assert environment == {NET_DEVICES: "mlx5_0:1"}
    assert bool(ran_on) is not ranks_bind


def test_an_argument_that_vllm_would_not_be_given_binds_nobody() -> None:
    settings = load_settings(WorkerSettings, [*GPU_WORKER, "--vllm.extra.numa_bind", "perhaps"], {})
    with pytest.raises(TandemError, match="expected true or false"):
        bind_near_gpus(settings, {})


def test_a_slice_lies_where_its_card_does(tmp_path: Path) -> None:
    cards = (Card("pci0000:00/0000:00:05.0", 0), Card("pci0000:80/0000:80:05.0", 1, slices=("3g.40gb", "1g.10gb")))
    topology = Machine(cards, nodes=("0-1", "2-3")).read(tmp_path)
    (second,) = seen_at(topology, {"CUDA_VISIBLE_DEVICES": "MIG-1111-2222"}, range(1))
    assert second.slice
    assert (second.numa, second.path) == (1, ("pci0000:80", "0000:80:05.0"))
    assert bound(topology, cpus=range(4), CUDA_VISIBLE_DEVICES="MIG-1111-2222").cpus == (2, 3)


def test_numbers_of_unlike_cards_bind_nobody(tmp_path: Path) -> None:
    topology = replace(UNLIKE.read(tmp_path), cpus={0: (0,), 1: (1,)})
    assert bound(topology).cpus == ()
    assert seen_at(topology, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, range(2))[1].numa == 0


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
    st.frozensets(st.integers(0, 15)),
    st.dictionaries(st.sampled_from([NET_DEVICES, "HOME"]), st.just("set")),
)
def test_nobody_leaves_what_it_was_given(
    ranks: int,
    places: list[tuple[int, int]],
    ports: list[tuple[int, int]],
    allowed: frozenset[int],
    environment: dict[str, str],
) -> None:
    gpus = tuple(
        Gpu(str(at), "card", f"uuid-{at}", numa=node, path=(f"pci{node}", f"switch{switch}", f"gpu{at}"))
        for at, (node, switch) in enumerate(places)
    )
    nics = tuple(
        Nic(f"nic{at}:1", numa=node, path=(f"pci{node}", f"switch{switch}", f"nic{at}"))
        for at, (node, switch) in enumerate(ports)
    )
    topology = Topology("nvidia", gpus, nics, {node: tuple(range(4 * node, 4 * node + 4)) for node in range(4)})
    found = binding_of(topology, gpus[:ranks], allowed, environment)
    assert set(found.cpus) <= allowed
    assert set(found.environment).isdisjoint(environment)
    chosen = {nic for nic in nics if nic.name in found.environment.get(NET_DEVICES, "").split(",")}
    assert len(chosen) < max(1, len(nics)), "all of them are no choice"
    wanted = [
        {nic for nic in nics if nic.path[:2] == gpu.path[:2]} or {nic for nic in nics if nic.numa == gpu.numa}
        for gpu in gpus[:ranks]
    ]
    known = all(wanted) and len(set().union(*wanted)) < len(nics) and NET_DEVICES not in environment
    assert chosen == (set().union(*wanted) if known else set()), "UCX chooses where nothing is known of a GPU"
    assert bool(found.cpus) == bool(found.nodes)
    assert set(found.nodes) <= {gpu.numa for gpu in gpus[:ranks]}
    again = binding_of(topology, gpus[:ranks], found.cpus or allowed, {**environment, **found.environment})
    assert again.cpus in ((), found.cpus)
    assert again.environment == {}, "who is bound is not bound otherwise"


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        (["--engine", "vllm", "--vllm.device", "cuda", "--vllm.parallelism.tensor", "4"], range(4)),
        (["--engine", "vllm"], range(0)),
        (["--torch.device", "cuda"], range(1)),
        (["--torch.device", "cuda:0"], range(1)),
        (["--torch.device", "cuda:5"], range(5, 6)),
        (["--torch.device", "cpu"], range(0)),
        (["--engine", "simulated"], range(0)),
    ],
)
def test_a_worker_looks_for_the_gpus_that_it_takes(flags: list[str], gpus: range) -> None:
    settings = load_settings(WorkerSettings, ["--worker_id", "w", "--role", "decode", *flags], {})
    assert gpus_of(settings) == gpus


def test_the_position_of_a_gpu_counts_among_those_that_are_seen(tmp_path: Path) -> None:
    topology = DGX_H100.read(tmp_path)
    assert [gpu.token for gpu in seen_at(topology, {}, range(5, 6))] == ["5"]
    assert [gpu.token for gpu in seen_at(topology, {"CUDA_VISIBLE_DEVICES": "7,6,5"}, range(1, 2))] == ["6"]


def test_no_tool_and_a_gpu_named_twice_bind_nobody(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    assert bind(range(1), environment, read=lambda: None) == Binding()
    twice = {"CUDA_VISIBLE_DEVICES": "0,GPU-00000000"}
    with pytest.raises(TandemError, match="twice"):
        seen_at(TWO.read(tmp_path), twice, range(1))
    assert bind(range(1), twice, read=lambda: TWO.read(tmp_path / "again")) == Binding()


def test_gpus_that_are_hidden_bind_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topology = DGX_H100.read(tmp_path)
    assert bind(range(1), {"CUDA_VISIBLE_DEVICES": ""}, read=lambda: topology) == Binding()
    assert "does not see the GPUs that its engine would take (CUDA_VISIBLE_DEVICES may hide them)" in caplog.text
    assert nearest(topology, ()) == Near()


def without_system_calls(monkeypatch: pytest.MonkeyPatch, ran_on: list[tuple[int, ...]], policy: int = 0) -> None:
    """Of this process nothing changes; `policy` is what the system says of every memory policy."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(EVERY_CPU))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: ran_on.append(cpus))
    monkeypatch.setattr(applying, "_set_policy", lambda _mode, _nodes: policy)


def test_what_is_not_done_is_said_with_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: int, __: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    caplog.set_level(logging.INFO)
    topology = only(DGX_H100, 0).read(tmp_path)
    without_system_calls(monkeypatch, [], errno.EPERM)
    monkeypatch.setattr(os, "sched_setaffinity", refused)
    bind(range(1), {}, read=lambda: topology)
    (line,) = (record.getMessage() for record in caplog.records if "memory of NUMA node 0" in record.getMessage())
    assert "not bound to these CPUs (Operation not permitted)" in line
    assert "memory policy stays as it is (this container may not)" in line


def test_a_system_without_the_policy_of_several_nodes_prefers_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = list[tuple[int, tuple[int, ...]]]()

    def old(mode: int, nodes: tuple[int, ...]) -> int:
        asked.append((mode, nodes))
        return 0 if mode == 1 else errno.EINVAL

    caplog.set_level(logging.INFO)
    topology = only(DGX_H100, 0).read(tmp_path)
    without_system_calls(monkeypatch, [])
    monkeypatch.setattr(applying, "_set_policy", old)
    bind(range(1), {}, read=lambda: topology)
    assert asked == [(5, (0,)), (1, (0,))]
    assert "memory policy stays" not in caplog.text


def test_a_machine_of_another_kind_says_that_it_sets_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topology, policy = only(DGX_H100, 0).read(tmp_path), applying._set_policy
    without_system_calls(monkeypatch, [])
    monkeypatch.setattr(applying, "_set_policy", policy)
    monkeypatch.setattr(applying, "_SET_MEMPOLICY", {})
    bind(range(1), {}, read=lambda: topology)
    assert "memory policy stays as it is" in caplog.text


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
bind(range(1), os.environ, read=lambda: topology)
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
        assert "bad_model: " in ended.stderr, "it ends where it opens the model, after this"
        assert ("network devices stay as UCX_NET_DEVICES=mlx5_9:1 says" in ended.stderr) is said
