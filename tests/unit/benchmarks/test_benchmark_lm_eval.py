"""How two runs of the lm-evaluation-harness are compared."""

import json
from pathlib import Path
from typing import Any

from benchmarks.lm_eval import TASKS, differences, judge, write_tasks


def test_numbers_may_differ_by_the_tolerance_and_nothing_else_may() -> None:
    assert differences([["-1.01", "True"]], [["-1.02", "True"]], 0.02) == []
    assert differences([["-1.01", "True"]], [["-1.04", "True"]], 0.02) == ["-1.01 and -1.04"]
    assert differences([["-1.01", "True"]], [["-1.01", "False"]], 0.02) == ["'True' and 'False'"]
    assert differences(["a fox"], ["a dog"], 9.0) == ["'a fox' and 'a dog'"]
    assert differences([1.0], [1.0, 2.0], 0.02) == ["[1.0] and [1.0, 2.0]"]


def test_every_difference_is_told_with_its_document() -> None:
    same: dict[str, list[Any]] = {task: [[["-1.0", "True"]], [["-2.0", "False"]]] for task in TASKS}
    other = {**same, TASKS[1]: [[["-1.0", "True"]], [["-3.0", "False"]]]}
    assert judge(same, same, 0.02) == []
    assert judge(same, other, 0.02) == [f"{TASKS[1]}, document 1: -2.0 and -3.0"]


def test_documents_follow_from_the_seed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_tasks(tmp_path / name, 5, seed=3)
    one, two = ((tmp_path / name / "documents.jsonl").read_text() for name in ("one", "two"))
    assert one == two
    assert all(len(json.loads(line)["choices"]) == 3 for line in one.splitlines())
    assert sorted(path.stem for path in (tmp_path / "one").glob("*.yaml")) == sorted(TASKS)
