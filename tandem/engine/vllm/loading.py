"""Starting vLLM: model, sockets, stage, processes, and a first request, in this order; and undoing it."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.core.config_facts import CacheKinds
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.engine.protocol import EngineInfo
from tandem.engine.scheduler.activity import family_of
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments, facts_of, with_threads
from tandem.engine.vllm.exchange import Exchange, decide
from tandem.engine.vllm.failure import EngineGone, death_sentence, start_error
from tandem.engine.vllm.group import Leader
from tandem.engine.vllm.heartbeat import HeartbeatSample, heartbeats_beside, read_heartbeat
from tandem.engine.vllm.launching import Launch
from tandem.engine.vllm.model import ServedModel, open_served
from tandem.engine.vllm.process_reports import ReportReceiver
from tandem.engine.vllm.requests import VllmRequest
from tandem.engine.vllm.settings import VllmSettings
from tandem.engine.vllm.stage import Stage
from tandem.engine.vllm.start_locks import hold_start_locks
from tandem.process.logs import event

if TYPE_CHECKING:
    from tandem.engine.vllm.client import VllmClient
    from tandem.engine.vllm.event_stream import EventStream

_log = logging.getLogger(__name__)
ProgressCallback = Callable[[float, str], None]
_FEATURES: Final = ("grammar", "prompt_logprobs")
_WARM_UP_TOKENS: Final = 3
_WARM_UP: Final = "warm-up"
_WORD_S: Final = 2.0
"""An engine that ends because another node is gone may be seen to end first."""


class VllmInstance:
    """A vLLM that has answered a request. `close` undoes all of it, in any state."""

    def __init__(
        self,
        settings: VllmSettings,
        scheduler: SchedulerSettings,
        stage: Stage | None,
        progress: ProgressCallback,
        role: str = "unified",
    ) -> None:
        self._settings = with_threads(settings.of_role(role))
        self._scheduler = scheduler
        self._progress = progress
        self._role = role
        self.stage = stage
        """None once `load` has found that the model's KV is not exchanged."""
        self.exchange = Exchange(stage is not None)
        """Whether KV is exchanged, and why not; as found by `load`."""
        self._client: VllmClient | None = None
        self._model: ServedModel | None = None
        self._directory = Path(tempfile.mkdtemp(prefix="tandem-vllm-", dir=settings.directory))
        self._sockets = Sockets(self._directory)
        self._hearing: ReportReceiver | None = None
        self._launch: Launch[VllmClient] | None = None
        self._leader: Leader | None = None
        self._lost = asyncio.Event()
        """A node of this worker is gone."""
        self._why = ""
        """Why this worker ends, for its other nodes; empty when it was asked to."""
        self.on_lost: Callable[[str], None] = _nobody
        """Hears in one sentence that a node of this worker is gone."""
        self.events: EventStream | None = None
        self.seconds_per_token = 0.0
        """Seconds that a token of the first prompt took."""

    @property
    def heartbeats(self) -> tuple[HeartbeatSample, ...]:
        """The last heartbeat samples of vLLM's processes on this machine."""
        try:
            found = sorted(heartbeats_beside(self._sockets.tell).iterdir())
        except OSError:
            return ()
        return tuple(sign for path in found if (sign := read_heartbeat(path)) is not None)

    @property
    def client(self) -> "VllmClient":
        assert self._client is not None, "load() has not returned yet"
        return self._client

    @property
    def model(self) -> ServedModel:
        assert self._model is not None, "load() has not returned yet"
        return self._model

    def info(self) -> EngineInfo:
        """The `EngineInfo` of the loaded engine."""
        client, model, stage = self.client, self.model, self.stage
        return EngineInfo(
            model=model.name,
            model_hash=model.content_hash,
            vocab_size=client.vocab_size,
            context_tokens=client.context_tokens,
            eos_token_ids=model.eos_token_ids,
            blocks=client.blocks,
            layout=client.layout() if stage is None else stage.layout,
            features=_features(images=client.images_max > 0, adapters=bool(model.adapters)),
            adapters=tuple(each.adapter for each in model.adapters),
            kv_events=self.exchange.kv_events or not client.caches_prefixes,
            not_exchanged=self.exchange.reason,
            max_sequences=self._scheduler.max_sequences * self._settings.parallelism.data,
        )

    async def why_gone(self, known: str | None = None) -> TandemError:
        """The `engine_failed` error for an engine that has died, with `known` as its cause where that is given."""
        problem = known or await self._of_nodes()
        if problem is None:
            self._listen()
            problem = death_sentence(self._words(), self.client.exit_statuses)
        self._why = problem
        return TandemError("engine_failed", problem)

    async def load(self) -> None:
        """Raises `bad_model`, `bad_setting`, `engine_failed`; `close` is still to be called then."""
        try:
            await self._load()
        except TandemError as error:
            self._why = error.message
            raise

    async def _load(self) -> None:
        self._model = await asyncio.to_thread(open_served, self._settings)
        self._hearing = ReportReceiver(self._sockets.tell, self._progress)
        if self.stage is not None:
            await self._decide(self.stage, self._model)
        if self.stage is not None:
            await self.stage.start()
        async with hold_start_locks(self._settings.start_locks, self._settings.start_timeout_s, self._waits):
            await self._start(self._model)
        if self._scheduler.prefix_cache and self.exchange.kv_events:
            from tandem.engine.vllm.event_stream import EventStream

            self.events = EventStream(self._sockets)
        if self.stage is not None:
            await self.stage.ready(self._settings.step_timeout_s, self.client.context_tokens)
        await self._warm_up()
        self._progress(1.0, "a first request was answered")

    async def _decide(self, stage: Stage, model: ServedModel) -> None:
        """Find out from vLLM's model config whether KV can be exchanged, before anything is loaded. Raises
        `bad_setting` for a role that needs it to be."""
        settings = self._settings
        arguments = engine_arguments(settings, self._scheduler, model.path, model.adapters, self._sockets, None)

        def ask() -> CacheKinds:
            # Imported on use: it takes seconds and reads the environment.
            from tandem.engine.vllm.probe import probe

            return probe(arguments)

        try:
            found = await Launch(ask, arguments.environment).result()
        # vLLM raises whatever it does not like; here that becomes one sentence.
        except Exception as error:
            self._listen()
            raise start_error(error, self._words(), ()) from error
        assert found is not None, "nothing gives up a probe"
        self._progress(0.0, "vLLM has read the model's configuration")
        self.exchange = decide(
            found, settings.kv_transfer, self._role, settings.kv_dtype, drafts=settings.speculative.keeps_kv
        )
        if not self.exchange.connector:
            event(_log, "kv_not_exchanged", model=model.name, reason=self.exchange.reason)
            await stage.stop()
            self.stage = None

    def _waits(self, why: str) -> None:
        self._progress(0.0, why)

    async def _start(self, model: ServedModel) -> None:
        store_port = await self._gather(model) if self._settings.nodes.count > 1 else None
        self._launch = _launch(self._arguments(model, store_port), model)
        try:
            self._client = await self._launch.result(self._lost)
        # vLLM raises whatever went wrong; here that becomes one sentence.
        except Exception as error:
            problem = await self._of_nodes()
            if problem is not None:
                raise TandemError("engine_failed", problem) from error
            self._listen()
            raise start_error(error, self._words(), ()) from error
        if self._client is None:
            assert self._leader is not None
            raise TandemError("engine_failed", self._leader.problem or "a node is gone")
        await self._client.start()

    def _arguments(self, model: ServedModel, store_port: int | None) -> EngineArguments:
        transfer = None if self.stage is None else self.stage.transfer_config()
        return engine_arguments(
            self._settings,
            self._scheduler,
            model.path,
            model.adapters,
            self._sockets,
            transfer,
            store_port,
            kv_events=self.exchange.kv_events,
        )

    async def _gather(self, model: ServedModel) -> int:
        facts = facts_of(self._arguments(model, None), model.content_hash)
        self._leader = Leader(self._settings.nodes, facts, self._node_lost)
        self._progress(0.0, f"waiting for {self._settings.nodes.count - 1} more nodes")
        store_port = await self._leader.gather(self._settings.start_timeout_s)
        self._progress(0.0, "all nodes are there")
        return store_port

    def _node_lost(self, sentence: str) -> None:
        self._lost.set()
        self.on_lost(sentence)

    async def _of_nodes(self) -> str | None:
        """The problem of another node of this worker, where it is known now."""
        if self._leader is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WORD_S):
                await self._lost.wait()
        return self._leader.problem

    async def _warm_up(self) -> None:
        """One request for everything that is prepared on first use: kernels, sampling, log-probabilities."""
        tokens = [1] * min(self._scheduler.max_batched_tokens, self.client.context_tokens - _WARM_UP_TOKENS - 1)
        sampling: dict[str, object] = {
            "temperature": 1.0, "max_tokens": _WARM_UP_TOKENS, "logprobs": 1, "ignore_eos": True, "detokenize": False
        }  # fmt: skip
        request = VllmRequest(_WARM_UP, pack_tokens(tokens), 0, sampling, None, _WARM_UP, 0, "")
        try:
            async with asyncio.timeout(self._settings.step_timeout_s):
                began = asyncio.get_running_loop().time()
                await self.client.add(self.client.prepare(request))
                ended = False
                while not ended:
                    outputs = (await self.client.outputs()).outputs
                    ended = any(output.finished for output in outputs)
                    if not self.seconds_per_token and any(output.new_token_ids for output in outputs):
                        self.seconds_per_token = (asyncio.get_running_loop().time() - began) / len(tokens)
        except TimeoutError:
            problem = f"a first request was not answered within {self._settings.step_timeout_s:g} s"
            raise TandemError("engine_failed", problem) from None
        except EngineGone:
            raise await self.why_gone() from None

    def kill(self) -> None:
        """End the engine's processes and their ranks at once: they do not answer, or not in time. A rank that is
        stopped would not see its parent end."""
        # All of them are found first: the children of a process that has ended are nobody's.
        found = [member for engine in self.client.pids for member in family_of(engine)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _listen(self) -> None:
        if self._hearing is not None:
            self._hearing.read()

    def _words(self) -> list[str]:
        return self._hearing.errors if self._hearing is not None else []

    async def close(self) -> None:
        """End vLLM's processes and remove its sockets. Idempotent."""
        self.on_lost = _nobody
        if self._leader is not None:
            # First: other nodes are to hear why, before they see their ranks end.
            self._leader.close(self._why)
        if self._launch is not None and self._client is None:
            self._client = await self._launch.give_up()
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


def _features(*, images: bool, adapters: bool) -> tuple[str, ...]:
    more = [name for name, there in (("adapters", adapters), ("images", images)) if there]
    return tuple(sorted((*_FEATURES, *more)))


def _nobody(_sentence: str) -> None:
    """Placeholder for a callback that the engine has not set; does nothing."""


def _launch(arguments: EngineArguments, model: ServedModel) -> "Launch[VllmClient]":
    def built() -> "VllmClient":
        # Imported on use: it takes seconds and reads the environment.
        from tandem.engine.vllm.client import VllmClient, build

        return VllmClient(build(arguments), model.adapters)

    return Launch(built, arguments.environment)
