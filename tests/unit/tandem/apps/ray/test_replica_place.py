"""Folders of replicas: private, short enough for sockets, apart by node, and gone with the last of a node."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem.apps.ray.replica_place import ReplicaPlace, make_place
from tandem.core.errors import TandemError

NODE = "c0ffee" * 9


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tandem.apps.ray.replica_place._BASE_MAX", 1000)
    return tmp_path


def test_replicas_of_a_node_share_sockets_and_nothing_else(base: Path) -> None:
    one, two = (make_place("127.0.0.1", NODE, base / "logs") for _ in range(2))
    other = make_place("127.0.0.2", "beef" * 14, base / "logs")
    assert one.sockets == two.sockets != other.sockets
    assert one.directory != two.directory
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o700 for each in (one.directory, one.sockets))
    one.write_key("abcd")
    assert one.key_file.read_text() == "abcd\n"
    assert stat.S_IMODE(one.key_file.stat().st_mode) == 0o600
    for each in (one, two, other):
        each.remove()
    assert [path.name for path in base.iterdir()] == ["logs"]


def test_replicas_that_come_and_go_at_once_always_have_sockets(base: Path) -> None:
    def come_and_go(_: int) -> bool:
        place = make_place("h", NODE, base / "logs")
        there = place.sockets.is_dir() and place.directory.is_dir()
        place.remove()
        return there

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(come_and_go, range(400)))
    assert [path.name for path in base.iterdir()] == ["logs"]


def killed(place: ReplicaPlace) -> Path:
    """As the kernel leaves it: the folder with its key, and nobody who holds it."""
    place.write_key("abcd")
    os.close(place.held)
    return place.directory


def test_folders_of_replicas_that_were_killed_are_removed(base: Path) -> None:
    left = killed(make_place("h", NODE, base / "logs"))
    alive = make_place("h", NODE, base / "logs")
    assert not left.exists()
    third = make_place("h", NODE, base / "logs")
    assert alive.directory.exists()
    assert third.directory.exists()


def test_what_a_killed_node_has_left_is_removed_by_the_next_node_of_the_machine(base: Path) -> None:
    left = killed(make_place("h", NODE, base / "logs"))
    neighbour = make_place("h", "beef" * 14, base / "other" / "logs")
    assert not left.parent.exists(), "key and all"
    third = make_place("h", "feed" * 14, base / "logs")
    assert neighbour.directory.exists()
    assert neighbour.sockets.exists()
    for each in (neighbour, third):
        each.remove()
    assert not list(base.glob("tandem-*"))


def test_a_replica_that_ends_takes_along_what_its_neighbours_have_left(base: Path) -> None:
    last = make_place("h", NODE, base / "logs")
    left = killed(make_place("h", NODE, base / "logs"))
    last.remove()
    assert not left.parent.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(base: Path) -> None:
    shared = make_place("h", NODE, base / "logs").sockets.parent
    os.chown(shared, 12345, 12345)
    with pytest.raises(TandemError, match="another user"):
        make_place("h", NODE, base / "logs")
