"""A holder and a receiver over shared memory, each a program of its own, to be run like pods of one node.

`python -m tests.worlds.node_pods hold NODE` prints its address and holds until its input ends. `… pull NODE ADDRESS`
says `pulled` when every block came, else why not. Both have /mnt in common and nothing else.
"""

import asyncio
import sys

from kv_transfer.export import Exporter
from kv_transfer.transport.protocol import BlockReceived
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from tandem.core.errors import TandemError
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, SlotSink, TestSpace, block_layout, epochs, name_of, pull_open
from tests.worlds.transport_stage import DEADLINES, LIMITS, collect

SHARED = "/mnt"
BLOCKS = 3


def _space(*, of_holder: bool) -> TestSpace:
    return TestSpace(block_layout(2048), 2 * BLOCKS + 1, epochs(1)[0 if of_holder else 1])


async def hold(node: str) -> None:
    space, names = _space(of_holder=True), tuple(name_of(index) for index in range(BLOCKS))
    space.lease("lease", names)
    for index in range(BLOCKS):
        space.complete("lease", index)
    space.sample("lease")
    transport = ShmTransport(ShmSettings(SHARED, node, LIMITS))
    print(await transport.serve(Exporter(space, KEYRING, SystemClock(), DEADLINES)), flush=True)  # noqa: T201
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await transport.close()


async def pull(node: str, address: str) -> None:
    receiver, names = _space(of_holder=False), tuple(name_of(index) for index in range(BLOCKS))
    transport = ShmTransport(ShmSettings(SHARED, node, LIMITS))
    try:
        asked = pull_open(_space(of_holder=True), receiver, names, "lease")
        opened = await transport.open(address, asked, SlotSink(receiver, 0), LIMITS.stall_s)
        events = await collect(opened)
        came = sorted(event.index for event in events if isinstance(event, BlockReceived))
        print("pulled" if came == list(range(BLOCKS)) else events)  # noqa: T201
    except TandemError as error:
        print(f"{error.code}: {error.message}")  # noqa: T201
    finally:
        await transport.close()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[2]) if sys.argv[1] == "hold" else pull(*sys.argv[2:]))
