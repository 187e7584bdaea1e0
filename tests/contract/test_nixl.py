"""The `nixl` transport beside its contract: peers that die or freeze, what is said of the fabric, doing without."""

import asyncio
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from kv_transfer.export import Exporter
from kv_transfer.transport.nixl import NixlSettings, NixlTransport
from kv_transfer.transport.nixl_preflight import expected
from tandem.core.errors import TandemError
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, TestSpace, block_layout
from tests.worlds.transport_stage import DEADLINES

ROOT = Path(__file__).parent.parent.parent

needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl_cu12") is None, reason="the extra `nixl` is not installed"
)


@needs_nixl
@pytest.mark.parametrize("scenario", ["killed", "frozen", "late"])
async def test_a_holder_that_dies_or_freezes_neither_hangs_a_pull_nor_writes_late(scenario: str) -> None:
    environment = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
    command = (sys.executable, "-m", "tests.worlds.nixl_peers", scenario)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(300.0):
        said, complained = await process.communicate()
    assert (process.returncode, said.decode().split()) == (0, ["ok"]), complained.decode()[-2000:]


async def test_without_the_library_serving_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl_cu12._api", None)
    transport = NixlTransport(NixlSettings("p0"))
    space = TestSpace(block_layout(2048), 4, 1)
    with pytest.raises(TandemError) as refused:
        await transport.serve(Exporter(space, KEYRING, SystemClock(), DEADLINES))
    assert refused.value.code == "bad_setting"
    assert "install the extra `nixl`" in refused.value.message
    await transport.close()


@pytest.mark.parametrize(
    ("devices", "environ", "name", "said"),
    [
        ([], {}, "ucx-tcp", "no RDMA device"),
        (["mlx5_0"], {}, "ucx-rdma", "mlx5_0"),
        (["mlx5_0"], {"UCX_TLS": "tcp,sm"}, "ucx-tcp", "UCX_TLS=tcp,sm leaves out RDMA"),
        (["mlx5_0"], {"UCX_TLS": "rc,sm,tcp"}, "ucx-rdma", "mlx5_0"),
        (["mlx5_0"], {"UCX_TLS": "^cma"}, "ucx-rdma", "mlx5_0"),
        (["mlx5_0"], {"UCX_TLS": "^ib"}, "ucx-tcp", "leaves out RDMA"),
        (["mlx5_0", "mlx5_1"], {"UCX_NET_DEVICES": "mlx5_1:1"}, "ucx-rdma", "mlx5_1"),
        (["mlx5_0"], {"UCX_NET_DEVICES": "eth0"}, "ucx-tcp", "names none of mlx5_0"),
    ],
)
def test_the_preflight_says_what_will_carry_kv_and_why(
    devices: list[str], environ: dict[str, str], name: str, said: str
) -> None:
    fabric = expected(devices, environ)
    assert fabric.name == name
    assert said in fabric.reason
    assert fabric.fast == (name == "ucx-rdma")
