"""Building vLLM in a thread, where it waits for its processes without a bound; who gives that up ends these."""

import asyncio
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Generic, TypeVar

from tandem.engine.vllm.parent_watch import watched_spawns

_ENVIRONMENT: Final = threading.Lock()
"""vLLM's processes inherit their settings by environment, and there is one of it."""
_LOOK_S: Final = 0.2
_GIVE_UP_S: Final = 5.0
"""Less than a service has for its last clean-up. Importing vLLM may take longer; that ends with this process."""

Built = TypeVar("Built")


class Launch(Generic[Built]):
    """One call of `build`, under `environment`, in a thread that does not keep the process from exiting."""

    def __init__(self, build: Callable[[], Built], environment: Mapping[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._built: asyncio.Future[Built] = self._loop.create_future()

        def run() -> None:
            try:
                with _ENVIRONMENT, watched_spawns():
                    os.environ.update(environment)
                    built = build()
            # vLLM raises whatever went wrong; it is for whoever waits.
            except BaseException as error:  # noqa: BLE001
                self._tell(partial(self._built.set_exception, error))
            else:
                self._tell(partial(self._built.set_result, built))

        threading.Thread(target=run, name="vllm-launch", daemon=True).start()

    async def result(self, unless: asyncio.Event | None = None) -> Built | None:
        """Wait for what was built; None when `unless` was set before. Raises whatever building raises."""
        given_up = asyncio.ensure_future((unless or asyncio.Event()).wait())
        try:
            await asyncio.wait((self._built, given_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            given_up.cancel()
        return self._built.result() if self._built.done() else None

    async def give_up(self) -> Built | None:
        """End this process's children until building has failed; gives what was built all the same. Bounded."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                while not self._built.done():
                    end_children()
                    await asyncio.wait((self._built,), timeout=_LOOK_S)
        return self._built.result() if self._built.done() and self._built.exception() is None else None

    def _tell(self, tell: Callable[[], None]) -> None:
        """Call `tell` in the event loop; do nothing when the loop has been closed meanwhile."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)


def end_children() -> None:
    """Kill what this process has started; what hangs on those ends by itself."""
    for child in multiprocessing.active_children():
        child.kill()
