"""Manage attempts on their way through the engine: submits in, outputs and reports out, each exactly once.

Synchronous. Sessions are identified by number; messages to a session go through `say`, which ignores sessions that
are gone.
"""

from collections.abc import Callable, Container
from typing import Final

from kv_transfer.fetch_progress import FetchReport
from kv_transfer.tiers.protocol import Tiers
from tandem.core.errors import TandemError
from tandem.core.kv import adapter_root, tenant_root
from tandem.core.messages import (
    AttemptFailed,
    Progressed,
    ProvideFirst,
    RouterMessage,
    StepOutputs,
    Submit,
)
from tandem.core.request import spec_fields
from tandem.engine.protocol import EngineRequest, FirstTokens, RequestStats, StepReport
from tandem.worker.attempt_resume import AttemptResume, transferred
from tandem.worker.attempt_spans import SpanMaker, Stamp
from tandem.worker.attempts import Attempt, AttemptTable, new_outputs
from tandem.worker.bounds import check_first, check_submit
from tandem.worker.deps import WorkerDeps
from tandem.worker.identity import MODES, Identity, root_name
from tandem.worker.metrics import WorkerMetrics
from tandem.worker.outputs import StreamInterval, process_outputs
from tandem.worker.resumable_attempts import ResumableAttempts
from tandem.worker.reuse import Reuse
from tandem.worker.tier_pins import TierPins

Say = Callable[[int, RouterMessage], None]

SELF: Final = 0
"""The session of the worker's own canary, which asks one worker for both sides of a hand-off."""


