"""A benchmark's processes end whatever becomes of them, and what went wrong with one is told."""

import os
from pathlib import Path

import pytest

from benchmarks import tree_side
from benchmarks.tree_side import TreeSide


def side(tmp_path: Path, script: str) -> TreeSide:
    path = tmp_path / "script.py"
    path.write_text(script)
    return TreeSide(path, tmp_path)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_line_is_answered_by_a_line_and_the_process_ends_with_its_input(tmp_path: Path) -> None:
    echo = side(tmp_path, "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)")
    assert [echo.ask("a"), echo.ask("bc")] == ["aa\n", "bcbc\n"]
    pid = echo._process.pid
    echo.end()
    assert gone(pid)


def test_a_process_that_ends_instead_of_answering_is_told_of(tmp_path: Path) -> None:
    broken = side(tmp_path, "import sys\nsys.stdin.readline()\nsys.exit(3)")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ended instead of answering 'what'"):
            broken.ask("what")
    broken.end()
    assert gone(broken._process.pid)


def test_a_process_that_neither_answers_nor_ends_is_given_up_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_side, "ANSWER_S", 0.2)
    monkeypatch.setattr(tree_side, "END_S", 0.2)
    stuck = side(tmp_path, "import time\ntime.sleep(600)")
    with pytest.raises(RuntimeError, match="did not answer 'what'"):
        stuck.ask("what")
    monkeypatch.setattr(tree_side, "END_S", 0.2)
    stuck.end()
    assert gone(stuck._process.pid)
