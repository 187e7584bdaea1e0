"""The worker between routers and engine: links in, work items down, outputs up.

One host serves the links of several routers. Everything it holds for a router ends with that router's link, except
for resumable requests, which another router may claim under a lease.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kv_transfer.tiers.protocol import Tiers
from tandem.core.errors import TandemError
from tandem.core.messages import (
    Cancel,
    Drain,
    Draining,
    Hello,
    Load,
    Ping,
    Pong,
    ProvideFirst,
    PublishSplit,
    Ready,
    ResumeAttempt,
    RetainOutputs,
    RouterMessage,
    SampleFirst,
    Submit,
    Tune,
    Unpin,
    WorkerCommand,
)
from tandem.engine.protocol import KvChange, StepReport
from tandem.link.protocol import WorkerLink
from tandem.process.health import Health
from tandem.process.logs import EventLines, event
from tandem.worker.attempt_manager import SELF, AttemptManager
from tandem.worker.attempts import Attempt
from tandem.worker.block_events import POOL, BlockEvents
from tandem.worker.bounds import check_drain, check_split, step_target_s
from tandem.worker.deps import KvFetcher, Publisher, WorkerDeps
from tandem.worker.drain_state import DrainResult, DrainState
from tandem.worker.epoch import WorkerEpoch
from tandem.worker.fetches import Fetches
from tandem.worker.identity import Identity
from tandem.worker.session import Session
from tandem.worker.split_registry import SplitRegistry
from tandem.worker.waiting import at_most

_log = logging.getLogger(__name__)

_REASON_CHARS_MAX: Final = 512
"""Limit on the characters of the reason why a link has ended, which may come from the other end."""
_IDLE: Final = Load(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0)


class WorkerHost:
    """Serves routers on behalf of one engine. `accept` is for the link server, `listen` for the engine."""

    def __init__(
        self,
        parts: WorkerDeps,
        identity: Identity,
        incarnation: WorkerEpoch,
        fetcher: KvFetcher | None = None,
        health: Health | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.identity = identity
        self.ready = False
        """Whether this worker takes more than canaries."""
        self.incarnation = incarnation
        self.drain_state = DrainState(identity.worker_id, parts.clock)
        self.publisher: Publisher | None = None
        """The publisher that tells an index beyond the links which blocks there are."""
        self._engine = parts.engine
        self._clock = parts.clock
        self._deadlines = parts.deadlines
        self._settings = parts.settings
        self._health = health or Health(EventLines())
        self._canary: Callable[[RouterMessage], None] | None = None
        self._tiers = tiers
        self._desk = AttemptManager(parts, identity, self._say, self._attempt_ended, tiers)
        self._fetches = Fetches(parts, self._desk, fetcher)
        self._lower = None if tiers is None else tiers.snapshot
        self._events = BlockEvents(incarnation.epoch, parts.engine.snapshot, self._lower)
        if tiers is not None:
            tiers.watch(lambda tier, stored, removed: self._tell_names(KvChange(stored, removed), tier))
        self._sessions: dict[int, Session] = {}
        self._split = SplitRegistry()
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

    def leases_wanted(self) -> tuple[str, ...]:
        """Export leases of other workers under which blocks are or will be fetched here."""
        return self._desk.leases_wanted()

    def overdue_s(self, now: float) -> float:
        """Seconds for which anything has been held beyond its lease."""
        return self._desk.overdue_s(now)

    def check(self) -> None:
        """Raise `AssertionError` when something is held without an owner; cheap enough for every step of a
        simulation."""
        self._desk.check(self._sessions)

    # -- links --

    async def accept(self, link: WorkerLink) -> None:
        """Serve one router until its link is lost; then nothing of its work is left here but what is resumable."""
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
        session.tell(self.hello())
        self._split.tell((session,), self._clock.now())
        self._send_snapshot(session)
        self._send_load(session)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve_commands(session))
                group.create_task(self._serve_requests(session))
        finally:
            self._forget(session, "the worker ended the link")

    def _publish_anew(self) -> None:
        if self.publisher is not None:
            self.publisher.become(self.hello())

    def hello(self) -> Hello:
        """The `Hello` with which this worker introduces itself now."""
        shapes = self._tiers.shapes if self._tiers is not None else ()
        return self.identity.hello(
            self.incarnation.epoch, self.drain_state.left_s is not None, not self.ready, shapes
        )

    async def _serve_commands(self, session: Session) -> None:
        with self._linked(session):
            while True:
                commands = await session.link.tokens.receive()
                self._fence()
                session.heard = self._clock.now()
                if session.open:
                    self._health.admitted()
                for command in commands:
                    if session.open:
                        self._command(session, command)

    async def _serve_requests(self, session: Session) -> None:
        with self._linked(session):
            while True:
                await session.link.state.receive()
                session.heard = self._clock.now()
                self._send_snapshot(session)

    @contextmanager
    def _linked(self, session: Session) -> Iterator[None]:
        """Context that ends a session when its link is lost or brings a message without meaning; neither is a failure
        of this worker."""
        try:
            yield
        except TandemError as error:
            if error.code not in ("link_lost", "invalid_request"):
                raise
            self._forget(session, _why_over(error))

    def _forget(self, session: Session, reason: str) -> None:
        """Free everything held for a router, at once, but for what another one may claim for a while."""
        if self._sessions.pop(session.session_id, None) is not None:
            event(_log, "link_closed", worker=self.identity.worker_id, router=session.link.peer, reason=reason)
            session.close(reason)
            self._desk.forget_session(session.session_id)

    def _say(self, session_id: int, message: RouterMessage) -> None:
        if session_id == SELF and self._canary is not None:
            self._canary(message)
            return
        session = self._sessions.get(session_id)
        if session is not None:
            session.tell(message)

    def _command(self, session: Session, command: WorkerCommand) -> None:
        """Follow a command. Raises `invalid_request` for a command that means nothing: its sender loses the link."""
        match command:
            case Submit() | ResumeAttempt() if not session.opens(command.handle):
                event(_log, "command_repeated", router=session.link.peer, handle=command.handle)
            case Submit():
                self._desk.submit(session.session_id, command, self._refusal(command))
            case Cancel():
                self._desk.cancel(session.session_id, command.handle, command.sequence)
            case ProvideFirst():
                self._desk.provide_first(session.session_id, command)
            case SampleFirst():
                self._desk.sample_first(session.session_id, command.handle)
            case Unpin():
                self._desk.keeper.unpin(command)
            case RetainOutputs():
                self._desk.attempt_resume.keep(session.session_id, command)
            case ResumeAttempt():
                self._desk.attempt_resume.claim(session.session_id, command)
            case Drain():
                check_drain(command)
                self.start_drain(command.within_s)
            case Tune():
                self._engine.set_itl_target(step_target_s(command))
            case PublishSplit():
                check_split(command)
                self._split.publish(command, session, self._sessions.values(), self._clock.now())
            case Ping():
                pass

    def _refusal(self, submit: Submit) -> TandemError | None:
        if not self.ready and not submit.canary:
            return TandemError("no_workers", f"worker {self.identity.worker_id} has not proved its KV path yet")
        return self.drain_state.refusal(hands_over=self._hands_over(submit))

    def _hands_over(self, submit: Submit) -> bool:
        """Whether this is no new work, but the blocks of an old one on their way to another worker."""
        return submit.mode == "prefill" and self.identity.role != "prefill"

    # -- canary --

    def hear_canary(self, hear: Callable[[RouterMessage], None] | None) -> None:
        """Set the receiver of messages to this worker's own canary; None when the canary is over."""
        self._canary = hear

    def send_canary(self, command: Submit | Cancel) -> None:
        """A command of this worker's own canary."""
        if isinstance(command, Submit):
            self._desk.submit(SELF, command, None)
        else:
            self._desk.cancel(SELF, command.handle, command.sequence)

    def become_ready(self, identity: Identity) -> None:
        """Take work from now on, as `identity`, and notify the routers that connected before."""
        self.identity, self.ready = identity, True
        self._publish_anew()
        for session in self._sessions.values():
            session.tell(Ready(identity.addresses, identity.canary, identity.problems))

    # -- engine --

    def listen(self, report: StepReport) -> None:
        """The engine's listener: report to every router what a step brought about for it."""
        self._fence()
        self._desk.report(report)
        for work_id in report.withdrawn:
            self._fetches.stop(work_id)
        for job in report.fetches:
            self._fetches.start(job)
        self._tell_names(report.kv)
        if report.load is not None:
            self._load, self._load_stale = report.load, False
        now = self._clock.now()
        for session in self._sessions.values():
            if now - session.load_sent >= self._settings.load_every_s:
                self._send_load(session, fit=False)
        self._changed.set()

    def _attempt_ended(self, attempt: Attempt) -> None:
        if not attempt.submit.canary and not self._hands_over(attempt.submit):
            self.drain_state.attempt_ended(taken=attempt.failed)
        self._fetches.stop(attempt.work_id)
        self._load_stale = True

    # -- state, heartbeats, incarnation --

    def _tell_names(self, change: KvChange, tier: str = POOL) -> None:
        if not self.identity.kv_events:
            return
        if self.publisher is not None:
            self.publisher.change(tier, change.stored, change.removed)
        for delta in self._events.change(change, tier):
            for session in self._sessions.values():
                session.update(delta)

    def _send_snapshot(self, session: Session) -> None:
        for piece in self._events.snapshot() if self.identity.kv_events else ():
            session.update(piece)

    def _send_load(self, session: Session, *, fit: bool = True) -> None:
        """Send the load to a router. The fit of step times changes slowly, so it is sent with heartbeats and at
        first."""
        session.load_sent = self._clock.now()
        session.update(self._load if fit or self._load.fit is None else msgspec.structs.replace(self._load, fit=None))

    def _heartbeat(self) -> None:
        self._fence()
        now = self._clock.now()
        self.incarnation.beat(now)
        self._desk.end_leases()
        self._desk.tell_progress()
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
        self._desk.forget_session(SELF)
        self._desk.abandon_held()
        self._health.fenced()
        self._events = BlockEvents(self.incarnation.renew(), self._engine.snapshot, self._lower)
        self._publish_anew()

    # -- leaving --

    def start_drain(self, within_s: float) -> None:
        """Take no new work from now on. The process shell does the leaving."""
        if self.drain_state.begin(within_s):
            for session in self._sessions.values():
                session.tell(Draining(within_s))
            self._changed.set()

    def held(self) -> dict[str, int]:
        """Counts by kind of what keeps this worker from leaving."""
        exported = 0 if self._load_stale else self._load.blocks_exported
        held = {"attempts": self.attempts, "exported_blocks": exported}
        return {kind: count for kind, count in held.items() if count}

    async def drained(self) -> DrainResult:
        """Wait until every attempt has ended and exported blocks were fetched, at most for the departure's bound.

        Attempts that are left then are ended with `draining`.
        """
        while self._busy() and (left_s := self.drain_state.left_s):
            self._changed.clear()
            await at_most(self._changed.wait(), left_s)
        reason = f"worker {self.identity.worker_id} left before the request ended"
        self.drain_state.cut_off(self.attempts)
        self._desk.cancel_all("draining", reason)
        return self.drain_state.farewell

    def _busy(self) -> bool:
        return self.attempts > 0 or self._load_stale or self._load.blocks_exported > 0


def _why_over(error: TandemError) -> str:
    """Why a router has no link any more."""
    if error.code == "link_lost":
        return error.message[:_REASON_CHARS_MAX]
    return f"it sent a command that means nothing: {error.message}"[:_REASON_CHARS_MAX]
