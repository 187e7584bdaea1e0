"""Asks every worker for a resumable request and combines what the workers hand over, within a bound."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from kv_transfer.tickets import Keyring
from router.dispatch.failover import Failover, RecoveredAttempt
from router.dispatch.resume_token import ResumeToken, decode_resume_token, images_digest
from router.fleet.peer import Peer
from tandem.core.clock import Clock
from tandem.core.messages import AttemptFailed, AttemptReport, AttemptResumed, Cancel, ResumeAttempt, SequenceOutput


class RecoveryStream:
    """`router.fleet.peer.Target` of one claim: keeps what arrives until another target takes over the handle."""

    def __init__(self, peer: Peer, answered: Callable[[], None]) -> None:
        self.peer = peer
        self.handle = peer.open(self)
        self.over = False
        """The worker has answered, or is gone."""
        self.claimed: AttemptResumed | None = None
        self._answered = answered
        self._outputs: list[SequenceOutput] = []
        self._failure: AttemptFailed | None = None
        self._report: AttemptReport | None = None
        self._transferred: str | None = None

    def on_output(self, output: SequenceOutput, now: float) -> None:
        self._outputs.append(output)

    def on_failed(self, failure: AttemptFailed) -> None:
        self._failure = failure

    def on_report(self, report: AttemptReport) -> None:
        self._report = report

    def on_progress(self, now: float, tokens: int) -> None:
        """Ignore progress: the claim has time bounds of its own."""

    def on_transferred(self, code: str) -> None:
        self._transferred = code

    def on_claimed(self, claimed: AttemptResumed | None) -> None:
        self.claimed = claimed
        self._settle()

    def on_lost(self, reason: str) -> None:
        self.claimed = None
        self._settle()

    def share(self, claimed: AttemptResumed) -> RecoveredAttempt:
        """The attempt that the worker has handed over."""
        transferred = "" if self._transferred is None and claimed.transferred else self._transferred
        said = tuple(self._outputs)
        return RecoveredAttempt(self.peer, self.handle, claimed, said, transferred, self._failure, self._report)

    def _settle(self) -> None:
        self.over = True
        self._answered()


class Recovery:
    """The claims of one request on all workers, those that connect meanwhile included."""

    def __init__(self, request_id: str, tenant: str, keys: tuple[bytes, ...], keyring: Keyring) -> None:
        self._request_id = request_id
        self._tenant = tenant
        self._keys = keys
        self._keyring = keyring
        self._claimants: list[RecoveryStream] = []
        self._news = asyncio.Event()

    def ask(self, peer: Peer) -> None:
        """One more worker."""
        recovery_stream = RecoveryStream(peer, self._news.set)
        self._claimants.append(recovery_stream)
        peer.send(ResumeAttempt(recovery_stream.handle, self._keys))

    async def settled(self, more_may_come: Callable[[], bool], within_s: float) -> None:
        """Wait until every worker has answered, and, if what came is not all it takes, for workers to connect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._settled(more_may_come):
                    self._news.clear()
                    await self._news.wait()

    def take(self, clock: Clock, total_s: float) -> Failover | None:
        """The attempt that is to go on, with everything else that was handed over released. None when there is
        nothing to go on with."""
        genuine = [
            pair for recovery_stream in self._claimants if (pair := self._genuine(recovery_stream)) is not None
        ]
        decode = max((pair for pair in genuine if pair[1].decodes), key=_latest, default=None)
        prefill = max((pair for pair in genuine if not pair[1].decodes), key=_latest, default=None)
        if decode is not None and prefill is not None and decode[1].claimed.attempt != prefill[1].claimed.attempt:
            prefill = None
        chosen = decode or prefill
        wanted = [(pair[1].peer.worker_id, pair[1].handle) for pair in (decode, prefill) if pair is not None]
        for recovery_stream in self._claimants:
            if (recovery_stream.peer.worker_id, recovery_stream.handle) not in wanted:
                self._release(recovery_stream)
        if chosen is None:
            return None
        sealed, share = chosen
        received = clock.now() - (min(sealed.timeout_s, total_s) - share.claimed.left_s)
        shares = (decode[1] if decode is not None else None, prefill[1] if prefill is not None else None)
        generation = sealed.generation(received, share.claimed.images)
        return Failover(generation, sealed.cached_tokens, *shares)

    def release(self) -> None:
        """Let go of everything."""
        for recovery_stream in self._claimants:
            self._release(recovery_stream)

    def _settled(self, more_may_come: Callable[[], bool]) -> bool:
        if not all(recovery_stream.over for recovery_stream in self._claimants):
            return False
        return not more_may_come() or self._enough()

    def _enough(self) -> bool:
        """Whether the request can go on with the workers that have answered."""
        genuine = [
            pair[1] for recovery_stream in self._claimants if (pair := self._genuine(recovery_stream)) is not None
        ]
        attempts = [share.claimed.attempt for share in genuine if not share.decodes]
        return any(share.decodes and (share.moved or share.claimed.attempt in attempts) for share in genuine)

    def _genuine(self, recovery_stream: RecoveryStream) -> tuple[ResumeToken, RecoveredAttempt] | None:
        """The token and attempt that a worker handed over; None unless they belong to the request that was
        claimed."""
        if recovery_stream.claimed is None:
            return None
        sealed = decode_resume_token(self._keyring, recovery_stream.claimed.resume)
        if sealed is None or (sealed.request_id, sealed.tenant) != (self._request_id, self._tenant):
            return None
        if sealed.images != images_digest(recovery_stream.claimed.images):
            return None
        return sealed, recovery_stream.share(recovery_stream.claimed)

    def _release(self, recovery_stream: RecoveryStream) -> None:
        """Cancel a claim that has been answered, and close its handle. A claim without an answer is released by
        `Peer` once the answer arrives."""
        if recovery_stream.claimed is not None:
            recovery_stream.peer.send(Cancel(recovery_stream.handle))
        recovery_stream.peer.close(recovery_stream.handle)


def _latest(pair: tuple[ResumeToken, RecoveredAttempt]) -> tuple[float, int]:
    sealed, share = pair
    return sealed.received_wall, share.claimed.attempt
