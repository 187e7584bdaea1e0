"""Local processes: output is kept, groups die whole, nothing outlives its parent; run directories are private."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.apps.cli.ports import check_free, free_port
from tandem.apps.cli.run_directory import RunDirectory, tail
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.process.local_processes import LocalProcesses
from tandem.process.processes import Command, Process

GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that Linux gives to whoever listens on port 0 or connects."""

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def python(name: str, code: str) -> Command:
    return Command(name, [sys.executable, "-c", code], ENVIRONMENT)


async def all_lines(process: Process) -> list[str]:
    lines: list[str] = []
    while (more := await process.lines()) is not None:
        lines += more
    return lines


async def test_output_is_read_by_line_and_kept_in_the_log(tmp_path: Path) -> None:
    control = LocalProcesses(tmp_path)
    code = "import sys; print('one'); print('two'); sys.stderr.write('oops\\n'); sys.exit(3)"
    process = await control.start(python("worker-0", code))
    assert await all_lines(process) == ["one", "two"]
    assert await process.wait() == 3
    log = control.log_of("worker-0").read_text()
    assert sorted(log.split()) == ["one", "oops", "two"]
    assert "oops" in tail(control.log_of("worker-0"))


async def test_a_program_that_is_not_there_is_a_setting(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="/nowhere/python cannot be run"):
        await LocalProcesses(tmp_path).start(Command("x", ["/nowhere/python"], ENVIRONMENT))


async def test_a_signal_gives_a_negative_status(tmp_path: Path) -> None:
    process = await LocalProcesses(tmp_path).start(
        python("x", "import time; print('up', flush=True); time.sleep(60)")
    )
    assert await process.lines() == ["up"]
    process.signal(signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM
    process.signal(signal.SIGTERM)  # nobody there any more: nothing happens


FAMILY = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")
@pytest.mark.parametrize("ending", ["time.sleep(60)", "sys.exit(0)"])
async def test_grandchildren_die_with_the_process(tmp_path: Path, ending: str) -> None:
    process = await LocalProcesses(tmp_path).start(python("x", FAMILY + ending))
    lines = await process.lines()
    assert lines is not None
    grandchild = os.pidfd_open(int(lines[0]))
    process.signal(signal.SIGKILL if ending.startswith("time") else 0)
    await process.wait()
    await asyncio.wait_for(all_lines(process), 100)  # ends when nobody holds the pipe any more
    await ended(grandchild)


async def ended(pidfd: int) -> None:
    """Wait until the process behind a pidfd has ended."""
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, readable.set)
    await asyncio.wait_for(readable.wait(), 100)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


PARENT = """
import asyncio, sys
from pathlib import Path
from tandem.process.local_processes import LocalProcesses
from tandem.process.processes import Command

async def main():
    command = Command("x", [sys.executable, "-c", "import time; time.sleep(60)"], {})
    process = await LocalProcesses(Path(sys.argv[1])).start(command)
    print(process.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
async def test_children_die_when_the_parent_is_killed(tmp_path: Path) -> None:
    arguments = ["-c", PARENT, str(tmp_path)]
    parent = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = os.pidfd_open(int(await parent.stdout.readline()))
    parent.kill()
    await parent.wait()
    await ended(child)


def test_a_run_directory_is_private_and_its_files_too() -> None:
    directory = RunDirectory()
    directory.draw_key(SeededEntropy(1))
    directory.publish(["127.0.0.1:1", "127.0.0.1:2"], {"127.0.0.1:2": 20.0})
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.key_file.stat().st_mode) == 0o600
    assert len(bytes.fromhex(directory.key_file.read_text())) == 32
    wanted = '{"workers": [{"address": "127.0.0.1:1"}, {"address": "127.0.0.1:2", "drain_within_s": 20.0}]}'
    assert directory.fleet_file.read_text() == wanted
    assert len(str(directory.sockets)) < 80
    directory.remove()
    assert not directory.path.exists()


def test_a_tail_is_short_and_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert tail(tmp_path / "log", 2) == "line 9998\nline 9999"
    assert tail(tmp_path / "absent") == ""


def test_a_port_in_use_is_told_with_the_flag_to_change() -> None:
    port = free_port("127.0.0.1")
    said = rf"port {port} on 127.0.0.1 is in use; choose another with --port"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(TandemError, match=said):
        check_free("127.0.0.1", {"--port": port})
    check_free("127.0.0.1", {"--port": port, "--grpc-port": 0})


@pytest.mark.skipif(not GIVEN.exists(), reason="tells its range of ports on Linux alone")
def test_a_free_port_is_none_that_the_system_gives_away_meanwhile() -> None:
    lowest, highest = map(int, GIVEN.read_text().split())
    found = {free_port("127.0.0.1") for _ in range(20)}
    assert len(found) > 10
    assert lowest < 30_000 or not found & set(range(lowest, highest + 1))


def test_where_all_of_ours_are_taken_the_system_gives_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port("127.0.0.1"))) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr("tandem.apps.cli.ports._OWN", [taken] * 20)
        port = free_port("127.0.0.1")
    assert port != taken
    check_free("127.0.0.1", {"--port": port})


def test_one_port_for_two_purposes_is_told_with_both_flags() -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(TandemError, match=rf"--port and --grpc-port are both {port}"):
        check_free("127.0.0.1", {"--port": port, "--grpc-port": port})
    check_free("127.0.0.1", {"--port": 0, "--grpc-port": 0})


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(TandemError, match=r"port 8000 on 192\.0\.2\.1 cannot be listened on"):
        check_free("192.0.2.1", {"--port": 8000})


BUSY_WITH_GRPC = """
import tandem  # As every process of ours does, before gRPC.
import os, subprocess, threading
from concurrent.futures import ThreadPoolExecutor
import grpc
from tandem.process.parent_death import die_with

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda asked, _: asked)

server = grpc.server(ThreadPoolExecutor(1), handlers=[Echo()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/a/b")
over = threading.Event()

def calls():
    while not over.is_set():
        call(b"")

caller = threading.Thread(target=calls)
caller.start()
ends = [subprocess.run(["true"], preexec_fn=die_with(os.getpid())).returncode for _ in range(300)]
over.set()
caller.join()
server.stop(None).wait()
print(sum(end != 0 for end in ends))
"""


def test_children_of_a_process_that_is_busy_with_grpc_live() -> None:
    # With gRPC's own handlers some six of them end by SIGABRT.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", BUSY_WITH_GRPC], capture_output=True, text=True, timeout=100, env=environment
    )
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize("entry", ["router", "kv_store", "prefill_worker", "decode_worker", "control_plane"])
def test_a_process_has_no_fork_handlers_of_grpc(entry: str) -> None:
    code = (
        f"import sys, {entry}.__main__\n"
        "loaded = list(sys.modules)\n"
        "print('grpc' not in loaded or loaded.index('tandem') < loaded.index('grpc'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True\n", done.stderr
