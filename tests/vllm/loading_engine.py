"""`python -m tests.vllm.loading_engine RANKS`: a process that loads an engine until somebody kills it."""

import asyncio
import sys
from dataclasses import replace

from tandem.engine.vllm.engine import VllmEngine
from tandem.engine.vllm.settings import Parallelism
from tandem.process.system import SystemClock
from tests.vllm.lending import SCHEDULER, settings

KEPT_S = 120.0


async def main() -> None:
    own = replace(settings(64), parallelism=Parallelism(tensor=int(sys.argv[1])))
    engine = VllmEngine(own, SCHEDULER, SystemClock(), None)
    try:
        await engine.start()
        await asyncio.sleep(KEPT_S)
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
