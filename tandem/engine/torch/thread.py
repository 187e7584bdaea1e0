"""`Runner` with torch in one dedicated thread of this process: the simple mode, and the one for tests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tandem.core.errors import TandemError
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import EngineInfo
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.scheduler.stall_detection import ProcessSample
from tandem.engine.torch.executor import ModelExecutor
from tandem.engine.torch.prepare import Prepared, prepare
from tandem.engine.torch.settings import TorchSettings


class ThreadRunner:
    """See `tandem.engine.scheduler.plan.Runner`. torch releases the GIL inside operators, not between them."""

    def __init__(self, settings: TorchSettings) -> None:
        self._settings = settings
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tandem-torch")
        self._prepared: Prepared | None = None
        self._computer: ModelExecutor | None = None

    @property
    def memory(self) -> HostMemory:
        """The KV blocks; there once `load` has returned."""
        assert self._prepared is not None, "load() has not returned yet"
        return self._prepared.memory

    def watch(self, seen: Callable[[ProcessSample], None]) -> None:
        """Do nothing: the runner computes in this process, so there is no engine process to report on."""

    async def load(self) -> EngineInfo:
        """Load weights and allocate KV memory. Raises `bad_model`, `bad_setting`."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._load)

    def _load(self) -> EngineInfo:
        prepared = prepare(self._settings)
        self._computer = ModelExecutor(prepared.spec, prepared.memory)
        self._prepared = prepared
        return prepared.info

    async def execute(self, step: Step) -> StepResult:
        """Run one step. Raises `engine_failed`, also when it takes longer than `step_timeout_s`."""
        assert self._computer is not None, "load() has not returned yet"
        running = asyncio.get_running_loop().run_in_executor(self._executor, self._computer.execute, step)
        try:
            return await asyncio.wait_for(running, self._settings.step_timeout_s)
        except TimeoutError as error:
            limit = self._settings.step_timeout_s
            raise TandemError("engine_failed", f"step {step.number} took longer than {limit:g} s") from error

    async def close(self) -> None:
        """Stop after the running step."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._computer = None
        if self._prepared is not None:
            self._prepared.memory.close()
