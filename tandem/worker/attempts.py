"""The attempts a worker is running, found by the engine's work id or by a link's handle. No I/O, no clock."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from kv_transfer.fetch import KvLoadSpec
from kv_transfer.fetch_progress import FetchReport, PrefillStatus
from tandem.core.kv import unpack_tokens
from tandem.core.messages import Submit
from tandem.worker.detokenizer import PROMPT_TAIL, Decoder
from tandem.worker.output_log import OutputLog
from tandem.worker.text import TextStream

_TOMBSTONES_MAX = 1024
_LEASES_MAX = 1024
_TENANTS_MAX = 8192


class Output:
    """The output of one branch as it is reported to the router. `position` is the next position, counted from 1."""

    __slots__ = ("finished", "first_position", "position", "text", "untold", "untold_text")

    def __init__(self, text: TextStream, first_position: int) -> None:
        self.text = text
        self.first_position = first_position
        self.position = first_position
        self.finished = False
        self.untold: list[int] = []
        """The latest tokens, which have not been sent to the router; `untold_text` is their text."""
        self.untold_text = ""


@dataclass(slots=True)
class Attempt:
    """One attempt between its submit and its report. `failed` is set once a failure has been reported to the
    router."""

    session_id: int
    work_id: int
    submit: Submit
    submitted: float
    """Clock seconds."""
    outputs: dict[int, Output] = field(default_factory=dict)
    bringing: KvLoadSpec = field(default_factory=KvLoadSpec)
    """Where leading blocks of the attempt's prompt may come from besides a hand-off."""
    prefilled: PrefillStatus = field(default_factory=PrefillStatus)
    """Whether the prompt of a hand-off has been computed."""
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the router has confirmed that this worker is to compute what the attempt's hand-off has not
    brought."""
    reuse: str = ""
    """The decision about bringing leading blocks of its prompt, and the reason."""
    pinned: int = 0
    """Number of leading blocks of the attempt's prompt that are kept as it asked."""
    fetch: FetchReport | None = None
    """The report of how the attempt's fetch has ended."""
    whole: FetchReport | None = None
    """The report of what its hand-off had brought when the last block was there, which is before its fetch ends."""
    failed: bool = False
    log: OutputLog | None = None
    """The outputs that were sent for the attempt, when it is resumable."""

    def landed(self, whole: FetchReport) -> None:
        """Note that the attempt's hand-off has brought its last block."""
        self.whole = whole

    @property
    def brought(self) -> FetchReport | None:
        """The report of what its fetch has brought; None before the fetch has ended or the whole hand-off is
        there."""
        return self.fetch or self.whole

    @property
    def transferred(self) -> bool:
        """Whether its hand-off has ended."""
        return self.fetch is not None and self.fetch.handed_over

    @property
    def asks(self) -> bool:
        """Whether its hand-off has failed, and its router is to say what becomes of its prompt."""
        failed = self.fetch is not None and self.fetch.handed_over and self.fetch.code != ""
        return failed and self.submit.confirm_recompute and not self.confirmed.is_set()


def new_outputs(submit: Submit, decoder: Decoder) -> dict[int, Output]:
    """The text state of every branch, with forced tokens replayed."""
    tail = unpack_tokens(submit.prompt[-4 * PROMPT_TAIL :])
    if submit.special_text:
        decoder = decoder.with_special()
    return {
        branch.sequence: _output(submit, branch.forced, branch.sent_chars, tail, decoder)
        for branch in submit.branches
    }


def _output(submit: Submit, forced: Sequence[int], sent: int, tail: Sequence[int], decoder: Decoder) -> Output:
    return Output(TextStream(decoder, tail, submit.stopping, forced, sent), len(forced) + 1)


