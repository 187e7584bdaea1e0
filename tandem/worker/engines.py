"""Build an engine with its decoder from settings: the embedded torch engine, vLLM, or the simulated one in real
time."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.engine.local import LocalEngine
from tandem.engine.memory import HostMemory
from tandem.engine.protocol import Engine
from tandem.engine.scheduler.plan import Runner
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.engine.torch.settings import TorchSettings
from tandem.engine.vllm.settings import VllmSettings
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.engine.vllm.stage_size import default_bytes
from tandem.model.directory import open_model
from tandem.worker.detokenizer import Decoder
from tandem.worker.host_memory import host_memory_bytes
from tandem.worker.process_settings import WorkerSettings
from tandem.worker.simple_decoder import SimpleDecoder


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that has not started, and what turns its ids into text."""

    engine: Engine
    decoder: Decoder
    begin_epoch: Callable[[int], None]


def open_decoder(settings: WorkerSettings) -> Decoder:
    """The model's decoder. Blocks while a hub model is downloaded. Raises `bad_model`."""
    if settings.engine == "simulated":
        return SimpleDecoder()
    # Imported on use: the simulated engine needs no tokenizer library.
    from tandem.worker.tokenizer import FileDecoder

    directory = open_model(settings.model, name=settings.model_name, cache=settings.torch.cache)
    return FileDecoder(directory.tokenizer_path.parent)


ProgressCallback = Callable[[float, str], None]
"""Hears how far loading is, from 0 to 1, and what has just been done."""


def build_engine(
    settings: WorkerSettings, decoder: Decoder, clock: Clock, epoch: int, progress: ProgressCallback
) -> BuiltEngine:
    """Build the engine that the settings ask for. Raises `bad_setting`."""
    scheduler = scheduler_settings(settings)
    if settings.engine == "vllm":
        return _vllm(settings, scheduler, decoder, clock, epoch, progress)
    engine = LocalEngine(_runner(settings), scheduler, clock, epoch)
    return BuiltEngine(engine, decoder, engine.begin_epoch)


def scheduler_settings(settings: WorkerSettings) -> SchedulerSettings:
    """The scheduler's settings: how much runs at once, and how much waits."""
    return replace(settings.scheduler, queue_s=settings.deadlines.queue_s, kv_wait_s=settings.deadlines.kv_wait_s)


def _vllm(
    settings: WorkerSettings,
    scheduler: SchedulerSettings,
    decoder: Decoder,
    clock: Clock,
    epoch: int,
    progress: ProgressCallback,
) -> BuiltEngine:
    own = vllm_settings(settings)
    # Imported on use: no other engine needs what these bring along.
    from tandem.engine.vllm.engine import VllmEngine
    from tandem.engine.vllm.stage import Stage

    stage: Stage | None = None
    # Ranks on other nodes cannot map this node's memory: such a worker hands nothing over, and keeps no tiers.
    if own.nodes.count == 1 and own.kv_transfer != "never":
        stage = Stage(stage_settings(settings, host_memory_bytes()), clock, epoch)
    # What vLLM's steps may take cannot be told while it runs, so routers leave workers of role auto unified.
    role = "unified" if settings.role == "auto" else settings.role
    engine = VllmEngine(own, scheduler, clock, stage, progress, role)
    return BuiltEngine(engine, decoder, engine.begin_epoch)


def stage_settings(settings: WorkerSettings, memory_bytes: int) -> StageSettings:
    """Settings of the stage of a vLLM worker. The stage has the size of the DRAM tier, by default a part of the
    `memory_bytes` of this machine. Raises `bad_setting` for two sizes that differ."""
    stage, tier_bytes = settings.stage, settings.tiers.dram_bytes
    if tier_bytes and stage.memory_bytes not in (None, tier_bytes):
        problem = f"stage.memory_bytes = {stage.memory_bytes}: set tiers.dram_bytes alone, which is the same memory"
        raise TandemError("bad_setting", problem, param="stage.memory_bytes")
    shares = {"prefill": stage.export_share, "decode": 1 - stage.export_share}
    return replace(
        stage,
        memory_bytes=tier_bytes or stage.memory_bytes or default_bytes(memory_bytes, stage.sharers),
        context_share=stage.context_share or shares.get(settings.role),
        # Slots are a part of a work's place, for which the engine has the bound.
        queue_s=settings.deadlines.total_s,
        itl_target_s=settings.scheduler.itl_target_s,
        directory=stage.directory or settings.socket_directory,
    )


def vllm_settings(settings: WorkerSettings) -> VllmSettings:
    """vLLM settings of a worker with that engine, or of a node that follows one. Raises `bad_setting` where vLLM is
    not installed."""
    if importlib.util.find_spec("vllm") is None:
        problem = "engine = 'vllm': vLLM is not installed here; `make setup-vllm` makes an environment that has it"
        raise TandemError("bad_setting", problem, param="engine")
    # What a killed worker leaves behind goes with the directory of the run.
    own = replace(settings.vllm, directory=settings.vllm.directory or settings.socket_directory)
    return _given(settings, own)


def _runner(settings: WorkerSettings) -> Runner:
    if settings.engine == "simulated":
        model = _simulated(settings)
        return SimulatedRunner(model, HostMemory(model.layout.block_bytes, model.blocks))
    if missing := [name for name in ("torch", "safetensors") if importlib.util.find_spec(name) is None]:
        problem = f"engine = 'torch': no {' and no '.join(missing)} here; pip install 'tandem-serve[torch]'"
        raise TandemError("bad_setting", problem, param="engine")
    # Imported on use: only this branch may need torch.
    from tandem.engine.torch.build import build_runner

    return build_runner(_given(settings, settings.torch))


EngineSettings = TypeVar("EngineSettings", TorchSettings, VllmSettings)


def _given(settings: WorkerSettings, engine: EngineSettings) -> EngineSettings:
    """An engine's own settings, with the worker's settings that apply to any engine."""
    given = {
        "model": settings.model,
        "name": settings.model_name,
        "dtype": settings.dtype,
        "block_tokens": settings.block_tokens,
        "kv_memory_bytes": settings.kv_memory,
    }
    return replace(engine, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def _simulated(settings: WorkerSettings) -> SimulatedModel:
    """The simulated model that the settings describe. It has no files: its name alone identifies it."""
    model = settings.simulated.resolved
    if settings.model_name is not None:
        model = replace(model, name=settings.model_name)
    if settings.block_tokens is not None:
        model = replace(model, block_tokens=settings.block_tokens)
    if settings.kv_memory is not None:
        model = replace(model, blocks=max(1, settings.kv_memory // model.layout.block_bytes))
    return model
