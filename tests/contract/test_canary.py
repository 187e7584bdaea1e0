"""A worker's own canary over every real transport: sockets, shared memory, and none of both."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from decode_worker.service import decode_worker
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.protocol import Transport
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from prefill_worker.service import prefill_worker
from tandem.core.errors import TandemError
from tandem.engine.local import LocalEngine
from tandem.engine.memory import HostMemory
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.link.memory_link import MemoryLinks
from tandem.process.system import SystemClock, SystemEntropy
from tandem.worker.deps import WorkerDeps
from tandem.worker.service import WorkerService
from tandem.worker.settings import HostSettings
from tandem.worker.simple_decoder import SimpleDecoder
from tests.worlds.worker_stage import KEYRING, begin, running

MODEL = SimulatedModel(blocks=64, context_tokens=1024, base_s=0.0005)
NOBODY = "127.0.0.2"
"""A loopback address on which nothing of ours listens."""

Make = Callable[[Path], Transport]

TRANSPORTS: dict[str, Make] = {
    "tcp": lambda _root: TcpTransport(TcpSettings()),
    "shm": lambda root: ShmTransport(ShmSettings(str(root))),
    "mem": lambda _root: MemoryTransport(MemoryNetwork(), "w"),
}


def worker(role: str, *transports: Transport, model: SimulatedModel = MODEL) -> WorkerService:
    memory = HostMemory(model.layout.block_bytes, model.blocks)
    clock, entropy = SystemClock(), SystemEntropy()
    engine = LocalEngine(SimulatedRunner(model, memory), SchedulerSettings(), clock, entropy.u64())
    parts = WorkerDeps(engine, SimpleDecoder(), clock, entropy, settings=HostSettings(canary_s=5.0))
    links = MemoryLinks().server("w")
    if role == "prefill":
        return prefill_worker(parts, "w", links, transports, KEYRING, begin(parts))
    return decode_worker(parts, "w", links, transports, begin(parts), role=role)


def is_free(service: WorkerService) -> bool:
    engine = service._parts.engine
    assert isinstance(engine, LocalEngine)
    pool = engine.scheduler.kv_cache.pool
    return (pool.used, pool.cached, pool.quarantined, engine.snapshot()) == (0, 0, 0, ())


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("scheme", TRANSPORTS)
async def test_blocks_travel_from_the_worker_to_itself(scheme: str, role: str, tmp_path: Path) -> None:
    service = worker(role, TRANSPORTS[scheme](tmp_path))
    async with running(service):
        identity = service.host.identity
        assert (identity.canary, identity.problems) == ("self", ())
        assert [address.partition("://")[0] for address in identity.addresses] == (
            [scheme] if role == "prefill" else []
        )
        assert is_free(service)
        left = [each.name for each in os.scandir(tmp_path)]
        assert role == "prefill" or not left, "a socket that nobody serves was left behind"


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_address_that_nobody_reaches_is_withdrawn_while_shared_memory_works(
    role: str, tmp_path: Path
) -> None:
    unreachable = TcpTransport(TcpSettings(advertise=NOBODY))
    service = worker(role, TRANSPORTS["shm"](tmp_path), unreachable)
    async with running(service):
        identity = service.host.identity
        (problem,) = identity.problems
        assert problem.startswith(f"tcp: transfer_failed: cannot reach tcp://{NOBODY}:")
        assert [address.partition("://")[0] for address in identity.addresses] == (
            ["shm"] if role == "prefill" else []
        )
        assert is_free(service)


async def test_an_address_that_nobody_reaches_stops_the_start_where_there_is_no_other() -> None:
    with pytest.raises(TandemError, match=rf"every transport: tcp: .*cannot reach tcp://{NOBODY}") as raised:
        async with running(worker("prefill", TcpTransport(TcpSettings(advertise=NOBODY)))):
            raise AssertionError("it started")
    assert raised.value.code == "transfer_failed"


async def test_a_port_in_use_is_a_broken_transport_too(tmp_path: Path) -> None:
    first = worker("prefill", TRANSPORTS["tcp"](tmp_path))
    async with running(first):
        port = int(first.host.identity.addresses[0].rpartition(":")[2])
        second = worker("prefill", TRANSPORTS["shm"](tmp_path), TcpTransport(TcpSettings(port=port)))
        async with running(second):
            (problem,) = second.host.identity.problems
            assert problem.startswith("tcp: bad_setting: cannot serve KV blocks")


async def test_a_pool_and_a_context_that_are_too_small_for_a_block_and_a_half() -> None:
    for blocks, context in ((2, 1024), (3, 1024), (64, 3), (2, 17)):
        small = replace(MODEL, blocks=blocks, context_tokens=context)
        service = worker("prefill", MemoryTransport(MemoryNetwork(), "w"), model=small)
        async with running(service):
            assert service.host.identity.canary == "self"
            assert is_free(service)
