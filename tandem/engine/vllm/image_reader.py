"""Reading of images: has vLLM's processor put the images of requests into their prompts, and judges whether it makes
progress."""

import asyncio
from collections.abc import Awaitable, Callable

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.engine.protocol import EngineRequest
from tandem.engine.scheduler.stall_detection import GAP_MAX_S
from tandem.engine.vllm.ledger import Ledger
from tandem.engine.vllm.requests import Expanded

Expand = Callable[[bytes, tuple[bytes, ...]], Awaitable[Expanded]]


class ImageReader:
    """Reads images for the works of one ledger, one after the other. `changed` is called whenever the ledger has
    news.

    vLLM's processor is the model's own code in a thread that cannot be ended. A read that takes longer than any step
    may take hangs, and all images after it would wait for ever.
    """

    def __init__(self, ledger: Ledger, expand: Expand, clock: Clock, changed: Callable[[], None]) -> None:
        self._ledger = ledger
        self._expand = expand
        self._clock = clock
        self._changed = changed
        self._wanted = asyncio.Event()
        self._work: EngineRequest | None = None
        """Whose images are being read."""
        self._read_s = 0.0
        """Seconds for which the present images have been read, as this worker has seen time pass."""
        self._looked = float("-inf")

    def wake(self) -> None:
        """Works may wait for their images to be read."""
        self._wanted.set()

    async def run(self) -> None:
        """Read the images of waiting requests, one request after the other, until cancelled."""
        ledger, clock = self._ledger, self._clock
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (work := ledger.next_to_read(clock.now())) is not None:
                self._work, self._read_s = work, 0.0
                try:
                    found = await self._expand(work.prompt, work.images)
                except TandemError as error:
                    ledger.refused(work.work_id, error, clock.now())
                else:
                    ledger.expanded(work.work_id, found, clock.now())
                finally:
                    self._work = None
                self._changed()

    def look(self, bound_s: float) -> str | None:
        """The reason to end the engine, when the images of a request have been read for more than `bound_s`;
        otherwise None. That request is refused for good: it would do the same to other workers."""
        now = self._clock.now()
        gap_s, self._looked = min(GAP_MAX_S, now - self._looked), now
        if self._work is None:
            return None
        self._read_s += gap_s
        if self._read_s <= bound_s:
            return None
        problem = f"the images of the request could not be prepared within {bound_s:g} s"
        self._ledger.refused(self._work.work_id, TandemError("invalid_request", problem, param="messages"), now)
        return f"vLLM has prepared the images of one request for more than {bound_s:g} s"
