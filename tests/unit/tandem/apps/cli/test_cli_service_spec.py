"""`ModelService` files and flags: what they mean, and that anything unknown is refused by its path."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.apps.cli.launches import LaunchContext, members_of, threads_per_worker
from tandem.apps.cli.main import main
from tandem.apps.cli.up_options import model_name, parse
from tandem.core.errors import TandemError
from tandem.process.settings import load_settings
from tandem.spec.quantity import quantity
from tandem.spec.reading import read_service
from tandem.spec.service import ModelService
from tandem.worker.process_settings import WorkerSettings

EXAMPLES = Path(__file__).parents[5] / "examples"

GOOD: dict[str, Any] = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"source": "demo"},
        "engine": {"type": "torch", "dtype": "bfloat16", "blockTokens": 32, "kvMemory": "1Gi"},
        "pools": [
            {"name": "p", "role": "prefill", "replicas": 2},
            {"name": "d", "role": "decode"},
        ],
        "router": {"port": 9000, "grpcPort": 9001},
    },
}


def test_a_redis_may_be_named_where_no_list_of_processes_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_REDIS", "redis://:secret@127.0.0.1:6379")
    assert parse([]).service.spec.redis == "redis://:secret@127.0.0.1:6379"
    assert parse(["--redis", "redis://127.0.0.1:1"]).service.spec.redis == "redis://127.0.0.1:1"


def write(path: Path, value: object) -> Path:
    file = path / "service.yaml"
    file.write_text(yaml.safe_dump(value))
    return file


def changed(*steps: Any) -> dict[str, Any]:
    """GOOD with the value at a path replaced; the last step is the value."""
    *path, key, value = steps
    whole = copy.deepcopy(GOOD)
    inner: Any = whole
    for step in path:
        inner = inner[step]
    inner[key] = value
    return whole


def test_a_good_file_is_read(tmp_path: Path) -> None:
    service = read_service(write(tmp_path, GOOD))
    assert service.model_name == "demo"
    assert [(pool.name, pool.role, pool.first_replicas) for pool in service.spec.pools] == [
        ("p", "prefill", 2),
        ("d", "decode", 1),
    ]
    assert (service.spec.router.port, service.spec.router.grpc_port) == (9000, 9001)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_good(path: Path) -> None:
    assert read_service(path).spec.pools


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (changed("spec", "surprise", 1), "spec: Object contains unknown field `surprise`"),
        (changed("spec", "pools", 0, "gpus", 1), "spec.pools[0]: Object contains unknown field `gpus`"),
        (
            changed("spec", "engine", "preset", "h100-llama-3.1-8b"),
            "engine.preset: preset is for engine type simulated",
        ),
        (
            changed("spec", "engine", {"type": "simulated", "preset": "b200"}),
            "engine.preset: preset is for engine type simulated",
        ),
        (changed("spec", "engine", "type", "magic"), "spec.engine.type: Invalid enum value 'magic'"),
        (changed("spec", "pools", 1, "replicas", "two"), "spec.pools[1].replicas: Expected `int | null`, got `str`"),
        (changed("spec", "pools", 1, "replicas", -1), "spec.pools[1].replicas is -1"),
        (changed("spec", "pools", 1, "name", "p"), "spec.pools[1].name 'p' is taken"),
        (changed("spec", "pools", 1, "name", "No Good"), "spec.pools[1].name 'No Good' must be"),
        (changed("spec", "pools", [{"name": "p", "role": "prefill"}]), "spec.pools: pools has none that can decode"),
        (changed("spec", "engine", "kvMemory", "lots"), "spec.engine.kvMemory 'lots' is not a size"),
        (changed("spec", "tiers", {"dram": "lots"}), "spec.tiers.dram 'lots' is not a size"),
        (changed("spec", "tiers", {"nvme": "4Gi"}), "spec.tiers: nvme and nvmeDir go together"),
        (changed("spec", "engine", "blockTokens", 0), "spec.engine.blockTokens is 0"),
        (changed("spec", "router", "port", 70000), "spec.router.port is 70000"),
        (changed("apiVersion", "v1"), "apiVersion and kind must be"),
        (changed("metadata", {}), "metadata: Object missing required field `name`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, value: object, said: str) -> None:
    file = write(tmp_path, value)
    with pytest.raises(TandemError) as caught:
        read_service(file)
    assert caught.value.code == "bad_setting"
    assert caught.value.message.startswith(f"{file}: ")
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_what_is_not_yaml_or_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("a: [1\nb: }")
    assert main(["up", str(tmp_path / "bad.yaml")]) == 2
    assert main(["up", str(tmp_path / "absent.yaml")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "is not YAML" in said[0]
    assert "absent.yaml cannot be read" in said[1]


def test_flags_say_the_same_as_a_file() -> None:
    service = parse(["--engine", "simulated", "--prefill", "2", "--decode", "3", "--port", "0"]).service
    assert [(pool.role, pool.replicas) for pool in service.spec.pools] == [("prefill", 2), ("decode", 3)]
    assert service.model_name == "demo"


def test_without_prefill_workers_the_others_do_both() -> None:
    service = parse(["--prefill", "0", "--decode", "2"]).service
    assert [(pool.name, pool.role) for pool in service.spec.pools] == [("decode", "unified")]


@pytest.mark.parametrize(
    "arguments", [["--prefill", "1", "--decode", "0"], ["--port", "70000"], ["--kv-memory", "x"]]
)
def test_flags_that_cannot_work_are_refused(arguments: list[str]) -> None:
    with pytest.raises(TandemError):
        parse(arguments)


def test_a_file_takes_ports_but_no_other_flags(tmp_path: Path) -> None:
    file = str(write(tmp_path, GOOD))
    assert parse([file, "--port", "1234"]).service.spec.router.port == 1234
    with pytest.raises(TandemError, match=r"--model, --prefill cannot be combined"):
        parse([file, "--model", "demo", "--prefill", "2"])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512Mi", 512 << 20),
        ("2G", 2 * 10**9),
        ("1.5Ki", 1536),
        (4096, 4096),
        ("10", 10),
        ("-1", None),
        ("1 Gi", None),
    ],
)
def test_quantities(text: str | int, size: int | None) -> None:
    assert quantity(text) == size


def test_model_names() -> None:
    assert model_name("demo") == "demo"
    assert model_name("org/Model-1B") == "Model-1B"
    assert model_name("/data/models/tiny/") == "tiny"


def places() -> LaunchContext:
    return LaunchContext(Path("/run/fleet.json"), Path("/run/key"), Path("/run/s"), 9000, 9001)


def service() -> ModelService:
    return parse(["--prefill", "1", "--decode", "2", "--kv-memory", "1Mi"]).service


def test_every_process_gets_its_command_and_no_secret_in_it() -> None:
    members = members_of(service(), places(), cores=8, environment={"HOME": "/home/x"})
    assert [(member.name, member.role) for member in members] == [
        ("router", "router"),
        ("prefill-0", "prefill"),
        ("decode-0", "decode"),
        ("decode-1", "decode"),
    ]
    modules = [member.command.argv[2] for member in members]
    assert modules == ["router", "prefill_worker", "decode_worker", "decode_worker"]
    assert members[1].command.env["OMP_NUM_THREADS"] == "2"
    assert members[1].command.env["HOME"] == "/home/x"
    assert len({member.command.name for member in members}) == len(members)


def test_the_shared_index_is_told_to_everybody_but_not_on_command_lines() -> None:
    url = "redis://:secret@cache:6379"
    members = members_of(parse(["--redis", url]).service, places(), cores=8, environment={})
    assert {member.command.env["TANDEM_INDEX__REDIS_URL"] for member in members} == {url}
    assert not any("secret" in part for member in members for part in member.command.argv)
    with pytest.raises(TandemError, match=r"spec\.redis"):
        parse(["--redis", "http://cache"])


def test_workers_are_told_what_to_keep_below_their_pools() -> None:
    flags = ["--dram-gb", "0.5", "--nvme-gb", "0.4", "--nvme-dir", "/cache"]
    router, *workers = members_of(parse(flags).service, places(), cores=2, environment={})
    assert "--tiers.dram_bytes" not in router.command.argv
    for worker in workers:
        settings = load_settings(WorkerSettings, list(worker.command.argv[4:]), {})
        assert (settings.tiers.dram_bytes, settings.tiers.nvme_bytes) == (500_000_000, 400_000_000)
        assert settings.tiers.nvme_dir == Path("/cache")
        assert settings.tiers.segment_bytes == 50_000_000, "small files for little room"


@pytest.mark.parametrize(("cores", "workers", "threads"), [(2, 3, 1), (8, 3, 2), (64, 2, 32), (4, 0, 4)])
def test_threads_are_shared_out(cores: int, workers: int, threads: int) -> None:
    assert threads_per_worker(cores, workers) == threads


def test_a_preset_is_one_of_those_there_are() -> None:
    options = parse(["--engine", "simulated", "--preset", "h100-qwen3-32b-tp2"])
    assert options.service.spec.engine.preset == "h100-qwen3-32b-tp2"
    with pytest.raises(SystemExit):
        parse(["--engine", "simulated", "--preset", "b200"])
