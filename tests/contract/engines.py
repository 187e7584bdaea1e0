"""Every engine the contract is checked on. One entry per implementation that can be imported here."""

import importlib.util
from collections.abc import Callable

from tandem.core.clock import Clock
from tandem.engine.local import LocalEngine
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner

Factory = Callable[..., LocalEngine]
"""(clock, *, epoch, blocks, settings) -> an engine that has not started, with blocks of at most 16 tokens."""


def simulated(clock: Clock, *, epoch: int, blocks: int, settings: SchedulerSettings) -> LocalEngine:
    model = SimulatedModel(block_tokens=8, blocks=blocks, context_tokens=512, base_s=1e-4, sequence_s=0, token_s=1e-6)
    return LocalEngine(SimulatedRunner(model), settings, clock, epoch)


def embedded(clock: Clock, *, epoch: int, blocks: int, settings: SchedulerSettings) -> LocalEngine:
    from tandem.engine.torch.build import build_runner
    from tandem.engine.torch.settings import TorchSettings

    wanted = TorchSettings(
        model="demo", dtype="float32", block_tokens=8, blocks=blocks, context_tokens=512, mode="thread", threads=1
    )
    return LocalEngine(build_runner(wanted), settings, clock, epoch)


ENGINES: dict[str, Factory] = {"simulated": simulated}
if importlib.util.find_spec("torch") is not None:
    ENGINES["torch"] = embedded