class AttemptManager:
    """Owns every attempt of a worker. `on_end` is called at an attempt's end, before its report is written."""

    def __init__(
        self,
        parts: WorkerDeps,
        identity: Identity,
        say: Say,
        on_end: Callable[[Attempt], None],
        tiers: Tiers | None = None,
    ) -> None:
        self._engine = parts.engine
        self._decoder = parts.decoder
        self._clock = parts.clock
        self._recorder = parts.recorder
        self._total_s = parts.deadlines.total_s
        self._identity = identity
        self._root = root_name(identity.info)
        self._spans = SpanMaker(identity.role, identity.worker_id, parts.entropy)
        self._figures = WorkerMetrics(parts.meter, identity.role, identity.info.blocks)
        self._table = AttemptTable()
        self._pace = StreamInterval(parts.settings.stream_interval)
        self._resumable_attempts = ResumableAttempts(
            parts.deadlines.resumable_lease_s, parts.deadlines.orphan_lease_s, parts.settings.resumable_bytes_max
        )
        self._reuse = Reuse(parts.engine.kv, tiers, parts.clock, parts.settings.reuse)
        self.keeper = TierPins(parts.engine.kv, tiers, self._table.tenant_of)
        """Tells the worker's own tiers what to keep."""
        self.attempt_resume = AttemptResume(self._table, self._resumable_attempts, parts.clock, say)
        """Gives resumable attempts to other routers."""
        self._say = say
        self._on_end = on_end
        self._works = 0
        self._progressed: dict[int, dict[int, int]] = {}
        """By session, the attempts that make progress and have produced nothing since: their handles, and how many of
        their prompt tokens have been computed."""

    def __len__(self) -> int:
        return len(self._table)

    def running(self, work_id: int) -> Attempt | None:
        """The attempt behind a work, or None once it has failed or is no longer wanted."""
        attempt = self._table.by_work(work_id)
        return attempt if attempt is not None and not attempt.failed else None

    # -- from a router --

    def submit(self, session_id: int, submit: Submit, refusal: TandemError | None) -> None:
        """Start an attempt, or fail it with `refusal` or the reason for which the engine does not take it."""
        if self._table.take_tombstone(session_id, submit.handle):
            return
        self._works += 1
        attempt = Attempt(session_id, self._works, submit, self._clock.now())
        try:
            if refusal is not None:
                raise refusal
            self._check(attempt)
            attempt.outputs = new_outputs(submit, self._decoder)
            self._table.add(attempt)
            self._engine.submit(self._work(attempt))
            attempt.bringing, attempt.reuse = self._reuse.begin(attempt.work_id, submit)
            attempt.pinned = self.keeper.begin(attempt.work_id, submit)
            self.attempt_resume.begin(attempt)
        except TandemError as error:
            self._table.remove(attempt.work_id)
            self._fail(attempt, error.code, error.message, error.param)
            self._report(attempt, RequestStats(submitted=attempt.submitted))

    def cancel(self, session_id: int, handle: int, sequence: int | None) -> None:
        """Free an attempt or one of its sequences; an attempt that has not come yet will not be started.

        If a prefill has ended, the blocks that it exports are released.
        """
        attempt = self._table.by_handle(session_id, handle)
        if attempt is None:
            if sequence is None:
                self._resumable_attempts.cancelled(session_id, handle, self._clock.now())
                if not self._release(self._table.take_lease(session_id, handle)):
                    self._table.add_tombstone(session_id, handle)
            return
        if sequence is None:
            self._resumable_attempts.drop(attempt)
            attempt.failed = True
        elif sequence in attempt.outputs:
            attempt.outputs[sequence].finished = True
        self._engine.cancel(attempt.work_id, sequence)

    def provide_first(self, session_id: int, first: ProvideFirst) -> None:
        """Take the position after the forced ones from the router; its text came from another worker."""
        attempt = self._table.by_handle(session_id, first.handle)
        output = attempt.outputs.get(first.sequence) if attempt is not None else None
        if attempt is None or output is None or output.finished:
            return
        try:
            check_first(first, self._identity.info)
        except TandemError as error:
            self._fail(attempt, error.code, error.message, error.param)
            self._engine.cancel(attempt.work_id)
            return
        if output.position == output.first_position:
            output.text.skip(first.token)
            output.position += 1
        attempt.prefilled.known(self._clock.now())
        self._engine.provide_first(attempt.work_id, first.sequence, first.token)

    def sample_first(self, session_id: int, handle: int) -> None:
        """Prefill is lost, or what it has computed cannot be fetched."""
        attempt = self._table.by_handle(session_id, handle)
        if attempt is not None:
            attempt.confirmed.set()
            attempt.prefilled.known(self._clock.now())
            self._engine.sample_first(attempt.work_id)

    def leases_wanted(self) -> tuple[str, ...]:
        """Leases of attempts whose fetch has not ended, and the own ones of attempts that a router may claim."""
        attempts = tuple(attempt for attempt in self._table.all() if attempt.fetch is None and not attempt.failed)
        handed = tuple(each.submit.remote.lease_id for each in attempts if each.submit.remote is not None)
        shared = tuple(source.lease_id for each in attempts for source in each.submit.sources)
        return handed + shared + self._resumable_attempts.exports()

    def overdue_s(self, now: float) -> float:
        """Seconds for which a resumable attempt has been held beyond its lease."""
        return self._resumable_attempts.overdue_s(now)

    def check(self, sessions: Container[int]) -> None:
        """Raise `AssertionError` when something is held without an owner, or more is remembered than is allowed."""
        for attempt in self._table.all():
            owned = attempt.failed or attempt.session_id == SELF or attempt.session_id in sessions
            place = attempt.session_id, attempt.submit.handle
            assert owned or place in self._resumable_attempts, (
                f"{attempt.submit.request_id} is here and belongs to nobody"
            )
        self._table.check()

    def forget_session(self, session_id: int) -> None:
        """A router is gone: free everything held for it, but for what another router may still claim."""
        self._resumable_attempts.lost(session_id, self._clock.now())
        for attempt in self._table.of_session(session_id):
            if (session_id, attempt.submit.handle) not in self._resumable_attempts:
                attempt.failed = True
                self._engine.cancel(attempt.work_id)
        for handle in self._table.leases_of(session_id):
            if (session_id, handle) not in self._resumable_attempts:
                self._release(self._table.take_lease(session_id, handle))

    def end_leases(self) -> None:
        """Free what no router has claimed in time."""
        for held in self._resumable_attempts.expired(self._clock.now()):
            self._abandon(held.attempt)

    def abandon_held(self) -> None:
        """Free whatever waits for another router, now."""
        for held in self._resumable_attempts.all_leased():
            self._abandon(held.attempt)

    def cancel_all(self, code: str, message: str) -> int:
        """End every attempt with a typed failure; gives how many there were."""
        attempts = self._table.all()
        for attempt in attempts:
            self._fail(attempt, code, message)
            self._engine.cancel(attempt.work_id)
        return len(attempts)

    # -- from the engine --

    def report(self, report: StepReport) -> None:
        """Report to the routers the results of a step: outputs first, then failures, then reports."""
        self.keeper.stored(report.kv if report.space is None else report.space)
        if report.load is not None:
            self._reuse.heard(report.load)
        told = process_outputs(self._table, report.emitted, self._pace)
        for session_id, outputs in told.outputs.items():
            self._say(session_id, StepOutputs(tuple(outputs)))
        for failed in report.failed:
            if (attempt := self._table.by_work(failed.work_id)) is not None:
                self._fail(attempt, failed.code, failed.message, failed.param)
        for ended in report.ended:
            if (found := self._table.remove(ended.work_id)) is not None:
                self._table.keep_lease(found)
                self._reuse.ended(found.fetch, ended.stats)
                self._on_end(found)
                self._report(found, ended.stats)
        for work_id, tokens in report.progressed:
            if (attempt := self.running(work_id)) is not None:
                self._progressed.setdefault(attempt.session_id, {})[attempt.submit.handle] = tokens
        self._figures.step(report)
        for work_id, sequence in told.stopped:
            self._engine.cancel(work_id, sequence)

    def tell_progress(self) -> None:
        """Tell routers which attempts have got on without anything to show for it, since this was called last."""
        progressed, self._progressed = self._progressed, {}
        for session_id, told in progressed.items():
            self._say(session_id, Progressed(tuple(told), tuple(told.values())))

    def fetched(self, attempt: Attempt, fetched: FetchReport) -> None:
        """Note that the fetch of an attempt has ended. The end of a hand-off is reported to its router at once."""
        self._reuse.learn(fetched)
        if fetched.handed_over:
            self._transferred(attempt, fetched)

    def _transferred(self, attempt: Attempt, fetched: FetchReport) -> None:
        """Report to the router that a hand-off has ended. A canary whose hand-off failed ends too."""
        submit = attempt.submit
        self._say(attempt.session_id, transferred(submit, fetched))
        if fetched.first is not None:
            self._relay_first(attempt, fetched.first)
        if submit.canary and fetched.code:
            self._fail(attempt, fetched.code, fetched.message)
            self._engine.cancel(attempt.work_id)

    def _relay_first(self, attempt: Attempt, first: FirstTokens) -> None:
        """Have the engine emit those first tokens from the pull that the router has not provided yet.

        The pull does not bring their log-probabilities. Where these are wanted, only the router can provide a first
        token, or have it drawn here.
        """
        if attempt.submit.sampling.logprobs is not None:
            return
        for sequence, token, _finish in first.tokens:
            self._engine.provide_first(attempt.work_id, sequence, token, relay=True)

    def _abandon(self, attempt: Attempt) -> None:
        attempt.failed = True
        self._engine.cancel(attempt.work_id)
        self._release(self._table.take_lease(attempt.session_id, attempt.submit.handle))

    def _release(self, lease_id: str | None) -> bool:
        """End an export lease that an ended attempt has left behind; False when there is none to end."""
        if lease_id is None:
            return False
        space = self._engine.kv
        if space is not None and space.lease_exists(lease_id):
            space.release(lease_id)
        return True

    def _check(self, attempt: Attempt) -> None:
        """Raise `invalid_request` for a submit this worker cannot take."""
        submit, role = attempt.submit, self._identity.role
        if submit.mode not in MODES[role] and attempt.session_id != SELF:
            raise _invalid("mode", f"a {role} worker does not take mode {submit.mode!r}")
        if submit.mode == "prefill" and submit.export is None:
            raise _invalid("export", "mode prefill needs an export lease")
        if submit.mode == "decode" and submit.remote is None:
            raise _invalid("remote", "mode decode needs to know where the blocks are")
        check_submit(submit, self._identity.info)
        if submit.grammar is not None and "grammar" not in self._identity.info.features:
            raise _invalid("grammar", "the engine of this worker cannot bind its output to a grammar")
        if submit.images and ("images" not in self._identity.info.features or submit.mode != "local"):
            raise _invalid("images", "images need mode local and an engine that takes them")
        if submit.sampling.prompt_logprobs is not None:
            self._check_scoring(submit)
        if self._table.by_handle(attempt.session_id, submit.handle) is not None:
            raise _invalid("handle", f"handle {submit.handle} is in use")

    def _check_scoring(self, submit: Submit) -> None:
        """Log-probabilities of a prompt come of computing all of it in one place."""
        if "prompt_logprobs" not in self._identity.info.features:
            raise _invalid("prompt_logprobs", "the engine of this worker gives no log-probabilities of prompts")
        if submit.mode != "local" or submit.sampling.logprobs is None:
            raise _invalid("prompt_logprobs", "log-probabilities of a prompt need mode local and logprobs")

    def _adapter_hash(self, submit: Submit) -> str:
        """The content hash of the LoRA adapter that `submit` names. Raises `invalid_request` for one that is not
        loaded here."""
        if not submit.adapter:
            return ""
        for adapter in self._identity.info.adapters:
            if adapter.name == submit.adapter:
                return adapter.content_hash
        raise _invalid("adapter", f"adapter {submit.adapter!r} is not loaded here")

    def _work(self, attempt: Attempt) -> EngineRequest:
        submit = attempt.submit
        export = submit.export if submit.mode == "prefill" else None
        return EngineRequest(
            **spec_fields(submit),
            work_id=attempt.work_id,
            mode=submit.mode,
            branches=submit.branches,
            root=tenant_root(adapter_root(self._root, self._adapter_hash(submit)), submit.tenant_salt),
            deadline=attempt.submitted + min(submit.deadline_s, self._total_s),
            lease_id=export.lease_id if export is not None else "",
            lease_s=export.lease_s if export is not None else 0.0,
            # A prompt whose tokens are scored is computed whole: nothing cached may take the place of a step. Tokens
            # that stand for images do not say for which: no name that follows from them is right.
            private=submit.canary or submit.sampling.prompt_logprobs is not None or bool(submit.images),
            images=submit.images,
        )

    def _fail(self, attempt: Attempt, code: str, message: str, param: str | None = None) -> None:
        if not attempt.failed:
            attempt.failed = True
            failure = AttemptFailed(attempt.submit.handle, code, message, param or "")
            self.attempt_resume.failed(attempt, failure)
            self._say(attempt.session_id, failure)

    def _report(self, attempt: Attempt, stats: RequestStats) -> None:
        report = self._spans.report(attempt, stats, Stamp(self._clock.now(), self._clock.wall()))
        if report.spans:
            self._recorder.record(attempt.submit.request_id, report.spans)
        self._figures.attempt(report)
        self.attempt_resume.ended(attempt, report)
        self._say(attempt.session_id, report)


def _invalid(param: str, problem: str) -> TandemError:
    return TandemError("invalid_request", problem, param=param)
