"""The worker between routers and engine: links in, work items down, outputs up (DESIGN §4).

One host serves the links of several routers. Everything it holds for a router ends with that router's link.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tandem.core.errors import TandemError
from tandem.core.messages import (
    Cancel,
    Drain,
    Draining,
    Load,
    Ping,
    Pong,
    ProvideFirst,
    RouterMessage,
    SampleFirst,
    Submit,
    WorkerCommand,
)
from tandem.engine.protocol import StepReport
from tandem.service.link import WorkerLink
from tandem.service.logs import event
from tandem.worker.attempts import Attempt
from tandem.worker.block_events import BlockEvents
from tandem.worker.desk import AttemptDesk
from tandem.worker.fetches import Fetches
from tandem.worker.identity import Identity
from tandem.worker.incarnation import Incarnation
from tandem.worker.parts import KvFetcher, Parts
from tandem.worker.session import Session

T = TypeVar("T")

_log = logging.getLogger(__name__)

_IDLE: Final = Load(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0)


class WorkerHost:
    """Serves routers on behalf of one engine. `accept` is for the link server, `listen` for the engine."""

    def __init__(
        self, parts: Parts, identity: Identity, incarnation: Incarnation, fetcher: KvFetcher | None = None
    ) -> None:
        self.identity = identity
        self.incarnation = incarnation
        self.drain_asked = asyncio.Event()
        self.drain_within_s: float | None = None
        """Seconds within which this worker leaves, once it drains."""
        self._engine = parts.engine
        self._clock = parts.clock
        self._deadlines = parts.deadlines
        self._settings = parts.settings
        self._desk = AttemptDesk(parts, identity, self._say, self._attempt_ended)
        self._fetches = Fetches(parts, self._desk, fetcher)
        self._events = BlockEvents(incarnation.epoch, parts.engine.snapshot)
        self._sessions: dict[int, Session] = {}
        self._group: asyncio.TaskGroup | None = None
        self._load = _IDLE
        self._load_stale = False
        """An attempt has ended since the load figures were taken: what it exports is not in them."""
        self._changed = asyncio.Event()
        self._links = 0
        self._beats = 0

    @property
    def attempts(self) -> int:
        """Attempts that hold anything here."""
        return len(self._desk)

    @property
    def told(self) -> tuple[int, int]:
        """Epoch and number of the last event about blocks."""
        return self._events.last

    @property
    def routers(self) -> tuple[str, ...]:
        """Whom this worker has a link with."""
        return tuple(session.link.peer for session in self._sessions.values())

    async def run(self, started: Callable[[], None]) -> None:
        """Heartbeats, links and fetches, until cancelled. Links may be accepted once `started` was called."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._fetches.run_in(group)
            self.incarnation.beat(self._clock.now())
            started()
            while True:
                await asyncio.sleep(self._deadlines.heartbeat_every_s)
                self._heartbeat()

    # -- links --

    async def accept(self, link: WorkerLink) -> None:
        """Serve one router until its link is lost; then nothing of its work is left here."""
        assert self._group is not None, "links are accepted while `run` runs"
        serving = self._group.create_task(self._serve(link), name=f"link {link.peer}")
        try:
            await asyncio.wait((serving,))
        finally:
            serving.cancel()

    async def _serve(self, link: WorkerLink) -> None:
        self._fence()
        self._links += 1
        session = Session(self._links, link, self._clock.now())
        self._sessions[session.session_id] = session
        event(_log, "link_opened", worker=self.identity.worker_id, router=link.peer)
        session.tell(self.identity.hello(self.incarnation.epoch, self.drain_within_s is not None))
        self._send_snapshot(session)
        self._send_load(session)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve_commands(session))
                group.create_task(self._serve_requests(session))
        finally:
            self._forget(session, "the worker ended the link")

    async def _serve_commands(self, session: Session) -> None:
        while (commands := await _unless_lost(session.link.tokens.receive())) is not None:
            self._fence()
            session.heard = self._clock.now()
            for command in commands:
                if session.open:
                    self._command(session, command)
        self._forget(session, "the link was lost")

    async def _serve_requests(self, session: Session) -> None:
        while await _unless_lost(session.link.state.receive()) is not None:
            session.heard = self._clock.now()
            self._send_snapshot(session)
        self._forget(session, "the link was lost")

    def _forget(self, session: Session, reason: str) -> None:
        """Free everything held for a router, at once."""
        if self._sessions.pop(session.session_id, None) is not None:
            event(_log, "link_closed", worker=self.identity.worker_id, router=session.link.peer, reason=reason)
            session.close(reason)
            self._desk.forget_session(session.session_id)

    def _say(self, session_id: int, message: RouterMessage) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.tell(message)

    def _command(self, session: Session, command: WorkerCommand) -> None:
        match command:
            case Submit():
                self._desk.submit(session.session_id, command, self._refusal())
            case Cancel():
                self._desk.cancel(session.session_id, command.handle, command.sequence)
            case ProvideFirst():
                self._desk.provide_first(session.session_id, command)
            case SampleFirst():
                self._desk.sample_first(session.session_id, command.handle)
            case Drain():
                self.start_drain(command.within_s)
            case Ping():
                pass

    def _refusal(self) -> TandemError | None:
        if self.drain_within_s is None:
            return None
        return TandemError("draining", f"worker {self.identity.worker_id} is leaving")

    # -- engine --

    def listen(self, report: StepReport) -> None:
        """The engine's listener: tell every router what a step brought about for it."""
        self._fence()
        self._desk.report(report)
        for job in report.fetches:
            self._fetches.start(job)
        for delta in self._events.change(report.kv):
            for session in self._sessions.values():
                session.update(delta)
        if report.load is not None:
            self._load, self._load_stale = report.load, False
        now = self._clock.now()
        for session in self._sessions.values():
            if now - session.load_sent >= self._settings.load_every_s:
                self._send_load(session)
        self._changed.set()

    def _attempt_ended(self, attempt: Attempt) -> None:
        self._fetches.stop(attempt)
        self._load_stale = True

    # -- state, heartbeats, incarnation --

    def _send_snapshot(self, session: Session) -> None:
        for piece in self._events.snapshot():
            session.update(piece)

    def _send_load(self, session: Session) -> None:
        session.load_sent = self._clock.now()
        session.update(self._load)

    def _heartbeat(self) -> None:
        self._fence()
        now = self._clock.now()
        self.incarnation.beat(now)
        self._beats += 1
        for session in list(self._sessions.values()):
            silent_s = now - session.heard
            if silent_s > self._deadlines.heartbeat_lost_s:
                self._forget(session, f"router {session.link.peer} was silent for {silent_s:.1f} s")
                continue
            session.tell(Pong(self.incarnation.epoch, self._beats))
            self._send_load(session)

    def _fence(self) -> None:
        """Become a new incarnation if this process was frozen: drop every work and every link."""
        now = self._clock.now()
        gap_s = self.incarnation.gap(now)
        if gap_s is None:
            return
        self.incarnation.beat(now)
        for session in list(self._sessions.values()):
            self._forget(session, f"the worker was frozen for {gap_s:.1f} s and is a new incarnation now")
        self._events = BlockEvents(self.incarnation.renew(), self._engine.snapshot)

    # -- leaving --

    def start_drain(self, within_s: float) -> None:
        """Take no new work from now on. The process shell does the leaving."""
        if self.drain_within_s is None:
            self.drain_within_s = within_s
            for session in self._sessions.values():
                session.tell(Draining(within_s))
            self.drain_asked.set()

    async def drained(self, within_s: float) -> int:
        """Wait until every attempt has ended and exported blocks were fetched, at most `within_s`.

        What is left then is cancelled; gives how many attempts that were.
        """
        deadline = self._clock.now() + within_s
        while self._busy() and (left_s := deadline - self._clock.now()) > 0:
            self._changed.clear()
            await _at_most(self._changed.wait(), left_s)
        return self._desk.cancel_all("draining", f"worker {self.identity.worker_id} left before the request ended")

    def _busy(self) -> bool:
        return self.attempts > 0 or self._load_stale or self._load.blocks_exported > 0


async def _unless_lost(receiving: Awaitable[T]) -> T | None:
    try:
        return await receiving
    except TandemError as error:
        if error.code != "link_lost":
            raise
        return None


async def _at_most(waiting: Awaitable[object], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return
