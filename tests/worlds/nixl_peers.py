"""Pulls over nixl from holders that die or freeze. A program of its own: once a peer has died the library crashes the
interpreter's ordinary way out. Run as `python -m tests.worlds.nixl_peers SCENARIO`; says `ok` when it holds.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress

import pytest

from kv_transfer.transport.protocol import BlockReceived, PullEvent
from tandem.core.errors import TandemError
from tests.contract.block_space import name_of
from tests.worlds.transport_stage import AT_LAST_S, one_by_one, past_alive, stage

READY = 40
BLOCK = 1 << 20


async def holder(ready: int, block_bytes: int) -> tuple[asyncio.subprocess.Process, str]:
    """A holder in a process of its own, and its address."""
    command = (sys.executable, "-m", "tests.worlds.kv_holder", "nixl", str(ready), str(block_bytes))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


async def ends_in_bounded_time(how: signal.Signals) -> None:
    """A holder that dies, or says nothing any more, ends the pull; what is open is closed at once."""
    process, address = await holder(2, 2048)
    async with stage("nixl") as s:
        s.address = address
        pull = await s.open(s.request(tuple(name_of(i) for i in range(3))))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            assert isinstance(await anext(events), BlockReceived)
            process.send_signal(how)
            async with asyncio.timeout(AT_LAST_S):
                await fails(past_alive(events))
        async with asyncio.timeout(AT_LAST_S):
            await pull.close()
    await end(process)


async def late_bytes_keep_a_pull_open() -> None:
    """Reads from a frozen holder go on when it thaws: until they are over the pull is not closed."""
    process, address = await holder(READY, BLOCK)
    async with stage("nixl", BLOCK, 2 * READY + 3) as s:
        s.address = address
        pull = await s.open(s.request(tuple(name_of(i) for i in range(READY + 1))))
        async with aclosing(one_by_one(pull)) as events:
            assert isinstance(await anext(events), BlockReceived)
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(AT_LAST_S):
                await fails(drain(events))
        closing = asyncio.ensure_future(pull.close())
        done, _ = await asyncio.wait((closing,), timeout=0.5)
        assert not done, "closed while bytes could still land"
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(AT_LAST_S):
            await closing
        before = bytes(s.receiver.memory.buffer)
        await asyncio.sleep(0.3)
        assert bytes(s.receiver.memory.buffer) == before, "bytes came after the pull was closed"
    await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.kill()
    await process.wait()


async def drain(events: AsyncGenerator[PullEvent, None]) -> None:
    async for _ in events:
        pass


async def fails(awaitable: Awaitable[object]) -> None:
    with pytest.raises(TandemError) as caught:
        await awaitable
    assert caught.value.code == "transfer_failed"


SCENARIOS = {
    "killed": lambda: ends_in_bounded_time(signal.SIGKILL),
    "frozen": lambda: ends_in_bounded_time(signal.SIGSTOP),
    "late": late_bytes_keep_a_pull_open,
}

if __name__ == "__main__":
    asyncio.run(SCENARIOS[sys.argv[1]]())
    print("ok", flush=True)  # noqa: T201
    os._exit(0)
