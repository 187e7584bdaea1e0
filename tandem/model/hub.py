"""Fetching a model directory from a model hub by its id. Torch-free."""

import re
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError

WEIGHTS: Final = "*.safetensors"
WANTED: Final = ("*.json", WEIGHTS, "*.jinja")
UNWANTED: Final = ("*/*",)
"""Copies in other formats live in sub-folders."""
_ID: Final = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}(@[\w./-]+)?")


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form owner/name or owner/name@revision."""
    return _ID.fullmatch(model) is not None


def download(
    model: str,
    cache: Path | None,
    *,
    weights: bool = True,
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> Path:
    """Bring a snapshot here (resuming what is partly there), with or without its weights, and return its directory.
    `token` is by default the hub's own (`HF_TOKEN`); False asks without one. `endpoint` is the hub's URL, by default
    `HF_ENDPOINT`. Raises `bad_model`."""
    # Imported on use: it costs a tenth of a second, and most starts do not need the hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = model.partition("@")
    try:
        found = snapshot_download(
            repository,
            revision=revision or None,
            cache_dir=cache,
            token=token,
            endpoint=endpoint,
            allow_patterns=[pattern for pattern in WANTED if weights or pattern != WEIGHTS],
            ignore_patterns=list(UNWANTED),
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise TandemError(
            "bad_model", f"{model}: the hub answered with status {status}; check id and access"
        ) from error
    except (LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise TandemError("bad_model", f"{model}: not here and cannot be downloaded: {error}") from error
    return Path(found)
