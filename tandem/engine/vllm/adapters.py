"""LoRA adapters on disk: their names, what vLLM calls them, and the content hashes that keep their blocks apart."""

from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.messages import Adapter
from tandem.engine.vllm.arguments import AdapterDirectory
from tandem.model.checkpoint import open_file, read_object

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
_NUMBERS: Final = ("r", "lora_alpha", "use_rslora", "target_modules", "modules_to_save", "bias", "peft_type")
"""Fields of its configuration that change what an adapter computes."""


def open_adapters(places: tuple[str, ...], rank_max: int) -> tuple[AdapterDirectory, ...]:
    """Adapters from `DIRECTORY` or `NAME=DIRECTORY`. Raises `bad_setting`, `bad_model`; reads the weights once."""
    found = tuple(_open(place, number, rank_max) for number, place in enumerate(places, 1))
    names = [each.adapter.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise TandemError("bad_setting", f"adapters: two of them are called {name}", param="adapters")
    return found


def _open(place: str, number: int, rank_max: int) -> AdapterDirectory:
    given, equals, directory = place.rpartition("=")
    path = Path(directory).expanduser()
    if not path.is_dir():
        raise TandemError("bad_setting", f"adapters = {place!r}: {path} is no directory", param="adapters")
    path = path.resolve()
    config = read_object(path / CONFIG_FILE)
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise TandemError("bad_model", f"{path / CONFIG_FILE}: r = {rank!r}: expected the adapter's rank")
    if rank > rank_max:
        problem = f"adapter_rank_max = {rank_max}: the adapter in {path} has rank {rank}"
        raise TandemError("bad_setting", problem, param="adapter_rank_max")
    identity = "\x1f".join(f"{field}={config.get(field)!r}" for field in _NUMBERS)
    content = open_file(path / WEIGHTS_FILE).content_hash(identity)
    return AdapterDirectory(Adapter(given if equals else path.name, content), path, number)
