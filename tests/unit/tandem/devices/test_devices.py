"""Who gets which GPU, share, CPUs and network devices: machines in, assignments and reasons out."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.core.sizing import even_share
from tandem.devices import reading
from tandem.devices.assigning import Assignment, Wanted, assign, environment_of
from tandem.devices.reading import read_topology, run
from tandem.devices.topology import Gpu, Topology, distance
from tandem.devices.visible import restricted
from tests.worlds.gpu_machines import DGX, FOUR, H100_MIB, ONE, SLICED, TWO, UNLIKE, Machine

PAIR = (Wanted("prefill-0", "prefill"), Wanted("decode-0", "decode"), Wanted("decode-1", "decode"))


def tokens(assignments: Sequence[Assignment]) -> list[str]:
    return [",".join(gpu.token for gpu in each.gpus) for each in assignments]


def plain(count: int) -> Topology:
    return Topology("nvidia", tuple(Gpu(str(at), "card", f"uuid-{at}", f"uuid-{at}") for at in range(count)))


def test_a_machine_is_read_from_its_tools_and_sysfs(tmp_path: Path) -> None:
    found = DGX.read(tmp_path)
    assert [gpu.token for gpu in found.gpus] == list("01234567")
    assert {gpu.memory for gpu in found.gpus} == {H100_MIB << 20}
    assert [gpu.numa for gpu in found.gpus] == [0] * 4 + [1] * 4
    assert found.cpus[1][:2] == (56, 57)
    assert [nic.name for nic in found.nics] == [f"mlx5_{at}:1" for at in range(8)]
    first = found.gpus[0]
    assert distance(first.path, found.nics[0].path) == 2, "one switch between them"
    assert distance(first.path, found.nics[1].path) > 4


def test_a_port_that_is_down_is_no_way(tmp_path: Path) -> None:
    down = Machine(DGX.cards, tuple((name, path, numa, "1: DOWN") for name, path, numa, _ in DGX.nics))
    assert down.read(tmp_path).nics == ()


def test_nothing_is_known_without_tools(tmp_path: Path) -> None:
    assert read_topology(lambda _: None, tmp_path) is None
    assert run(["/nowhere/nvidia-smi"]) is None
    assert run(["false"]) is None


def test_a_tool_that_dies_of_no_signal_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one does that hangs in its driver: nobody waits for it."""
    hung = list[subprocess.Popen[str]]()
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda tool: hung.append(tool))
    monkeypatch.setattr(reading, "_BOUND_S", 0.05)
    assert run(["sleep", "600"]) is None
    (tool,) = hung
    try:
        assert tool.poll() is None, "it runs still"
        assert "sleep said nothing within 0.05 s" in caplog.text
    finally:
        kill(tool)


def test_amd_cards_are_read(tmp_path: Path) -> None:
    cards = {
        f"card{at}": {
            "PCI Bus": f"0000:0{at}:00.0",
            "Unique ID": f"0xabc{at}",
            "Card Series": "AMD Instinct MI300X",
            "VRAM Total Memory (B)": "206141652992",
        }
        for at in (1, 0)
    }
    found = read_topology(lambda command: json.dumps(cards) if command[0] == "rocm-smi" else None, tmp_path)
    assert found is not None
    assert [(gpu.token, gpu.uuid, gpu.memory) for gpu in found.gpus] == [
        ("0", "GPU-abc0", 206141652992),
        ("1", "GPU-abc1", 206141652992),
    ]
    (one,) = assign(found, [Wanted("all-0", "unified", 1)]).assignments
    assert environment_of(found, one, {}) == {"HIP_VISIBLE_DEVICES": "0"}
    # vLLM refuses two variables that differ.
    assert environment_of(found, one, {"CUDA_VISIBLE_DEVICES": "0,1"})["CUDA_VISIBLE_DEVICES"] == "0"
    below = restricted(found, {"ROCR_VISIBLE_DEVICES": "1"})
    assert [(gpu.token, gpu.uuid) for gpu in below.gpus] == [("0", "GPU-abc1")], "HIP counts what is left"


def test_workers_of_one_gpu_share_it(tmp_path: Path) -> None:
    """The way it was: each asked for 0.9, and vLLM refused the second."""
    plan = assign(ONE.read(tmp_path), PAIR)
    assert tokens(plan.assignments) == ["0", "0", "0"]
    assert [each.share for each in plan.assignments] == [0.3, 0.3, 0.3]
    assert plan.assignments[0].reasons[0].endswith("with decode-0, decode-1: share 0.9 / 3 workers = 0.3")


def test_decode_workers_share_rather_than_prefill(tmp_path: Path) -> None:
    plan = assign(TWO.read(tmp_path), PAIR)
    assert tokens(plan.assignments) == ["0", "1", "1"]
    assert [each.share for each in plan.assignments] == [0.9, 0.45, 0.45]


def test_a_gpu_that_nobody_needs_is_named(tmp_path: Path) -> None:
    plan = assign(FOUR.read(tmp_path), PAIR)
    assert tokens(plan.assignments) == ["0", "1", "2"]
    assert [each.share for each in plan.assignments] == [0.9] * 3
    assert plan.idle == ("GPU 3 has no worker",)


