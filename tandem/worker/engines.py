"""From settings to an engine with its decoder: the embedded torch engine, or the simulated one in real time."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.core.clock import Clock
from tandem.engine.local import LocalEngine
from tandem.engine.memory import HostMemory
from tandem.engine.model_directory import open_model
from tandem.engine.plan import Runner
from tandem.engine.protocol import Engine
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.engine.torch.settings import TorchSettings
from tandem.worker.detokenizer import Decoder
from tandem.worker.process_settings import WorkerSettings
from tandem.worker.simple_decoder import SimpleDecoder


@dataclass(frozen=True)
class Loaded:
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


def build_engine(settings: WorkerSettings, decoder: Decoder, clock: Clock, epoch: int) -> Loaded:
    """The engine the settings ask for. Raises `bad_setting`."""
    scheduler = replace(settings.scheduler, queue_s=settings.deadlines.queue_s)
    engine = LocalEngine(_runner(settings), scheduler, clock, epoch)
    return Loaded(engine, decoder, engine.begin_epoch)


def _runner(settings: WorkerSettings) -> Runner:
    if settings.engine == "simulated":
        model = _simulated(settings)
        return SimulatedRunner(model, HostMemory(model.layout.block_bytes, model.blocks))
    # Imported on use: only this branch may need torch.
    from tandem.engine.torch.build import build_runner

    return build_runner(_torch(settings))


def _torch(settings: WorkerSettings) -> TorchSettings:
    given = {
        "model": settings.model,
        "name": settings.model_name,
        "dtype": settings.dtype,
        "block_tokens": settings.block_tokens,
        "kv_memory_bytes": settings.kv_memory,
    }
    return replace(settings.torch, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def _simulated(settings: WorkerSettings) -> SimulatedModel:
    """A simulated model has no files: its name alone says what it is."""
    model = settings.simulated.resolved
    if settings.model_name is not None:
        model = replace(model, name=settings.model_name)
    if settings.block_tokens is not None:
        model = replace(model, block_tokens=settings.block_tokens)
    if settings.kv_memory is not None:
        model = replace(model, blocks=max(1, settings.kv_memory // model.layout.block_bytes))
    return model
