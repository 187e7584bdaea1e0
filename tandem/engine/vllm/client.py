"""The only module that calls vLLM's API: builds an `AsyncLLM`, sends requests, receives one message per engine step.

vLLM's own output handling (a queue and a task per request, incremental detokenization) is left out: the results of an
engine step become one report. Qualified with vLLM 0.32; the contract suite decides about any other version.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tandem.core.errors import TandemError
from tandem.core.kv import Layout, pack_tokens, unpack_tokens
from tandem.engine.vllm.arguments import AdapterDirectory, EngineArguments
from tandem.engine.vllm.failure import EngineGone
from tandem.engine.vllm.image_decoding import decode_images
from tandem.engine.vllm.internals import (
    AsyncEngineArgs,
    AsyncLLM,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineDeadError,
    KVEventsConfig,
    KVTransferConfig,
    LoRARequest,
    SamplingParams,
    StructuredOutputsParams,
    VLLMValidationError,
    engine_name,
)
from tandem.engine.vllm.requests import Expanded, VllmRequest

_STOP_S: Final = 1.0


def build(arguments: EngineArguments) -> AsyncLLM:
    """Start the engine's processes and wait for them; takes seconds to minutes, so call it in a thread.

    Raises what vLLM raises: `ValueError` and its kin for arguments, `RuntimeError` for processes that do not come up.
    """
    return AsyncLLM.from_engine_args(engine_args(arguments.keywords))


def engine_args(keywords: Mapping[str, Any]) -> AsyncEngineArgs:
    """The arguments as vLLM takes them from Python: some are configurations of their own."""
    kinds = {"kv_events_config": KVEventsConfig, "kv_transfer_config": KVTransferConfig}
    made = {key: kind(**keywords[key]) for key, kind in kinds.items() if isinstance(keywords.get(key), Mapping)}
    return AsyncEngineArgs(**{**keywords, **made})


class VllmClient:
    """One running engine. Belongs to the event loop that calls `start`."""

    def __init__(self, llm: AsyncLLM, adapters: tuple[AdapterDirectory, ...]) -> None:
        self._llm = llm
        self._core: Any = llm.engine_core
        self._tasks: tuple[Any, ...] = ()
        self._adapters = {each.adapter.name: _lora(each) for each in adapters}

    async def start(self) -> None:
        self._tasks = await self._core.get_supported_tasks_async()

    @property
    def config(self) -> Any:
        """vLLM's whole configuration, as it is after start."""
        return self._llm.vllm_config

    @property
    def blocks(self) -> int:
        """KV blocks that requests can have; vLLM keeps one for itself."""
        return int(self.config.cache_config.num_gpu_blocks) - 1

    @property
    def block_tokens(self) -> int:
        return int(self.config.cache_config.block_size)

    @property
    def caches_prefixes(self) -> bool:
        """Whether vLLM reuses what is computed, which it does not with every model and device."""
        return bool(self.config.cache_config.enable_prefix_caching)

    @property
    def context_tokens(self) -> int:
        return int(self.config.model_config.max_model_len)

    @property
    def vocab_size(self) -> int:
        return int(self.config.model_config.get_vocab_size())

    @property
    def images_max(self) -> int:
        """The number of images that a prompt may have; 0 for a model without vision, and where images are switched
        off."""
        processor = self._llm.renderer.mm_processor
        return 0 if processor is None else int(processor.info.allowed_mm_limits.get("image", 0))

    def layout(self) -> Layout:
        """The layout of a block inside vLLM. Where blocks are exchanged, the stage's layout is used instead."""
        model, parallel = self.config.model_config, self.config.parallel_config
        dtype = self.config.cache_config.cache_dtype
        name = str(model.dtype).removeprefix("torch.") if dtype == "auto" else dtype
        return Layout(
            engine=engine_name(),
            packing="vllm",
            dtype=name,
            item_bytes=1 if name.startswith("fp8") else {"float32": 4}.get(name, 2),
            layers=max(1, int(model.get_total_num_hidden_layers())),
            block_tokens=self.block_tokens,
            # A model without attention has none of either.
            kv_heads=max(1, int(model.get_total_num_kv_heads())),
            head_dim=max(1, int(model.get_head_size())),
            tensor_parallel=int(parallel.tensor_parallel_size),
            pipeline_parallel=int(parallel.pipeline_parallel_size),
        )

    def prepare(self, request: VllmRequest) -> EngineCoreRequest:
        """A request as the engine process takes it. Raises `invalid_request`, and `engine_failed` where vLLM fails
        otherwise on what it has made of images."""
        sampling = dict(request.sampling)
        try:
            if request.grammar is not None:
                sampling["structured_outputs"] = StructuredOutputsParams(**request.grammar)
            prompt = {
                **(request.media or {"type": "token"}),
                "prompt_token_ids": list(unpack_tokens(request.tokens)),
                "cache_salt": request.cache_salt,
            }
            return self._llm.input_processor.process_inputs(
                request.request_id,
                prompt,
                SamplingParams(**sampling),
                self._tasks,
                lora_request=self._adapters.get(request.adapter),
                priority=request.priority,
            )
        except (VLLMValidationError, ValueError) as error:
            raise TandemError("invalid_request", " ".join(str(error).split())) from error
        # The media are what the model's own code has made of images, of whatever kind.
        except Exception as error:
            if request.media is None:
                raise
            raise _unprepared(error) from error

    async def expand(self, prompt: bytes, files: tuple[bytes, ...]) -> Expanded:
        """A prompt with its images in their places, read and prepared off the event loop. Call it for one prompt
        after the other: decoded images are large.

        Raises `invalid_request` for images that cannot be read or that the model does not take, `engine_failed` where
        vLLM fails otherwise.
        """
        most = self.images_max
        if len(files) > most:
            problem = f"the prompt has {len(files)} images, and {most} are the most that are taken here"
            raise TandemError("invalid_request", problem, param="messages")
        pictures = await asyncio.to_thread(decode_images, files)
        asked = {"prompt_token_ids": list(unpack_tokens(prompt)), "multi_modal_data": {"image": pictures}}
        try:
            (found,) = await self._llm.renderer.render_cmpl_async([asked])
            media = {key: value for key, value in found.items() if key not in ("prompt_token_ids", "prompt")}
            return Expanded(pack_tokens(found["prompt_token_ids"]), media)
        except (VLLMValidationError, ValueError) as error:
            raise TandemError("invalid_request", " ".join(str(error).split()), param="messages") from error
        # What reads images is the model's own code, and fails as it likes: no request may end the engine.
        except Exception as error:
            raise _unprepared(error) from error

    def attach(self, prepared: EngineCoreRequest, transfer: Mapping[str, object]) -> None:
        """Add what the connector is to know."""
        params = prepared.sampling_params
        assert params is not None
        params.extra_args = {**(params.extra_args or {}), "kv_transfer_params": dict(transfer)}

    async def add(self, request: EngineCoreRequest) -> None:
        try:
            await self._core.add_request_async(request)
        except EngineDeadError as error:
            raise EngineGone from error

    async def abort(self, request_ids: list[str]) -> None:
        await self._core.abort_requests_async(request_ids)

    async def outputs(self) -> EngineCoreOutputs:
        """The outputs of the next engine step. Raises `EngineGone`."""
        try:
            return await self._core.get_output_async()
        except EngineDeadError as error:
            raise EngineGone from error

    def more(self) -> EngineCoreOutputs | None:
        """The next message, if one has already arrived; otherwise None."""
        queue: asyncio.Queue[EngineCoreOutputs | Exception] = self._core.outputs_queue
        if queue.empty():
            return None
        found = queue.get_nowait()
        if isinstance(found, Exception):
            raise EngineGone from found
        return found

    @property
    def exit_statuses(self) -> tuple[int, ...]:
        """The exit statuses of the engine processes that have ended; negative for a signal."""
        manager = self._core.resources.engine_manager
        return tuple(each.exitcode for each in getattr(manager, "processes", ()) if each.exitcode is not None)

    @property
    def pids(self) -> tuple[int, ...]:
        """The engine processes; ranks are their children."""
        manager = self._core.resources.engine_manager
        return tuple(each.pid for each in getattr(manager, "processes", ()) if each.pid is not None)

    async def close(self) -> None:
        """End the engine's processes, politely for a few seconds."""
        await asyncio.to_thread(self._llm.shutdown, _STOP_S)
        # Its finalizer would shut down once more, while the interpreter is leaving.
        self._llm.shutdown = _nothing


def _unprepared(error: Exception) -> TandemError:
    problem = f"vLLM could not prepare the images: {type(error).__name__}: {error}"
    return TandemError("engine_failed", " ".join(problem.split()))


def _nothing(timeout: float | None = None) -> None:
    """Shutting down what is down."""


def _lora(adapter: AdapterDirectory) -> LoRARequest:
    return LoRARequest(adapter.adapter.name, adapter.number, str(adapter.path))