def test_ranks_lie_on_one_numa_node(tmp_path: Path) -> None:
    topology = DGX.read(tmp_path)
    plan = assign(topology, [Wanted("prefill-0", "prefill", 2), Wanted("decode-0", "decode", 4)])
    assert tokens(plan.assignments) == ["4,5", "0,1,2,3"], "who needs most chooses first"
    prefill, _ = plan.assignments
    assert environment_of(topology, prefill, {}) == {
        "CUDA_VISIBLE_DEVICES": "4,5",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert prefill.reasons[1:] == (
        "next to CPUs 56-111,168-223 of NUMA node 1",
        "next to network devices mlx5_4:1 (2 PCI links away), mlx5_5:1 (2 PCI links away)",
    )


def test_an_outer_restriction_is_kept(tmp_path: Path) -> None:
    topology = DGX.read(tmp_path)
    outer = {"CUDA_VISIBLE_DEVICES": "6,2"}
    seen = restricted(topology, outer)
    plan = assign(seen, PAIR[:2])
    assert tokens(plan.assignments) == ["6", "2"]
    assert [each.gpus[0].numa for each in plan.assignments] == [1, 0]
    told = environment_of(seen, plan.assignments[0], outer)
    assert told == {"CUDA_VISIBLE_DEVICES": "6"}, "numbers mean what they meant outside"


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("", []),
        ("-1", []),
        ("0,9,1", ["0"]),
        ("GPU-00000001", ["GPU-00000001"]),
        ("GPU-0000000", []),
        ("1, 0", ["1", "0"]),
    ],
)
def test_variables_are_read_as_cuda_reads_them(tmp_path: Path, value: str, seen: list[str]) -> None:
    found = restricted(TWO.read(tmp_path), {"CUDA_VISIBLE_DEVICES": value})
    assert [gpu.token for gpu in found.gpus] == seen


def test_a_gpu_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="twice"):
        restricted(TWO.read(tmp_path), {"CUDA_VISIBLE_DEVICES": "0,GPU-00000000"})


def test_numbers_of_unlike_cards_tell_no_place(tmp_path: Path) -> None:
    topology = UNLIKE.read(tmp_path)
    assert restricted(topology, {"CUDA_VISIBLE_DEVICES": "1"}).gpus[0].memory is None
    sure = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert restricted(topology, sure).gpus[0].numa == 0


def test_slices_are_devices_of_their_own(tmp_path: Path) -> None:
    topology = SLICED.read(tmp_path)
    assert [(gpu.token, gpu.memory) for gpu in topology.gpus] == [
        ("MIG-0011-2222", 40 * 10**9),
        ("MIG-0111-2222", 10 * 10**9),
        ("1", H100_MIB << 20),
    ]
    outer = {"CUDA_VISIBLE_DEVICES": "MIG-0111-2222"}
    seen = restricted(topology, outer)
    (one,) = assign(seen, [Wanted("all-0", "unified")]).assignments
    assert environment_of(seen, one, outer) == {"CUDA_VISIBLE_DEVICES": "MIG-0111-2222"}
    assert one.share == 0.9
    with pytest.raises(TandemError, match="one slice"):
        assign(topology, [Wanted("all-0", "unified", 2)])


def test_shares_that_are_given_leave_the_rest(tmp_path: Path) -> None:
    topology = ONE.read(tmp_path)
    given = [Wanted("prefill-0", "prefill", 1, 0.3), PAIR[1]]
    plan = assign(topology, given)
    assert [each.share for each in plan.assignments] == [0.3, 0.6]
    assert "(0.9 - prefill-0 0.3) / 1 = 0.6" in plan.assignments[1].reasons[0]
    with pytest.raises(TandemError, match=r"a 0\.7 \+ b 0\.5 = 1\.2 of it, more than 1"):
        assign(topology, [Wanted("a", "decode", 1, 0.7), Wanted("b", "decode", 1, 0.5)])
    with pytest.raises(TandemError, match=r"a 0\.9 of 0\.9 are taken"):
        assign(topology, [Wanted("a", "decode", 1, 0.9), PAIR[1]])


def test_who_runs_keeps_what_it_has(tmp_path: Path) -> None:
    topology = TWO.read(tmp_path)
    first = assign(topology, PAIR[:1]).assignments
    (second,) = assign(topology, PAIR[1:2], first).assignments
    assert tokens([second]) == ["1"]
    with pytest.raises(TandemError, match=r"decode-1: prefill-0 0\.9 of 0\.9 are taken|decode-0 0\.9 of 0\.9"):
        assign(topology, PAIR[2:], [*first, second])


@pytest.mark.parametrize(("count", "said"), [(0, "no GPU is visible"), (2, "spreads over 4 GPUs")])
def test_what_cannot_be_is_said(count: int, said: str) -> None:
    with pytest.raises(TandemError, match=said) as caught:
        assign(plain(count), [Wanted("all-0", "unified", 4)])
    assert caught.value.code == "bad_setting"


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["prefill", "decode"]), st.integers(1, 4)), min_size=1, max_size=8),
)
def test_everybody_gets_different_gpus_and_nobody_too_much(count: int, workers: list[tuple[str, int]]) -> None:
    wanted = [Wanted(f"w-{at}", role, min(ranks, count)) for at, (role, ranks) in enumerate(workers)]
    plan = assign(plain(count), wanted)
    assert [each.name for each in plan.assignments] == [each.name for each in wanted]
    load: dict[str, list[float]] = {}
    for each, asked in zip(plan.assignments, wanted, strict=True):
        assert len({gpu.token for gpu in each.gpus}) == asked.ranks
        assert each.share > 0
        for gpu in each.gpus:
            load.setdefault(gpu.token, []).append(each.share)
    assert all(sum(shares) <= 0.9 + 1e-9 for shares in load.values())
    if len(wanted) <= count and all(each.ranks == 1 for each in wanted):
        assert all(len(shares) == 1 for shares in load.values()), "nobody shares while a GPU is free"
    assert len(plan.idle) == count - len(load)


@given(st.integers(1, 64))
def test_even_shares_never_add_up_to_more(workers: int) -> None:
    assert workers * even_share(workers) <= 0.9 + 1e-9
    assert even_share(workers) > 0.9 / workers - 0.0011
