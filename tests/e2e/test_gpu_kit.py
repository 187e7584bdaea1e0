"""The GPU proof kit runs on a CPU in tiny sizes, so that it still runs where there is a GPU."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.__main__ import BOUNDS_S, apart, measured, report
from benchmarks.gpu.results import Measurement, Section
from benchmarks.gpu.target import Target


@pytest.mark.parametrize("step", [step for step in BOUNDS_S if step not in ("pair", "nixl")])
def test_a_step_measures_something(step: str, tmp_path: Path) -> None:
    section = measured(step, Target(torch.device("cpu"), True, tmp_path))
    assert section.problems == []
    assert section.figures
    assert all(figure.value > 0 for figure in section.figures)


def test_a_pair_of_processes_answers(tmp_path: Path) -> None:
    section = measured("pair", Target(torch.device("cpu"), True, tmp_path))
    assert section.problems == []
    moved = next(figure for figure in section.figures if figure.name == "KV bytes of its hand-over")
    assert moved.value > 0


def test_nixl_runs_or_says_why_not(tmp_path: Path) -> None:
    section = measured("nixl", Target(torch.device("cpu"), True, tmp_path))
    assert section.problems == []
    assert bool(section.skipped) != bool(section.figures)


def test_a_step_is_a_process_of_its_own(tmp_path: Path) -> None:
    given = argparse.Namespace(device="cpu", tiny=True)
    section = apart("tiers", given, tmp_path)
    assert section.problems == []
    assert section.figures


def test_the_report_names_the_machine_and_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Target(torch.device("cpu"), True, tmp_path).machine()
    good = Section("ceilings", "Ceilings", [Measurement("copy", 12.5, "GB/s")])
    assert report(machine, [good], tmp_path) == 0
    bad = Section("copies", "Copies", problems=["other bytes"])
    assert report(machine, [good, bad], tmp_path) == 1
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["machine"]["date"]
    assert told["sections"][1]["problems"] == ["other bytes"]
    page = (tmp_path / "gpu.md").read_text()
    assert "The figures mean nothing" in page, "no figure of a CPU passes for one of a GPU"
    assert "| copy | 12.5 GB/s |" in page
    assert "bench-gpu: FAILED: copies" in capsys.readouterr().out
