"""What is compiled of the fleet simulator, and what becomes of it where there is no compiler."""

import sys
from pathlib import Path

import pytest

from tools import compiled_fleet


def test_all_that_is_hot_is_there() -> None:
    """A module that moves has to be named anew, or the bench gets slower without a word."""
    root = Path(compiled_fleet.__file__).parents[1]
    files = [str(path.relative_to(root)) for path in compiled_fleet._hot()]
    assert all((root / file).exists() for file in files)
    for each in compiled_fleet._HOT:
        assert any(file == each or file.startswith(each + "/") for file in files), each
    assert {"benchmarks/fleet/worker.py", "tandem/engine/scheduler/step_model.py"} <= set(files)


def test_constants_that_are_tuples_lose_what_mypyc_stumbles_over_and_nothing_else_does() -> None:
    source = "_A: Final = (1.0, 2.0)\n_N: Final = len(_A)\n_F: Final = 3.0\n    x: Final = (1,)\n"
    assert compiled_fleet._TUPLE.sub(r"\1 = ", source) == (
        "_A = (1.0, 2.0)\n_N = len(_A)\n_F: Final = 3.0\n    x: Final = (1,)\n"
    )


def test_without_a_compiler_nothing_is_made_and_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["compiled_fleet", str(tmp_path / "fleet")])
    assert compiled_fleet.main() == compiled_fleet.NO_COMPILER
    assert not (tmp_path / "fleet").exists()
    assert "no C compiler" in capsys.readouterr().err
