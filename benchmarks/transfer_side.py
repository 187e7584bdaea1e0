"""One side of a comparison of two revisions: measures what it is told to with the tree that it runs in.

Started by `benchmarks.transfer --before`, once with this tree on the module path and once with the other. Each line
on standard input is a piece size, a count and what to measure; each line on standard output is GB/s. It uses only
what `benchmarks.transfer` of both revisions has.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks import transfer
from tandem.engine.digest import Digester
from tests.worlds.certificates import shared_certificates

_MEASURE_S: Final = 0.25


async def _digest(receiver: transfer.Receiver, case: transfer.PullCase) -> None:
    digester = Digester(case.layout)
    for index in range(case.pieces):
        digester.content_words(receiver.block(index))


async def _serve() -> None:
    made: dict[tuple[int, int], tuple[transfer.PullCase, transfer.Receiver]] = {}
    started = []
    for line in sys.stdin:
        size, pieces, what = line.split()
        key = int(size), int(pieces)
        if key not in made:
            case = transfer.PullCase("", *key, 1, None)
            others = (transfer._holder, transfer._bare_sender, transfer._secured_sender)
            new = [transfer._start(other, case) for other in others]
            pipes = [pipe for pipe, _ in new]
            started.append(new)
            addresses, names = pipes[0].recv()
            made[key] = case, transfer.Receiver(case, addresses, names, pipes[1].recv(), pipes[2].recv())
        case, receiver = made[key]
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "copy": receiver.memcpy,
            "digest": lambda receiver=receiver, case=case: _digest(receiver, case),  # type: ignore[misc]
            "pull": lambda receiver=receiver: receiver.pull("shm"),  # type: ignore[misc]
            "shm": lambda receiver=receiver: receiver.fetch("shm"),  # type: ignore[misc]
            "tcp": lambda receiver=receiver: receiver.fetch("tcp"),  # type: ignore[misc]
        }
        taken = list[float]()
        while len(taken) < 3 or sum(taken) < _MEASURE_S:
            began = time.perf_counter()
            await work[what]()
            taken.append(time.perf_counter() - began)
        print(case.total / statistics.median(taken) / 1e9, flush=True)
    for _, receiver in made.values():
        await receiver.close()
    for new in started:
        new[0][0].send("stop")
        for _, process in new:
            process.join()


if __name__ == "__main__":
    shared_certificates()
    asyncio.run(_serve())
