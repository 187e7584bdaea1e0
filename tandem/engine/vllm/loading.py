"""Starting vLLM: model, sockets, stage, processes, and a first request, in this order; and undoing it."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments
from tandem.engine.vllm.failure import EngineGone, death_sentence, start_error
from tandem.engine.vllm.model import ServedModel, open_served
from tandem.engine.vllm.parent_watch import watched_spawns
from tandem.engine.vllm.requests import Request
from tandem.engine.vllm.settings import VllmSettings
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.telling import Hearing

if TYPE_CHECKING:
    from tandem.engine.vllm.client import VllmClient
    from tandem.engine.vllm.event_stream import EventStream

Progress = Callable[[float, str], None]
_WARM_UP_TOKENS: Final = 3
_WARM_UP: Final = "warm-up"
_ENVIRONMENT: Final = threading.Lock()
"""vLLM's processes inherit their settings by environment, and there is one of it."""


class Loaded:
    """A vLLM that has answered a request. `close` undoes all of it, in any state."""

    def __init__(
        self, settings: VllmSettings, scheduler: SchedulerSettings, stage: Stage | None, progress: Progress
    ) -> None:
        self._settings = settings if settings.threads is not None else replace(settings, threads=_threads(settings))
        self._scheduler = scheduler
        self._progress = progress
        self.stage = stage
        self._client: VllmClient | None = None
        self._model: ServedModel | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="tandem-vllm-", dir=settings.directory))
        self._sockets = Sockets(self._directory)
        self._hearing: Hearing | None = None
        self.events: EventStream | None = None

    @property
    def client(self) -> "VllmClient":
        assert self._client is not None, "load() has not returned yet"
        return self._client

    @property
    def model(self) -> ServedModel:
        assert self._model is not None, "load() has not returned yet"
        return self._model

    def why_gone(self) -> TandemError:
        """For an engine that has died."""
        self._listen()
        return TandemError("engine_failed", death_sentence(self._words(), self.client.exit_statuses))

    async def load(self) -> None:
        """Raises `bad_model`, `bad_setting`, `engine_failed`; `close` is still to be called then."""
        self._model = await asyncio.to_thread(open_served, self._settings)
        self._hearing = Hearing(self._sockets.tell, self._progress)
        if self.stage is not None:
            await self.stage.start()
        await self._launch(self._model)
        if self._scheduler.prefix_cache:
            from tandem.engine.vllm.event_stream import EventStream

            self.events = EventStream(self._sockets)
        if self.stage is not None:
            await self.stage.ready(self._settings.step_timeout_s)
        await self._warm_up()
        self._progress(1.0, "a first request was answered")

    async def _launch(self, model: ServedModel) -> None:
        transfer = None if self.stage is None else self.stage.transfer_config()
        arguments = engine_arguments(
            self._settings, self._scheduler, model.path, model.adapters, self._sockets, transfer
        )
        try:
            self._client = await asyncio.to_thread(_launched, arguments, model)
        # vLLM raises whatever went wrong; here that becomes one sentence.
        except Exception as error:
            self._listen()
            raise start_error(error, self._words(), ()) from error
        await self._client.start()

    async def _warm_up(self) -> None:
        """One request for everything that is prepared on first use: kernels, sampling, log-probabilities."""
        tokens = [1] * min(self._scheduler.max_batched_tokens, self.client.context_tokens - _WARM_UP_TOKENS - 1)
        sampling: dict[str, object] = {
            "temperature": 1.0, "max_tokens": _WARM_UP_TOKENS, "logprobs": 1, "ignore_eos": True, "detokenize": False
        }  # fmt: skip
        request = Request(_WARM_UP, pack_tokens(tokens), 0, sampling, None, _WARM_UP, 0, "")
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                await self.client.add(self.client.prepare(request, 0))
                while not any(output.finished for output in (await self.client.outputs()).outputs):
                    pass
        except TimeoutError:
            problem = f"a first request was not answered within {self._settings.step_timeout_s:g} s"
            raise TandemError("engine_failed", problem) from None
        except EngineGone:
            raise self.why_gone() from None

    def _listen(self) -> None:
        if self._hearing is not None:
            self._hearing.read()

    def _words(self) -> list[str]:
        return self._hearing.errors if self._hearing is not None else []

    async def close(self) -> None:
        """End vLLM's processes and remove its sockets. Idempotent."""
        if self._client is not None:
            await self._client.close()
        if self.stage is not None:
            await self.stage.stop()
        if self.events is not None:
            self.events.close()
            self.events = None
        if self._hearing is not None:
            self._hearing.close()
            self._hearing = None
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._directory)


def _threads(settings: VllmSettings) -> int:
    """Of each rank: the cores shared out, but for the one that is left to everything else."""
    return max(1, (len(os.sched_getaffinity(0)) - 1) // settings.parallelism.ranks)


def _launched(arguments: EngineArguments, model: ServedModel) -> "VllmClient":
    """Import vLLM, which takes seconds and reads the environment, and start its processes."""
    with _ENVIRONMENT, watched_spawns():
        os.environ.update(arguments.environment)
        from tandem.engine.vllm.client import VllmClient, build

        return VllmClient(build(arguments), model.adapters)
