"""A node that follows: it holds ranks of an engine whose worker is on another node, and ends with that."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.core.errors import TandemError
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import EngineArguments, Sockets, engine_arguments, facts_of, with_threads
from tandem.engine.vllm.failure import death_sentence, start_error
from tandem.engine.vllm.group import GroupMember
from tandem.engine.vllm.launching import Launch, end_children
from tandem.engine.vllm.loading import ProgressCallback
from tandem.engine.vllm.model import open_served
from tandem.engine.vllm.process_reports import ReportReceiver
from tandem.engine.vllm.settings import VllmSettings

if TYPE_CHECKING:
    from tandem.engine.vllm.ranks import Ranks

_WORD_S: Final = 2.0
"""A rank that ends because its leader does may be seen to end first."""


class HeadlessNode:
    """`start`, then `run`, which ends with the group; `stop` undoes all of it, in any state."""

    def __init__(self, settings: VllmSettings, scheduler: SchedulerSettings, progress: ProgressCallback) -> None:
        self._settings = with_threads(settings)
        self._scheduler = scheduler
        self._progress = progress
        self._directory = Path(tempfile.mkdtemp(prefix="tandem-vllm-", dir=settings.directory))
        self._sockets = Sockets(self._directory)
        self._hearing: ReportReceiver | None = None
        self._follower: GroupMember | None = None
        self._launch: Launch[Ranks] | None = None
        self._ranks: Ranks | None = None
        self._waiting: asyncio.Future[tuple[int, ...]] | None = None
        self._why = ""
        """Why this node ends, for the leader; empty when it was asked to."""

    async def start(self) -> None:
        """Find the leader and load the model. Raises `bad_model`, `bad_setting`, `engine_failed`."""
        try:
            await self._start()
        except TandemError as error:
            self._why = error.message
            raise

    async def _start(self) -> None:
        settings = self._settings
        model = await asyncio.to_thread(open_served, settings)
        self._hearing = ReportReceiver(self._sockets.tell, self._progress)

        def arguments(store_port: int | None) -> EngineArguments:
            return engine_arguments(
                settings, self._scheduler, model.path, model.adapters, self._sockets, None, store_port
            )

        self._follower = GroupMember(settings.nodes, facts_of(arguments(None), model.content_hash))
        store_port = await self._follower.join(settings.start_timeout_s)
        self._progress(0.0, "all nodes are there")
        self._launch = _launch(arguments(store_port))
        over = asyncio.Event()
        watching = asyncio.ensure_future(self._follower.over())
        watching.add_done_callback(lambda _: over.set())
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                self._ranks = await self._launch.result(over)
        except TimeoutError:
            problem = f"the ranks of this node were not there after {settings.start_timeout_s:g} s"
            raise TandemError("engine_failed", problem) from None
        # vLLM raises whatever went wrong; here that becomes one sentence.
        except Exception as error:
            raise await self._of_leader() or start_error(error, self._words(), ()) from error
        finally:
            watching.cancel()
        if self._ranks is None:
            raise TandemError("engine_failed", self._follower.problem or "the leader ended before it had begun")
        self._waiting = asyncio.ensure_future(asyncio.to_thread(self._ranks.wait))
        self._progress(1.0, "the ranks of this node are there")

    async def run(self) -> None:
        """Return at the leader's orderly end. Raises `engine_failed` when the leader or a rank is lost."""
        assert self._follower is not None
        assert self._waiting is not None
        over = asyncio.ensure_future(self._follower.over())
        try:
            await asyncio.wait((over, self._waiting), return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                await asyncio.wait((over,), timeout=_WORD_S)
            if not over.done():
                self._why = death_sentence(self._words(), self._waiting.result())
                raise TandemError("engine_failed", self._why)
            problem = over.result()
        finally:
            over.cancel()
        if problem is not None:
            raise TandemError("engine_failed", problem)

    async def stop(self) -> None:
        """Tell the leader, end the ranks and remove their sockets. Idempotent."""
        if self._follower is not None:
            self._follower.close(self._why)
        if self._launch is not None and self._ranks is None:
            self._ranks = await self._launch.give_up()
        # The ranks wait for a leader that is gone: nothing in them is worth a polite end.
        end_children()
        if self._waiting is not None:
            await asyncio.wait((self._waiting,))
            self._waiting = None
        if self._ranks is not None:
            await asyncio.to_thread(self._ranks.close)
            self._ranks = None
        if self._hearing is not None:
            self._hearing.close()
            self._hearing = None
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._directory)

    async def _of_leader(self) -> TandemError | None:
        """The leader's own reason for the end, if it has one and sends it now."""
        assert self._follower is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WORD_S):
                problem = await self._follower.over()
                return None if problem is None else TandemError("engine_failed", problem)
        return None

    def _words(self) -> list[str]:
        assert self._hearing is not None
        self._hearing.read()
        return self._hearing.errors


def _launch(arguments: EngineArguments) -> "Launch[Ranks]":
    def built() -> "Ranks":
        # Imported on use: it takes seconds and reads the environment.
        from tandem.engine.vllm.ranks import build

        return build(arguments)

    return Launch(built, arguments.environment)
