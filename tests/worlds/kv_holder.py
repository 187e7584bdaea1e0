"""A holder in a process of its own, to be killed or frozen: exports one lease and never finishes it.

Run as `python -m tests.worlds.kv_holder KIND READY [BLOCK_BYTES]`; prints its address. READY blocks are complete,
one is not.
"""

import asyncio
import sys

from kv_transfer.export import Exporter
from tandem.process.system import SystemClock
from tests.contract.block_space import KEYRING, TestSpace, block_layout, epochs, name_of
from tests.worlds.transport_stage import DEADLINES, transports


async def main(kind: str, ready: int, block_bytes: int = 2048) -> None:
    holder_epoch, _ = epochs(1)
    space = TestSpace(block_layout(block_bytes), ready + 1, holder_epoch)
    space.lease("lease", tuple(name_of(index) for index in range(ready + 1)))
    for index in range(ready):
        space.complete("lease", index)
    transport, _ = transports(kind)
    print(await transport.serve(Exporter(space, KEYRING, SystemClock(), DEADLINES)), flush=True)  # noqa: T201
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
