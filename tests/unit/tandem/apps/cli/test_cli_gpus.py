"""`tandem up` on GPUs: what every child process is told, and what is said and refused before any starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.apps.cli.gpu_fit import fit_of
from tandem.apps.cli.gpus import Gpus
from tandem.apps.cli.launches import LaunchContext, members_of
from tandem.apps.cli.member import Member
from tandem.apps.cli.platform import Platform
from tandem.apps.cli.up_options import parse
from tandem.core.errors import TandemError
from tandem.devices.assigning import Assignment
from tandem.devices.topology import Gpu, Topology
from tandem.process.settings import load_settings
from tandem.spec.engine import EngineSpec
from tandem.spec.service import ModelService
from tandem.worker.process_settings import WorkerSettings
from tests.worlds.gpu_machines import DGX, FOUR, ONE, TWO, Machine

PLACES = LaunchContext(Path("/run/fleet.json"), Path("/run/key"), Path("/run/s"), 9000, None)
COMMAND = ["--engine", "vllm", "--device", "cuda", "--prefill", "1", "--decode", "2"]
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


class StandingClock:
    """Time passes by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def gpus_of(topology: Topology | None, environment: dict[str, str], clock: StandingClock | None = None) -> Gpus:
    return Gpus(environment, Path("/run/s"), clock or StandingClock(), lambda: topology)


def started(machine: Machine, root: Path, *more: str, **environment: str) -> list[Member]:
    """The workers of `tandem up` on such a machine."""
    gpus = gpus_of(machine.read(root), environment)
    return members_of(parse([*COMMAND, *more]).service, PLACES, 16, environment, (), gpus)[1:]


