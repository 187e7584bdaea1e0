"""Defines one attempt of a request: its legs on workers, each behind a handle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from router.dispatch.missing import MissingBlocks
from router.dispatch.positions import Mismatch, Positions
from router.fleet.peer import Peer
from router.placement import Placement, Work
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    AttemptResumed,
    Cancel,
    SequenceOutput,
    WorkerCommand,
)

Deliver = Callable[[SequenceOutput], None]

_NOBODY: Final[Mapping[int, Positions]] = {}


class WorkerStreamOwner(Protocol):
    """The request that a leg belongs to."""

    def advanced(self, leg: "WorkerStream", output: SequenceOutput) -> None:
        """Note that the output was accepted and delivered. Called while the leg is watched, and for every finish."""
        ...

    def mismatched(self, leg: "WorkerStream", mismatch: Mismatch) -> None: ...

    def stream_failed(self, leg: "WorkerStream", code: str, message: str, param: str = "") -> None:
        """Note that the worker gave up on a live leg, or was lost (`worker_lost`). Unless it is empty, `param` names
        the part of the request that was the cause."""
        ...

    def stream_reported(self, leg: "WorkerStream", report: AttemptReport) -> None: ...

    def stream_closed(self, leg: "WorkerStream") -> None:
        """Note that the worker of a fenced leg is lost, and the leg's report with it."""
        ...

    def transferred(self, leg: "WorkerStream", code: str) -> None:
        """Note that the fetch of a live leg has ended, with whatever it brought; `code` is empty when it brought
        everything."""
        ...


class WorkerStream:
    """One attempt's work on one worker, and the hot path of every token.

    A live leg may deliver positions. A fenced leg delivers nothing more; its handle stays open only for the worker's
    report. `work` is the work expected of this worker. `alone` says, once the first token has arrived, whether no
    other prompt was computed on the worker before or beside this one.
    """

    __slots__ = (
        "_deliver",
        "_first",
        "_positions",
        "_prompts",
        "_work",
        "alone",
        "computed",
        "computes_prompt",
        "given_up",
        "handle",
        "live",
        "open",
        "owner",
        "peer",
        "progressed_s",
        "reported",
        "sent_at",
        "watched",
    )

    def __init__(
        self,
        owner: WorkerStreamOwner,
        peer: Peer,
        positions: Mapping[int, Positions],
        deliver: Deliver,
        work: Work,
        now: float,
        handle: int | None = None,
    ) -> None:
        """`handle` is one that was claimed from another router, and already open."""
        self.owner = owner
        self._positions = positions
        self._first = positions.get(0)
        self._deliver = deliver
        self.peer = peer
        self.live = True
        self.open = True
        self.reported = False
        self.watched = True
        self.sent_at = now
        self.progressed_s = 0.0
        self.computed = 0
        """Prompt tokens that the worker has reported as computed."""
        self.given_up = False
        """Whether decode was instructed to compute the prompt while the prompt tokens computed here are still to be
        counted."""
        self.computes_prompt = work.prompt_tokens > 0
        self.alone = peer.view.queued_prompt_tokens == 0
        self.handle = peer.open(self) if handle is None else peer.pass_on(handle, self)
        self._work: Work | None = work
        peer.view.submitted(now, work)
        self._prompts = peer.view.prompts

    def on_output(self, output: SequenceOutput, now: float) -> None:
        positions = self._positions.get(output.sequence) if output.sequence else self._first
        if positions is None:
            return
        new = positions.accept(output)
        if new is not output:
            if new is None:
                return
            if isinstance(new, Mismatch):
                self.owner.mismatched(self, new)
                return
        positions.moved_s = now
        self._deliver(new)
        if (self.watched or new.finish is not None) and self.live:
            self._prompt_done()
            self.owner.advanced(self, new)

    def on_failed(self, failure: AttemptFailed) -> None:
        if self.live:
            self.owner.stream_failed(self, failure.code, failure.message, failure.param)

    def on_report(self, report: AttemptReport) -> None:
        if not self.reported:
            self.reported, self.computed = True, report.tokens_computed
            self.owner.stream_reported(self, report)

    def on_progress(self, now: float, tokens: int) -> None:
        """Note that the worker makes progress: the leg is not stalled, however long it takes. The worker has computed
        `tokens` of the prompt, as far as it reports."""
        self.progressed_s, self.computed = now, max(self.computed, tokens)

    def on_transferred(self, code: str) -> None:
        if self.live:
            self.owner.transferred(self, code)

    def on_claimed(self, claimed: AttemptResumed | None) -> None:
        """Ignored: a leg has been claimed before it becomes a leg."""

    def on_lost(self, reason: str) -> None:
        self.open = False
        if self.live:
            self.owner.stream_failed(self, "worker_lost", reason)
        else:
            self.owner.stream_closed(self)

    def send(self, command: WorkerCommand) -> None:
        self.peer.send(command)

    def fence(self, *, cancel: bool) -> None:
        """Ignore everything that this leg brings from now on. With `cancel`, the worker is also asked to free it."""
        if cancel and self.open:
            self.peer.send(Cancel(self.handle))
        self.live = False
        self._positions, self._first = _NOBODY, None
        self.release()
        if self.reported:
            self.close()

    def release(self) -> None:
        """Remove the leg's work from the view of the worker, which no longer does it."""
        if self._work is not None:
            self.peer.view.released(self._work)
            self._work = None

    def _prompt_done(self) -> None:
        """The prompt has been computed, wherever its tokens came from."""
        if self._work is not None and self._work.prompt_tokens:
            self._work = self.peer.view.computed(self._work)
            self.alone = self.alone and self.peer.view.prompts == self._prompts

    def close(self) -> None:
        """Give up the handle."""
        if self.open:
            self.open = False
            self.peer.close(self.handle)

    @property
    def prompt_tokens_left(self) -> int:
        """Prompt tokens still to be computed on this leg's worker, as far as is known: at least one until the first
        token arrives, none after that or once the leg is fenced."""
        tokens = self._work.prompt_tokens if self._work is not None else 0
        return max(1, tokens - self.computed) if tokens else 0

    @property
    def sequences_held(self) -> int:
        """Sequences that this leg contributes to the worker's sequences in flight."""
        return self._work.sequences if self._work is not None else 0


@dataclass
class Attempt:
    """A try at finishing a request. `first` is the position every unfinished sequence stood at when it began.

    `patient_since` is when waiting for the first tokens began: the start, or the loss of prefill.
    """

    number: int
    placement: Placement
    decode: WorkerStream
    prefill: WorkerStream | None
    first: dict[int, int]
    accepted_before: int
    span_id: str
    started: float
    patient_since: float
    calls_off: WorkerStream | None = None
    """The prefill that was given up and is being cancelled: what it has begun is not computed elsewhere before it
    has ended there, or `calls_off_until`."""
    calls_off_until: float = 0.0
    moves_prompt: bool = False
    """Once that has ended, the whole attempt goes elsewhere: nothing had been computed."""
    transferred: bool = False
    """Whether decode's fetch has ended, so that prefill's blocks are no longer needed."""
    missing: MissingBlocks | None = None
    """The blocks that decode's fetch has not brought. Decode waits for permission to compute them."""
    notes: list[str] = field(default_factory=list)

    @property
    def progressed_s(self) -> float:
        """When a worker of the attempt last reported progress."""
        return max(leg.progressed_s for leg in self.worker_streams())

    def worker_streams(self) -> tuple[WorkerStream, ...]:
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)