class AttemptTable:
    """All running attempts, and the leases that ended ones have left behind.

    A cancel that finds no submit is remembered, so that the late submit finds it.
    """

    def __init__(self) -> None:
        self._by_work: dict[int, Attempt] = {}
        self.by_work: Callable[[int], Attempt | None] = self._by_work.get
        """Finds a running attempt; asked for every token."""
        self._by_handle: dict[tuple[int, int], Attempt] = {}
        self._tombstones: dict[tuple[int, int], None] = {}
        self._leases: dict[tuple[int, int], str] = {}
        self._tenants: dict[int, str] = {}
        """Tenant salts of the requests that ended last, by work id."""

    def __len__(self) -> int:
        return len(self._by_work)

    def add(self, attempt: Attempt) -> None:
        key = (attempt.session_id, attempt.submit.handle)
        self._by_work[attempt.work_id] = attempt
        self._by_handle[key] = attempt

    def remove(self, work_id: int) -> Attempt | None:
        attempt = self._by_work.pop(work_id, None)
        if attempt is not None:
            del self._by_handle[attempt.session_id, attempt.submit.handle]
            self._tenants[work_id] = attempt.submit.tenant_salt
            if len(self._tenants) > _TENANTS_MAX:
                del self._tenants[next(iter(self._tenants))]
        return attempt

    def tenant_of(self, work_id: int) -> str | None:
        """The tenant salt of a request that is running or ended recently, since the last blocks of an answer are
        named some moments after its end. None when it is not known."""
        attempt = self._by_work.get(work_id)
        return self._tenants.get(work_id) if attempt is None else attempt.submit.tenant_salt

    def by_handle(self, session_id: int, handle: int) -> Attempt | None:
        return self._by_handle.get((session_id, handle))

    def of_session(self, session_id: int) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self._by_work.values() if attempt.session_id == session_id)

    def all(self) -> tuple[Attempt, ...]:
        return tuple(self._by_work.values())

    def move(self, attempt: Attempt, session_id: int, handle: int) -> None:
        """The attempt, running or ended, belongs to another router from now on, which knows it by this handle."""
        old, new = (attempt.session_id, attempt.submit.handle), (session_id, handle)
        if self._by_handle.pop(old, None) is not None:
            self._by_handle[new] = attempt
        if (lease_id := self._leases.pop(old, None)) is not None:
            self._leases[new] = lease_id
        attempt.session_id = session_id
        attempt.submit = msgspec.structs.replace(attempt.submit, handle=handle)

    def add_tombstone(self, session_id: int, handle: int) -> None:
        """Remember a cancel without a submit. Only the latest are kept: handles are never reused."""
        self._tombstones[session_id, handle] = None
        if len(self._tombstones) > _TOMBSTONES_MAX:
            del self._tombstones[next(iter(self._tombstones))]

    def take_tombstone(self, session_id: int, handle: int) -> bool:
        """Whether this submit was cancelled before it came; the tombstone is used up."""
        key = (session_id, handle)
        found = key in self._tombstones
        self._tombstones.pop(key, None)
        return found

    def check(self) -> None:
        """Raise `AssertionError` when a bound was passed."""
        assert len(self._tombstones) <= _TOMBSTONES_MAX, f"{len(self._tombstones)} tombstones"
        assert len(self._leases) <= _LEASES_MAX, f"{len(self._leases)} leases of ended attempts"
        assert len(self._tenants) <= _TENANTS_MAX, f"{len(self._tenants)} tenants of ended attempts"

    def keep_lease(self, attempt: Attempt) -> None:
        """The attempt has ended, and what it computed is exported. Only the latest are kept: leases end anyway."""
        export = attempt.submit.export
        if export is not None:
            self._leases[attempt.session_id, attempt.submit.handle] = export.lease_id
            if len(self._leases) > _LEASES_MAX:
                del self._leases[next(iter(self._leases))]

    def take_lease(self, session_id: int, handle: int) -> str | None:
        """The lease an ended attempt has left behind, forgotten here from now on."""
        return self._leases.pop((session_id, handle), None)

    def leases_of(self, session_id: int) -> tuple[int, ...]:
        """Handles of a session's ended attempts that have left a lease behind."""
        return tuple(handle for session, handle in self._leases if session == session_id)
