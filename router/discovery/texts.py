"""The text sides of all services' models: loaded when a service appears, on a thread, and kept until it goes."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from router.api.chat_templates.render import Renderer
from router.discovery.model_service import TextSource
from tandem.core.clock import Clock
from tandem.core.errors import TandemError
from tandem.process.logs import event

_log = logging.getLogger(__name__)

_AGAIN_S: Final = 30.0


@dataclass(frozen=True)
class TextSide:
    """A model's renderer, and its context in tokens where files say so."""

    renderer: Renderer
    context_tokens: int | None


Load = Callable[[str, TextSource], TextSide]
"""Loads the text side of a model from the model's name and source. Blocks; raises `bad_model`."""


class TextSides(Mapping[str, Renderer]):
    """Renderers by model: what the front door looks names up in."""

    def __init__(self, load: Load, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._sides: dict[str, tuple[TextSource, TextSide]] = {}
        self._wanted: dict[str, TextSource] = {}
        self._failed: dict[str, tuple[TextSource, float]] = {}
        self._why: dict[str, str] = {}
        self._changed = asyncio.Event()
        self.loaded: Callable[[str], None] = lambda model: None
        """Called with the name of a model whose text side is there."""

    def __getitem__(self, model: str) -> Renderer:
        return self._sides[model][1].renderer

    def __iter__(self) -> Iterator[str]:
        return iter(self._sides)

    def __len__(self) -> int:
        return len(self._sides)

    def coming(self) -> Mapping[str, str]:
        """Why models that are served have no text side yet."""
        return {
            model: self._why.get(model, "it is being loaded") for model in self._wanted if model not in self._sides
        }

    def context_tokens(self, model: str) -> int | None:
        """The model's context length in tokens according to its files; None until they have been read."""
        side = self._sides.get(model)
        return None if side is None else side[1].context_tokens

    def want(self, sources: Mapping[str, TextSource]) -> None:
        """Set the wanted models with their sources, and drop all other models."""
        self._wanted = dict(sources)
        self._sides = {model: side for model, side in self._sides.items() if model in sources}
        self._failed = {model: failed for model, failed in self._failed.items() if model in sources}
        self._changed.set()

    async def run(self) -> None:
        """Load what is wanted, one after the other, until cancelled."""
        while True:
            due = self._due()
            if due is not None:
                await self._bring(*due)
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _due(self) -> tuple[str, TextSource] | None:
        """The next model to load: one that is missing, or whose files are others now that a rollout is over."""
        now = self._clock.now()
        for model, source in self._wanted.items():
            failed = self._failed.get(model)
            if failed is not None and failed[0].place == source.place and now - failed[1] < _AGAIN_S:
                continue
            there = self._sides.get(model)
            if there is not None and there[0] is source:
                continue
            if there is None or (source.settled and there[0].place != source.place):
                return model, source
        return None

    async def _bring(self, model: str, source: TextSource) -> None:
        try:
            side = await _on_thread(lambda: self._load(model, source), f"text side of {model}")
        except TandemError as error:
            self._failed[model], self._why[model] = (source, self._clock.now()), error.message
            event(_log, "text_side_failed", level=logging.WARNING, model=model, reason=error.message)
            return
        self._failed.pop(model, None)
        self._why.pop(model, None)
        if model in self._wanted:
            self._sides[model] = source, side
            self.loaded(model)


async def _on_thread(work: Callable[[], TextSide], name: str) -> TextSide:
    """Run `work` on a thread of its own. The end of the process does not wait for this thread, as a download may take
    long."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[TextSide] = loop.create_future()

    def settle(side: TextSide | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if side is not None:
            done.set_result(side)
        else:
            done.set_exception(error or TandemError("internal", f"{name} came to nothing"))

    def run() -> None:
        side, error = None, None
        try:
            side = work()
        except TandemError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001  (whatever a file or a library has in store: one model is lost)
            error = TandemError("bad_model", f"{name}: {type(unknown).__name__}: {unknown}")
        with suppress(RuntimeError):  # the loop is closed: nobody wants it any more
            loop.call_soon_threadsafe(settle, side, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
