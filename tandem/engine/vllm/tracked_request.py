"""A work while vLLM has it: which positions its branches have come to, and its figures. No vLLM, no I/O."""

from tandem.core.request import ChildRequest
from tandem.engine.protocol import EngineRequest, RequestStats
from tandem.engine.scheduler.request_deadlines import Wait
from tandem.engine.scheduler.stop_check import StopCheck
from tandem.engine.vllm.requests import draws_again, request_id

_REASONS_MAX = 16


class TrackedChild:
    """One branch. `position` is the last output position that is known here, `drawn` counts vLLM's tokens."""

    __slots__ = ("base", "done", "drawn", "forced", "index", "position", "request_id", "sent")

    def __init__(self, work: EngineRequest, branch: ChildRequest) -> None:
        self.index = branch.sequence
        self.request_id = request_id(work.work_id, branch.sequence)
        self.forced = len(branch.forced)
        self.base = 0 if draws_again(work) else self.forced
        self.position = self.forced
        self.drawn = 0
        self.sent: float | None = None
        """When the branch's request was given to vLLM."""
        self.done = False


class TrackedRequest:
    """One work."""

    def __init__(self, work: EngineRequest, now: float, eos_token_ids: tuple[int, ...]) -> None:
        self.work = work
        self.work_id = work.work_id
        self.stop_check = StopCheck(work.stopping, eos_token_ids)
        self.branches = {branch.sequence: TrackedChild(work, branch) for branch in work.branches}
        self.root = next(iter(self.branches.values()))
        """The branch whose request computes the prompt."""
        self.live = len(self.branches)
        self.first: list[tuple[int, int, str | None]] = []
        """The tokens that prefill drew: (sequence, token, finish)."""
        self.queued = now
        self.wait = Wait.PLACE
        self.waits_since = now
        self.admitted: float | None = None
        """When vLLM first gave the work its blocks."""
        self.prefilled: float | None = None
        self.first_token: float | None = None
        self.brought = now
        """When a position of the work was last given out."""
        self.tokens_computed = self.tokens_reused = self.tokens_loaded = 0
        self.chunks = self.preemptions = 0
        self._kv_waits: list[tuple[float, float]] = []
        """The times at which the work began to wait for its KV and ceased to."""
        self._kv_from = 0.0
        self._loads = False
        """Some of its blocks were awaited from the stage."""
        self._reasons: dict[str, None] = {}
        self.waits_for_prefill = work.mode == "decode"
        """Whether another worker computes the request's prompt and is not known to be done."""
        self.expanding = bool(work.images)
        """Whether the work's images have yet to take their places in its prompt."""
        self._lost_place = False
        """Whether the work was preempted and vLLM has reported nothing about it since."""

    def reads(self, now: float) -> None:
        """Note that the work's images are being read."""
        self.wait, self.waits_since = Wait.NOTHING, now

    def expanded(self, work: EngineRequest, now: float) -> None:
        """Note that the images are in their places in the prompt of `work`, which waits for its turn from now on."""
        self.work, self.expanding = work, False
        self.stop_check.stopping = work.stopping
        self.wait, self.waits_since = Wait.PLACE, now

    @property
    def begun(self) -> bool:
        """Whether its client has some of the answer: drawn by prefill, or in an attempt before."""
        return self.work.mode != "prefill" and any(branch.position for branch in self.branches.values())

    @property
    def prompt_tokens(self) -> int:
        return len(self.work.prompt) // 4

    @property
    def attended(self) -> int:
        """Positions that the next step of its branches attends to, all together."""
        known = self.prompt_tokens
        return sum(known + branch.position for branch in self.branches.values() if not branch.done)

    def prefill_over(self, now: float) -> None:
        """Note that no other worker computes the prompt any more: the work's own waiting counts from now."""
        if self.waits_for_prefill:
            self.waits_for_prefill, self.waits_since = False, now

    def waits(self, wait: Wait, now: float) -> bool:
        """Note that the work waits for `wait` from now on; False when it already did."""
        if wait is self.wait:
            return False
        if self.wait is Wait.KV and len(self._kv_waits) < _REASONS_MAX:
            self._kv_waits.append((self._kv_from, now))
        self.wait, self.waits_since, self._kv_from = wait, now, now
        self._loads = self._loads or wait is Wait.KV
        if wait is not Wait.PLACE:
            self.admitted = self.admitted or now
        return True

    def noticed(self, wait: Wait, now: float, *, preempted: bool) -> bool:
        """Note what vLLM reports that it does with the request; False when vLLM already did so before."""
        self._lost_place = preempted
        return self.waits(wait, now)

    def drew(self, now: float) -> None:
        """vLLM drew tokens for it, so it has a place; but not for those of the step before it was preempted, which
        come afterwards where vLLM schedules a step ahead."""
        if self._lost_place:
            self._lost_place = False
        else:
            self.waits(Wait.NOTHING, now)

    def computes(self, start: int, tokens: int) -> None:
        """Note that a step computes a chunk of the prompt. vLLM's own figures come with the last chunk; a request
        that ends before has the figures counted here."""
        if self.chunks == 0:
            self.tokens_loaded, self.tokens_reused = (start, 0) if self._loads else (0, start)
        self.chunks += 1
        self.tokens_computed += tokens

    def explain(self, reason: str) -> None:
        if len(self._reasons) < _REASONS_MAX:
            self._reasons[reason] = None

    def stats(self, now: float, staged: int = 0, fetched: int = 0) -> RequestStats:
        """`staged` tokens were in the stage before, `fetched` came into it from elsewhere.

        vLLM counts what it hoped to load; what did not come it computed.
        """
        loaded = min(self.tokens_loaded, staged + fetched)
        pulled = min(fetched, loaded)
        reused = self.tokens_reused + loaded - pulled
        computed = self.tokens_computed + self.tokens_loaded - loaded
        if self.prefilled is not None and computed == 0 and self.work.mode != "decode":
            # The last token of a prompt that was all there is computed again all the same.
            computed, reused, pulled = 1, reused - (reused > 0), pulled - (reused == 0)
        return RequestStats(
            tokens_computed=computed,
            tokens_reused=reused,
            tokens_pulled=pulled,
            submitted=self.queued,
            admitted=self.admitted,
            prefilled=self.prefilled,
            first_token=self.first_token,
            finished=now,
            chunks=self.chunks,
            preemptions=self.preemptions,
            reasons=tuple(self._reasons),
            kv_waits=(*self._kv_waits, *([(self._kv_from, now)] if self.wait is Wait.KV else [])),
            prompt_tokens=self.prompt_tokens if self.work.images and not self.expanding else 0,
        )
