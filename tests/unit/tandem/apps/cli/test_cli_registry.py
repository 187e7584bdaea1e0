"""Which platforms run: private files, replaced at once, believed only while their platform lives."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tandem.apps.cli.registry import MemberEntry, PlatformEntry, find, find_with_pools, open_registry, process_start
from tandem.core.errors import TandemError

ROUTER = MemberEntry("router", "router", 1, "ready", "127.0.0.1:8000", "", 0)
WORKER = MemberEntry("decode-0", "decode", 2, "ready", "tcp://127.0.0.1:5", "127.0.0.1:6", 1)


def entry(url: str = "http://127.0.0.1:8000", pid: int | None = None) -> PlatformEntry:
    pid = os.getpid() if pid is None else pid
    began = process_start(pid) or 0
    return PlatformEntry(url=url, run_directory="/r", control="/r/c", members=(ROUTER, WORKER), pid=pid, began=began)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}


def test_a_published_platform_is_found_by_any_name_of_this_machine(environment: dict[str, str]) -> None:
    registry = open_registry(environment)
    registry.publish(entry())
    for url in ("http://127.0.0.1:8000", "http://localhost:8000/v1", "http://[::1]:8000", "127.0.0.1:8000"):
        assert find(url, environment) == entry()
    assert entry().member("decode-0") == WORKER
    with pytest.raises(TandemError, match="no member 'decode-9'; there are router, decode-0"):
        entry().member("decode-9")


def test_it_is_private_and_leaves_nothing_behind(environment: dict[str, str], tmp_path: Path) -> None:
    registry = open_registry(environment)
    registry.publish(entry())
    directory = tmp_path / "tandem"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "8000.json").stat().st_mode) == 0o600
    registry.withdraw()
    registry.withdraw()
    assert not directory.exists()


def test_a_change_is_seen_and_another_platform_is_left_alone(environment: dict[str, str]) -> None:
    one, other = open_registry(environment), open_registry(environment)
    one.publish(entry())
    other.publish(entry("http://127.0.0.1:8001"))
    one.publish(msgspec.structs.replace(entry(), members=(ROUTER,)))
    assert find("http://127.0.0.1:8000", environment).members == (ROUTER,)
    one.withdraw()
    assert find("http://127.0.0.1:8001", environment) == entry("http://127.0.0.1:8001")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://192.0.2.7:8000", "http://127.0.0.1"])
def test_where_nothing_runs_the_error_says_what_to_do(url: str, environment: dict[str, str]) -> None:
    open_registry(environment).publish(entry())
    with pytest.raises(TandemError, match=r"no `tandem up` of this user serves .*start one with `tandem up") as found:
        find(url, environment)
    assert found.value.code == "not_found"


def test_what_a_dead_platform_left_is_not_believed(environment: dict[str, str]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    alive = entry(pid=ended.pid)
    ended.wait()
    open_registry(environment).publish(alive)
    with pytest.raises(TandemError) as found:
        find("http://127.0.0.1:8000", environment)
    assert found.value.code == "not_found"


def test_what_a_killed_platform_left_is_cleared_and_nothing_else(environment: dict[str, str], tmp_path: Path) -> None:
    """kill -9 of `tandem up` leaves its ticket key, logs and sockets."""
    directories = {name: tmp_path / name for name in ("tandem-dead", "tandem-alive", "mine", "tandem-open")}
    for name, directory in directories.items():
        directory.mkdir(mode=0o755 if name == "tandem-open" else 0o700)
        (directory / "ticket.key").write_text("secret")
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead = entry(pid=ended.pid)
    ended.communicate(b"\n")
    for port, name in enumerate(directories, 8000):
        of = entry() if name == "tandem-alive" else dead
        url, place = f"http://127.0.0.1:{port}", str(directories[name])
        open_registry(environment).publish(msgspec.structs.replace(of, url=url, run_directory=place))
    (tmp_path / "tandem" / "9000.json").write_text("of another version")
    assert open_registry(environment).clear_dead() == [str(directories["tandem-dead"])]
    assert [name for name, each in directories.items() if each.exists()] == ["tandem-alive", "mine", "tandem-open"]
    assert {path.name for path in (tmp_path / "tandem").iterdir()} == {"8001.json", "9000.json"}
    assert open_registry(environment).clear_dead() == []


def test_another_process_with_the_same_number_is_another_process(environment: dict[str, str]) -> None:
    open_registry(environment).publish(msgspec.structs.replace(entry(), began=1))
    with pytest.raises(TandemError):
        find("http://127.0.0.1:8000", environment)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://127.0.0.1:8000"}'])
def test_a_file_of_another_kind_is_no_platform(content: str, environment: dict[str, str], tmp_path: Path) -> None:
    open_registry(environment)
    (tmp_path / "tandem" / "8000.json").write_text(content)
    with pytest.raises(TandemError):
        find("http://127.0.0.1:8000", environment)


def test_a_directory_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    open_registry(environment).publish(entry())
    directory = tmp_path / f"tandem-{os.getuid()}"
    assert find("http://127.0.0.1:8000", environment) == entry()
    directory.chmod(0o777)
    with pytest.raises(TandemError):
        find("http://127.0.0.1:8000", environment)
    with pytest.raises(TandemError, match="it is open to other users; run `chmod 700"):
        open_registry(environment)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"tandem-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TandemError, match="not a directory"):
        open_registry({"TMPDIR": str(tmp_path)})


def test_without_a_usable_runtime_directory_the_other_one_is_used(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": "/nowhere/at/all", "TMPDIR": str(tmp_path)}
    open_registry(environment).publish(entry())
    assert find("http://127.0.0.1:8000", environment) == entry()
    assert find("http://127.0.0.1:8000", {"TMPDIR": str(tmp_path)}) == entry()


URL = "http://127.0.0.1:8000"


def on_ray(service: str, *pools: str, pid: int) -> PlatformEntry:
    """The entry of a `tandem up --on ray`, kept by the number of a process that surely lives."""
    began = process_start(pid) or 0
    return msgspec.structs.replace(entry(), service=service, pools=pools, pid=pid, began=began)


def test_services_that_share_a_url_are_found_by_their_pools(environment: dict[str, str]) -> None:
    chat, other = on_ray("chat", "a", "all", pid=os.getpid()), on_ray("other", "ab", "all", pid=os.getppid())
    registry = open_registry(environment)
    registry.publish(chat)
    open_registry(environment).publish(other)
    assert find_with_pools(URL, ["a"], None, environment) == chat
    assert find_with_pools(URL, ["ab", "all"], None, environment) == other
    assert find_with_pools(URL, ["all"], "other", environment) == other
    with pytest.raises(
        TandemError, match=r"chat at .* and other at .* have all: choose one with --service or --url"
    ) as several:
        find_with_pools(URL, ["all"], None, environment)
    assert several.value.code == "conflict"
    with pytest.raises(TandemError, match=r"no service at .* has a and ab; chat has a, all; other has ab, all"):
        find_with_pools(URL, ["a", "ab"], None, environment)
    with pytest.raises(TandemError, match="no service 'third' at"):
        find_with_pools(URL, ["all"], "third", environment)
    registry.withdraw()
    assert find(URL, environment) == other


def test_a_platform_at_the_very_host_comes_before_those_of_other_addresses(environment: dict[str, str]) -> None:
    far = msgspec.structs.replace(on_ray("chat", "decode", pid=os.getppid()), url="http://10.0.0.1:8000")
    local = open_registry(environment)
    local.publish(entry())
    open_registry(environment).publish(far)
    for url in (URL, "http://localhost:8000"):
        assert find_with_pools(url, ["decode"], None, environment) == entry()
    assert find_with_pools(far.url, ["decode"], None, environment) == far
    local.withdraw()
    assert find_with_pools(URL, ["decode"], None, environment) == far


def test_a_platform_that_has_its_url_alone_says_itself_which_pools_it_has(environment: dict[str, str]) -> None:
    open_registry(environment).publish(entry())
    assert find_with_pools(URL, ["any"], None, environment) == entry()


@pytest.mark.parametrize("url", ["", "http://", "http://x:y", "http://[::1"])
def test_what_is_no_url_is_said_to_be_none(url: str, environment: dict[str, str]) -> None:
    with pytest.raises(TandemError) as found:
        find(url, environment)
    assert found.value.code == "bad_setting"
