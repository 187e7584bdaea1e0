"""The facts that the worker knows of a model that vLLM serves: its directory, content hash and end tokens."""

from dataclasses import dataclass
from pathlib import Path

from tandem.engine.vllm.adapters import open_adapters
from tandem.engine.vllm.arguments import AdapterDirectory, numbers_identity
from tandem.engine.vllm.settings import VllmSettings
from tandem.model.directory import ModelDirectory, open_model


@dataclass(frozen=True)
class ServedModel:
    """A model on disk, understood. `content_hash` is equal for equal numbers, wherever the files lie."""

    path: Path
    name: str
    content_hash: str
    eos_token_ids: tuple[int, ...]
    adapters: tuple[AdapterDirectory, ...]


def open_served(settings: VllmSettings) -> ServedModel:
    """Blocks while a hub model is downloaded and weights are hashed. Raises `bad_model`, `bad_setting`."""
    directory = open_model(settings.model, name=settings.name, cache=settings.cache)
    content, changed = directory.content_hash(directory.checkpoint()), numbers_identity(settings)
    return ServedModel(
        path=directory.path,
        name=directory.name,
        content_hash=f"{content}/{changed}" if changed else content,
        eos_token_ids=_end_tokens(directory),
        adapters=open_adapters(settings.adapters, settings.adapter_rank_max),
    )


def _end_tokens(directory: ModelDirectory) -> tuple[int, ...]:
    """The end tokens of the model's configurations, and the tokenizer's own, at which vLLM stops too."""
    own = directory.tokenizer_end()
    return tuple(dict.fromkeys((*directory.facts.eos_token_ids, *(() if own is None else (own,)))))
