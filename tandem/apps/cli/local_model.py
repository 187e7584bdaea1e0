"""The parts of a model that lie on this machine: its directory and its configuration. Does not use the network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tandem.model.directory import DEMO, open_model
from tandem.model.hub import is_hub_id

CONFIG: Final = "config.json"


def model_directory(source: str) -> Path | None:
    """The directory of the model; None when the model has yet to be downloaded."""
    if source == DEMO:
        return open_model(DEMO, weights=False).path
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if not is_hub_id(source):
        return None
    # Imported on use: it takes longer than all the rest.
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = source.partition("@")
    found = try_to_load_from_cache(name, CONFIG, revision=revision or None)
    return Path(found).parent if isinstance(found, str) else None


def model_config(directory: Path) -> Mapping[str, Any] | None:
    """The object in the directory's `config.json`; None where there is none."""
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None
