"""Real processes with the flags of charts and operator, where there is no IPv4 at all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))) or not Path("/proc/net/if_inet6").exists(),
        reason="only root can make network namespaces, and IPv6 has to be there",
    ),
]


def test_a_platform_runs_without_ipv4(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["unshare", "--net", "--fork", sys.executable, "-m", "tests.worlds.ipv6_platform", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout)
    assert found["addresses"] == ["tcp://[fd00::2]:7400", "tcp://[fd00::3]:7400", "tcp://[fd00::4]:7500"]
    assert found["router"] == "[::]:8000"
    assert found["status"] == 200, found["answer"]
    assert found["answer"]["usage"]["completion_tokens"] == 8
    assert found["workers"] == {"prefill": "tcp", "decode": "tcp", "store": "tcp"}
    assert found["kv_bytes"] > 10_000, "the prompt's KV, not a canary's alone"
    assert (found["ready"], found["alive"], found["operator"]) == (200, 200, 200)
    assert found["grpc"]
    assert found["scaler"]
