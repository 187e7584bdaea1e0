"""The benchmark of vLLM's stage runs in small sizes, so that it still runs when somebody measures with it."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import stage_copies, stage_side


def test_a_hand_off_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_copies, "TOKENS", 300)
    monkeypatch.setattr(stage_copies, "CHUNK", 128)
    monkeypatch.setattr(stage_copies, "CHUNK_S", 0.0)
    assert stage_copies.main(["--only", "handoff", "--pairs", "1", "--json", str(tmp_path / "figures.json")]) == 0
    (figure,) = json.loads((tmp_path / "figures.json").read_text())
    assert figure["unit"] == "ms"
    assert len(figure["values"]["after"]) == 2
    assert all(value > 0 for value in figure["values"]["after"])


def test_copies_of_every_layout_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage_copies, "_SHAPES", stage_copies._SHAPES[:1])
    assert stage_copies.main(["--only", "copies", "--pairs", "1"]) == 0
    told = capsys.readouterr().out
    assert "tiny blocks, layers apart, scattered: load" in told
    assert "13 figures" in told


def test_a_layout_that_is_over_leaves_no_slots_behind() -> None:
    def mapped() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum("tandem-kv" in os.readlink(link) for link in links if os.path.lexists(link))

    layouts, found = stage_side.Layouts(), []
    layout = {"layers": 1, "units": 1, "tensor": 1, "content": 32, "axes": (0, 1, 2, 3, 4), "apart": False}
    for name in ("a", "b", "c"):
        assert layouts.rate({"how": "save", "order": "neighbours", "name": name, **layout}) > 0
        found.append(mapped())
    assert found[0] > 0
    assert found == found[:1] * 3