def directory(path: Path, config: dict[str, Any]) -> Path:
    """A model without weights."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def settings_of(member: Member) -> WorkerSettings:
    return load_settings(WorkerSettings, list(member.command.argv[4:]), {})


@pytest.mark.parametrize(
    ("machine", "visible", "shares"),
    [
        (ONE, ["0", "0", "0"], [0.3, 0.3, 0.3]),
        (TWO, ["0", "1", "1"], [0.9, 0.45, 0.45]),
        (FOUR, ["0", "1", "2"], [0.9, 0.9, 0.9]),
    ],
    ids=["1 GPU", "2 GPUs", "4 GPUs"],
)
def test_every_worker_gets_its_gpu(machine: Machine, visible: list[str], shares: list[float], tmp_path: Path) -> None:
    workers = started(machine, tmp_path)
    assert [worker.name for worker in workers] == ["prefill-0", "decode-0", "decode-1"]
    assert [worker.command.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == visible
    assert {worker.command.env["CUDA_DEVICE_ORDER"] for worker in workers} == {"PCI_BUS_ID"}
    assert [settings_of(worker).vllm.gpu_memory_share for worker in workers] == shares
    locks = [settings_of(worker).vllm.start_locks for worker in workers]
    assert len(set(locks)) == len(set(visible)), "those on one GPU start one after the other"


def test_what_lies_near_the_gpus_is_said_and_left_to_the_workers(tmp_path: Path) -> None:
    model = directory(tmp_path / "model", LLAMA_8B)
    gpus = gpus_of(DGX.read(tmp_path / "machine"), {})
    service = parse([*COMMAND, "--model", str(model), "--tensor", "4", "--decode", "1"]).service
    prefill, decode = members_of(service, PLACES, 16, {}, (), gpus)[1:]
    assert prefill.command.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert decode.command.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert "UCX_NET_DEVICES" not in decode.command.env
    assert settings_of(decode).bind
    assert "next to CPUs 56-111,168-223 of NUMA node 1" in gpus.notes[1]
    assert "next to network devices mlx5_4:1" in gpus.notes[1]


def test_an_outer_restriction_holds_for_the_workers(tmp_path: Path) -> None:
    workers = started(DGX, tmp_path, CUDA_VISIBLE_DEVICES="5,7")
    assert [worker.command.env["CUDA_VISIBLE_DEVICES"] for worker in workers] == ["5", "7", "7"]
    assert all("CUDA_DEVICE_ORDER" not in worker.command.env for worker in workers)


def test_the_embedded_engine_is_told_its_share_too(tmp_path: Path) -> None:
    gpus = gpus_of(ONE.read(tmp_path), {})
    service = parse(["--device", "cuda", "--prefill", "1", "--decode", "1"]).service
    workers = members_of(service, PLACES, 16, {}, (), gpus)[1:]
    assert [settings_of(worker).torch.gpu_memory_share for worker in workers] == [0.45, 0.45]


def test_workers_on_cpus_are_left_alone() -> None:
    def never() -> Topology:
        raise AssertionError("nobody asked for a GPU")

    gpus = Gpus({}, Path("/run/s"), StandingClock(), never)
    workers = members_of(parse([]).service, PLACES, 2, {}, (), gpus)[1:]
    assert all("CUDA_VISIBLE_DEVICES" not in worker.command.env for worker in workers)
    assert gpus.notes == []


def test_a_machine_without_tools_is_said() -> None:
    gpus = gpus_of(None, {})
    members_of(parse(COMMAND).service, PLACES, 2, {}, (), gpus)
    assert len(gpus.notes) == 1
    assert "neither nvidia-smi nor rocm-smi" in gpus.notes[0]


def test_what_is_given_is_said_with_its_arithmetic(tmp_path: Path) -> None:
    gpus = gpus_of(ONE.read(tmp_path), {})
    members_of(parse(COMMAND).service, PLACES, 2, {}, (), gpus)
    assert gpus.notes[0].startswith("prefill-0: GPU 0 (NVIDIA H100 80GB HBM3), with decode-0, decode-1: share")
    assert "of 85.52 GB, 70% are left to others" in gpus.notes[0]


def test_a_worker_that_comes_later_takes_what_is_free(tmp_path: Path) -> None:
    clock = StandingClock()
    gpus = gpus_of(TWO.read(tmp_path), {}, clock)
    service = parse(["--engine", "vllm", "--device", "cuda", "--prefill", "0", "--decode", "1"]).service
    (pool,) = service.spec.pools
    gpus.give(service, [(pool, 0)])
    second = gpus.give(service, [(pool, 1)], {"decode-0"})["decode-1"]
    assert second.environment["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(TandemError, match=r"no memory left for decode-2: decode-0 0\.9 of 0\.9 are taken"):
        gpus.give(service, [(pool, 2)], {"decode-0"}), "the second one is still on its way"
    clock.time = 10.0
    third = gpus.give(service, [(pool, 2)], {"decode-0"})["decode-2"]
    assert third.environment["CUDA_VISIBLE_DEVICES"] == "1", "what has left, has left its GPU"


def test_the_platform_asks_for_the_machine_and_says_what_it_found(tmp_path: Path) -> None:
    service = parse([*COMMAND, "--port", "0"]).service
    platform = Platform(service, {}, topology=lambda: ONE.read(tmp_path))
    try:
        assert [note.partition(":")[0] for note in platform.notes] == ["prefill-0", "decode-0", "decode-1"]
        assert platform.members[1].command.env["CUDA_VISIBLE_DEVICES"] == "0"
    finally:
        platform.directory.remove()


def given_share(share: float, gigabytes: float = 85.52, count: int = 1) -> Assignment:
    gpus = tuple(Gpu(str(at), "card", f"u{at}", memory=int(gigabytes * 1e9)) for at in range(count))
    return Assignment("decode-0", "decode", gpus, share)


def vllm(**more: Any) -> EngineSpec:
    return EngineSpec(type="vllm", device="cuda", context_tokens=32768, **more)


def test_what_does_not_fit_is_refused_with_the_sum() -> None:
    said = fit_of(LLAMA_8B, 16_060_000_000, vllm(), given_share(0.45))
    assert said.startswith("weights 16.06 GB over 1 accelerators are 16.06 GB each, activations about 0.")
    with pytest.raises(TandemError, match=r"decode-0 does not fit GPU 0: weights 16\.06 GB .* larger gpuMemoryShare"):
        fit_of(LLAMA_8B, 16_060_000_000, vllm(), given_share(0.18))
    with pytest.raises(TandemError, match=r"one sequence of 32768 tokens needs 4\.29 GB"):
        fit_of(LLAMA_8B, 16_060_000_000, vllm(), given_share(0.22))


def test_quantized_weights_count_as_their_files_do() -> None:
    quantized = {**LLAMA_8B, "quantization_config": {"quant_method": "compressed-tensors"}}
    assert fit_of(quantized, 5_700_000_000, vllm(), given_share(0.18)).startswith("weights 5.70 GB")
    assert "not checked" in fit_of(quantized, 0, vllm(), given_share(0.18)), "no files, no sum"


@pytest.mark.parametrize(
    ("config", "memory", "said"),
    [
        ({"model_type": "mamba2"}, 80.0, "memory not checked: config.json: the parts of models of type 'mamba2'"),
        ({**LLAMA_8B, "sliding_window": 1024}, 23.0, "hold KV of"),
    ],
)
def test_what_cannot_be_known_is_said(config: dict[str, Any], memory: float, said: str) -> None:
    assert said in fit_of(config, 16_060_000_000, vllm(), given_share(0.9, memory))


def test_a_driver_that_tells_no_size_is_said() -> None:
    unknown = Assignment("decode-0", "decode", (Gpu("0", "card", "u"),), 0.9)
    assert "the driver does not say" in fit_of(LLAMA_8B, 1, vllm(), unknown)


def test_a_model_that_does_not_fit_stops_the_start(tmp_path: Path) -> None:
    model = directory(tmp_path / "model", {**LLAMA_8B, "num_hidden_layers": 640})
    with pytest.raises(TandemError, match="prefill-0 does not fit GPU 0"):
        started(ONE, tmp_path / "machine", "--model", str(model))


def service_of_share(share: str) -> ModelService:
    return parse([*COMMAND, "--gpu-memory-share", share]).service


def test_the_share_can_be_given(tmp_path: Path) -> None:
    """It could not: extraArgs pointed to a setting that no file had."""
    workers = started(ONE, tmp_path, "--gpu-memory-share", "0.2")
    assert [settings_of(worker).vllm.gpu_memory_share for worker in workers] == [0.2] * 3
    with pytest.raises(TandemError, match="gpuMemoryShare"):
        service_of_share("1.5")
