"""The workers file is noticed when it appears, changes or is replaced, and a bad one changes nothing."""

import json
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.process.workers_file import Member, WorkersFile, drains_of, read_workers


def write(path: Path, *addresses: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"workers": [{"address": address} for address in addresses]}))
    fresh.replace(path)


def test_members_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    told: list[tuple[Member, ...]] = []
    watch = WorkersFile(path, told.append)
    watch.look()
    assert told == []
    write(path, "a:1", "b:2", "a:1")
    watch.look()
    watch.look()
    assert told == [(Member("a:1"), Member("b:2"))]
    write(path)
    watch.look()
    assert told[-1] == ()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"workers": ["a:1"]}',
        '{"workers": [{"address": 5}]}',
        '{"workers": [{"address": "a:1", "drain_within_s": -1}]}',
    ],
)
def test_a_bad_file_keeps_the_last_good_list(tmp_path: Path, content: str) -> None:
    path = tmp_path / "workers.json"
    told: list[tuple[Member, ...]] = []
    watch = WorkersFile(path, told.append)
    write(path, "a:1")
    watch.look()
    path.write_text(content)
    watch.look()
    path.unlink()
    watch.look()
    assert told == [(Member("a:1"),)]
    path.write_text(content)
    with pytest.raises(TandemError) as failed:
        read_workers(path)
    assert (failed.value.code, failed.value.param) == ("bad_setting", "workers_file")


def test_fields_added_later_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    path.write_text('{"workers": [{"address": "a:1", "zone": "x"}], "revision": 3}')
    assert read_workers(path) == (Member("a:1"),)


def test_a_worker_can_be_asked_to_leave(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    path.write_text('{"workers": [{"address": "a:1"}, {"address": "b:2", "drain_within_s": 20}]}')
    assert drains_of(read_workers(path)) == {"b:2": 20.0}
