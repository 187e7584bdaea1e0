"""Every engine the contract is checked on. One entry per implementation that can be imported here."""

import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Protocol, runtime_checkable

from tandem.core.clock import Clock
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import Engine
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner

BLOCK_TOKENS: Final = 8
"""Of the engines here; others have blocks of a multiple of it."""
SETTINGS: Final = SchedulerSettings(max_batched_tokens=16)


class Factory(Protocol):
    """Gives an engine that has not started, with at least so many blocks, and checks it once it has stopped."""

    def __call__(self, clock: Clock, *, epoch: int, blocks: int) -> AbstractAsyncContextManager[Engine]: ...


@runtime_checkable
class Renewable(Protocol):
    """An engine that can become a new incarnation."""

    def begin_epoch(self, epoch: int) -> None: ...


def _checked(make: Callable[[Clock, int, int], LocalEngine]) -> Factory:
    @asynccontextmanager
    async def lend(clock: Clock, *, epoch: int, blocks: int) -> AsyncIterator[Engine]:
        engine = make(clock, epoch, blocks)
        yield engine
        engine.scheduler.check()

    return lend


def simulated(clock: Clock, epoch: int, blocks: int) -> LocalEngine:
    model = SimulatedModel(
        block_tokens=BLOCK_TOKENS, blocks=blocks, context_tokens=512, base_s=1e-4, sequence_s=0, token_s=1e-6
    )
    return LocalEngine(SimulatedRunner(model), SETTINGS, clock, epoch)


def embedded(clock: Clock, epoch: int, blocks: int) -> LocalEngine:
    from tandem.engine.torch.build import build_runner
    from tandem.engine.torch.settings import TorchSettings

    wanted = TorchSettings(
        model="demo",
        dtype="float32",
        block_tokens=BLOCK_TOKENS,
        blocks=blocks,
        context_tokens=512,
        mode="thread",
        threads=1,
    )
    return LocalEngine(build_runner(wanted), SETTINGS, clock, epoch)


ENGINES: dict[str, Factory] = {"simulated": _checked(simulated)}
if importlib.util.find_spec("torch") is not None:
    ENGINES["torch"] = _checked(embedded)
