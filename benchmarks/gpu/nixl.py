"""Step 6: what nixl gives between two processes on this machine, from device memory: GPUDirect without Tandem.

Tandem exchanges host memory; this is what doing without it would be worth.
"""

import multiprocessing
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.gpu.results import Measurement
from benchmarks.gpu.target import Target

TITLE = "nixl between two processes"
_BOUND_S = 60.0
_PACKAGES = ("nixl_cu13", "nixl_cu12")


def missing() -> str:
    """Why this step cannot run; empty when it can."""
    return "" if _package() else "no nixl wheel is here (`make gpu-wheels WHEELS=nixl`)"


def measure(target: Target) -> Iterator[Measurement]:
    """GB/s of reads, from the other process's device and host memory into device memory."""
    size, pieces = target.sized(1 << 30, 4 << 20), 128
    for source in dict.fromkeys((str(target.device), "cpu")):
        name = f"{source} to {target.device}, {pieces} pieces of {size // pieces >> 10} KiB"
        yield Measurement(name, size / _read(str(target.device), source, size, pieces) / 1e9, "GB/s")


def _read(here: str, there: str, size: int, pieces: int) -> float:
    """Seconds of the best of some reads; the bytes are checked."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(target=_hold, args=(theirs, there, size, pieces), daemon=True)
    holder.start()
    try:
        if not ours.poll(_BOUND_S):
            raise AssertionError("the other process did not start in time")
        metadata, descriptors, total = ours.recv()
        agent, memory, parts = _agent("reader", here, size, pieces)
        remote = agent.add_remote_agent(metadata)
        remote = remote.decode() if isinstance(remote, bytes) else remote
        local, other = agent.get_xfer_descs(parts), agent.deserialize_descs(descriptors)
        times = []
        for _ in range(6):
            began = time.perf_counter()
            handle = agent.initialize_xfer("READ", local, other, remote)
            state = agent.transfer(handle)
            while state == "PROC" and time.perf_counter() - began < _BOUND_S:
                state = agent.check_xfer_state(handle)
            times.append(time.perf_counter() - began)
            agent.release_xfer_handle(handle)
            if state != "DONE":
                raise AssertionError(f"a read ended as {state}")
        if int(memory.long().sum()) != total:
            raise AssertionError("bytes that were read are not those that were there")
        return min(times)
    finally:
        ours.close()
        holder.join(5)
        holder.kill()
        holder.join()


def _hold(pipe: Connection, device: str, size: int, pieces: int) -> None:
    agent, memory, parts = _agent("holder", device, size, pieces)
    memory.random_(0, 256)
    if memory.is_cuda:
        torch.cuda.synchronize()
    descriptors = agent.get_serialized_descs(agent.get_xfer_descs(parts))
    pipe.send((agent.get_agent_metadata(), descriptors, int(memory.long().sum())))
    try:
        pipe.recv()  # until the reader has gone
    except EOFError:
        return


def _agent(name: str, device: str, size: int, pieces: int) -> tuple[Any, torch.Tensor, list[torch.Tensor]]:
    api = import_module(f"{_package()}._api")
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    memory = torch.zeros(size, dtype=torch.uint8, device=device)
    agent.register_memory(memory)
    return agent, memory, list(memory.chunk(pieces))


def _package() -> str | None:
    return next((name for name in _PACKAGES if find_spec(name) is not None), None)
