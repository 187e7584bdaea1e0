"""Facts about models before they are loaded: from an annotation of the service, or from the hub.

The hub is asked aside, a few models at a time. What cannot be found is not known, and nothing waits for it: a pool is
refused only where the arithmetic is certain.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from control_plane.observe.observed import ModelFacts
from tandem.core.clock import Clock
from tandem.core.config_facts import facts_of as read
from tandem.core.errors import TandemError
from tandem.core.quantization import kv_type, weight_type
from tandem.core.shape_reading import shape_of
from tandem.core.weight_format import format_of
from tandem.kube.kinds import Json
from tandem.process.logs import event
from tandem.spec.model import Model
from tandem.spec.service import API_GROUP

_log = logging.getLogger(__name__)

ANNOTATION: Final = f"{API_GROUP}/model-config"
"""The model's `config.json`, where the operator cannot read it itself."""
_AGAIN_S: Final = 600.0
_CALL_S: Final = 30.0
_AT_ONCE: Final = 2

Fetch = Callable[[str, str | None], Mapping[str, Any]]
"""Reads the `config.json` of a hub's repository in a revision; raises what it likes."""


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """Facts that the formulas derive from a configuration; for a configuration they do not know, the reason."""
    context, dtype = read(config).context_tokens, weight_type(config)
    try:
        shape = shape_of(config)
        stored = format_of(config, shape)
        return ModelFacts(shape, dtype, context, config=config, format=stored, kv_dtype=kv_type(config))
    except TandemError as error:
        return ModelFacts(None, dtype, context, unread=error.message, config=config)


def annotated(obj: Json) -> ModelFacts | None:
    """Facts about the model that the service states itself in its annotation."""
    text = (obj["metadata"].get("annotations") or {}).get(ANNOTATION)
    if text is None:
        return None
    try:
        config = json.loads(text)
    except ValueError:
        return None
    return facts_of(config) if isinstance(config, dict) else None


def from_hub(repository: str, revision: str | None) -> Mapping[str, Any]:
    """Blocks."""
    # Imported on use: it takes longer than all the rest.
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(repository, "config.json", revision=revision, etag_timeout=_CALL_S / 3)
    config: Mapping[str, Any] = json.loads(Path(path).read_text("utf-8"))
    return config


class HubFacts:
    """Looks up each model once, and again after a while where that failed. Calls `on_found` for each model found."""

    def __init__(self, clock: Clock, on_found: Callable[[str], None], fetch: Fetch = from_hub) -> None:
        self._clock = clock
        self._on_found = on_found
        self._fetch = fetch
        self._known: dict[tuple[str, str | None], ModelFacts | None] = {}
        self._failed_at: dict[tuple[str, str | None], float] = {}
        self._wanted: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue(maxsize=10_000)
        self._asked: set[tuple[str, str | None]] = set()

    def of(self, model: Model) -> ModelFacts | None:
        """The facts known now. A hub's model that has not been looked up is queued for it."""
        repository = hub_id(model.source)
        if repository is None:
            return None
        key = (repository, model.revision)
        failed = self._failed_at.get(key)
        due = failed is None or self._clock.now() - failed > _AGAIN_S
        if due and key not in self._known and key not in self._asked and not self._wanted.full():
            self._asked.add(key)
            self._wanted.put_nowait(key)
        return self._known.get(key)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            key = await self._wanted.get()
            try:
                async with asyncio.timeout(_CALL_S):
                    config = await asyncio.to_thread(self._fetch, *key)
            except Exception as error:  # noqa: BLE001 a library's errors: whatever it is, the model is not known
                self._failed_at[key] = self._clock.now()
                event(_log, "model_unknown", model=key[0], problem=f"{type(error).__name__}: {error}"[:200])
            else:
                self._known[key] = facts_of(config)
                self._on_found(key[0])
            self._asked.discard(key)


def hub_id(source: str) -> str | None:
    """`ORG/NAME` of a hub's model; None for any other source."""
    plain = source.removeprefix("hf://")
    named = "://" not in plain and not plain.startswith(("/", ".")) and plain.count("/") == 1
    return plain if named else None
