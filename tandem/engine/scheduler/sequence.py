"""The scheduler's state of a request and its sequences, from which steps are planned.

A *sequence* is a run of known tokens with a block table; the first `computed` positions have their KV. A request with
one branch has one sequence. A request with several branches also has a *trunk*: the tokens that all branches have in
common, computed once. When the KV of the trunk is complete, the branches fork off and share its blocks.
"""

import sys
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Items
from math import inf
from typing import Final

from tandem.core.kv import chain_names, pack_tokens, tail_name
from tandem.core.request import ChildRequest
from tandem.engine.protocol import EngineRequest, FetchTarget, RequestStats
from tandem.engine.scheduler.plan import Draw, Lane
from tandem.engine.scheduler.request_deadlines import Wait
from tandem.engine.scheduler.sequence_status import NOT_ADMITTED, SequenceStatus
from tandem.engine.scheduler.step_rules import order_of
from tandem.engine.scheduler.stop_check import StopCheck

_REASONS_MAX = 16
_UNFORKED: Final = SequenceStatus.WAITING_FOR_PARENT
_BEHIND_PROMPTS: Final = NOT_ADMITTED | {SequenceStatus.PREEMPTED, SequenceStatus.RUNNING_PREFILL}


class Sequence:
    """The known tokens of a sequence, the names of its blocks, and its block table. `index` is the branch's number,
    -1 for a trunk."""

    __slots__ = (
        "awaits_first",
        "computed",
        "cow",
        "ends",
        "filled",
        "forced",
        "index",
        "job",
        "known",
        "lane",
        "last",
        "length",
        "names",
        "outputs",
        "outputs_max",
        "plain_from",
        "seed",
        "status",
        "table",
        "table_packed",
        "tokens",
    )

    def __init__(self, job: "ScheduledRequest", index: int, seed: int, tokens: bytes, forced: int) -> None:
        self.job = job
        self.index = index
        self.seed = seed
        self.lane = Lane(job.work_id, index, seed, job.sampling)
        # Of the work, here too: these are asked for with every token.
        self.outputs_max, self.ends = job.max_tokens, job.ends
        self.plain_from = job.min_tokens if job.plain else sys.maxsize
        """Outputs from which on logits, seed and position alone decide the next."""
        self.tokens = bytearray(tokens)
        self.last = tokens[-4:]
        """The last known token, packed."""
        self.length = len(tokens) // 4
        self.known = self.length
        """The number of tokens that came with the request: prompt and forced output."""
        self.forced = forced
        self.outputs = forced
        self.computed = 0
        self.table: list[int] = []
        self.table_packed: bytes | None = None
        self.names: list[bytes] = []
        self.filled: set[int] = set()
        """Own blocks that a fetch filled beyond a hole; `computed` jumps over them."""
        self.status = SequenceStatus.WAITING_FOR_PARENT
        self.awaits_first = False
        """The next position is drawn elsewhere: this engine must not draw it."""
        self.cow = False
        """The partial last block may be shared: look before writing to it."""

    @property
    def is_parent(self) -> bool:
        return self.index < 0

    @property
    def finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def has_pending_blocks(self) -> bool:
        """Whether a fetch has yet to bring some of the sequence's blocks."""
        fetch = self.job.fetch
        return fetch is not None and bool(fetch.pending) and self is self.job.root

    @property
    def beyond_bring(self) -> int:
        """Tokens to compute when everything that is to be fetched comes."""
        return self.length - (self.job.bring * self.job.block_tokens if self is self.job.root else 0)

    @property
    def beyond_fetch(self) -> int:
        """Tokens to compute once the load of the sequence's blocks has ended; zero where another worker computes
        them. Only for a sequence that waits for remote KV."""
        fetch = self.job.fetch
        assert fetch is not None
        if fetch.hand_off:
            return 0
        return self.length - self.computed - sum(target.tokens for target in fetch.pending.values())

    def append(self, token: int) -> int:
        """The next output position is known; gives its number."""
        self.last = packed = token.to_bytes(4, "little")
        self.tokens += packed
        self.length += 1
        self.outputs = position = self.outputs + 1
        return position

    def packed(self, start: int, end: int) -> bytes:
        return bytes(self.tokens[4 * start : 4 * end])

    def packed_table(self) -> bytes:
        """The block table as packed uint32."""
        if self.table_packed is None:
            self.table_packed = array("I", self.table).tobytes()
        return self.table_packed

    def grow(self, slots: Items[int]) -> None:
        self.table += slots
        self.table_packed = None

    def replace(self, block: int, slot: int) -> None:
        self.table[block] = slot
        self.table_packed = None

    def drop_blocks(self) -> list[int]:
        """Forget all KV; gives the slots that were held."""
        table, self.table = self.table, []
        self.table_packed = None
        self.computed = 0
        self.filled.clear()
        self.cow = False
        return table

    def extend_names(self, root: bytes, block_tokens: int) -> None:
        """Name every full block of the known tokens."""
        names, size = self.names, 4 * block_tokens
        named = len(names) * size
        if len(self.tokens) - named >= size:
            names += chain_names(names[-1] if names else root, bytes(self.tokens[named:]), block_tokens)

    def draws(self) -> tuple[Draw, ...]:
        """The draws that need the logits of the last known token."""
        if not self.is_parent:
            return () if self.awaits_first else (self.draw(),)
        return tuple(
            branch.draw()
            for branch in self.job.branches.values()
            if branch.status is _UNFORKED and branch.length == self.length and not branch.awaits_first
        )

    def draw(self) -> Draw:
        """The parameters with which the next position is sampled."""
        job, position = self.job, self.outputs + 1
        if position > job.min_tokens and not job.needs_history:
            return Draw(job.work_id, self.index, self.seed, position, job.sampling)
        work = job.work
        prompt = output = b""
        if self.job.needs_history:
            prompt, output = work.prompt, bytes(self.tokens[len(work.prompt) :])
        forbidden = self.job.stop_check.end_tokens if position <= work.stopping.min_tokens else ()
        return Draw(work.work_id, self.index, self.seed, position, work.sampling, prompt, output, forbidden)


class ScheduledRequest:
    """One work while the scheduler has it."""

    def __init__(
        self, work: EngineRequest, arrival: int, now: float, eos_token_ids: tuple[int, ...], block_tokens: int
    ) -> None:
        self.work = work
        self.block_tokens = block_tokens
        self.order = order_of(work.priority, arrival)
        self.work_id = work.work_id
        self.prefills = work.mode == "prefill"
        self.sampling = work.sampling
        self.min_tokens = work.stopping.min_tokens
        self.max_tokens = work.stopping.max_tokens
        self.stop_check = StopCheck(work.stopping, eos_token_ids)
        self.ends = self.stop_check.ends
        self.needs_history = work.sampling.needs_history
        self.plain = not (self.needs_history or work.sampling.logit_bias or work.sampling.logprobs is not None)
        self.branches = {branch.sequence: self._sequence(branch) for branch in work.branches}
        self.root = self._root(work)
        """The sequence that is computed or fetched first: the trunk, or the only branch."""
        self.root.extend_names(work.root, block_tokens)
        self.root.status = SequenceStatus.WAITING
        self.live = len(self.branches)
        self.first: list[tuple[int, int, str | None]] = []
        self.fetch: Fetch | None = None
        self.leased = work.mode == "prefill" and work.lease_id != ""
        self.submitted = now
        self.queued = now
        """When the request last began to wait for its place."""
        self.bring = 0
        """The number of leading full blocks to fetch if they are not here when the request is admitted."""
        self.waited_for: int | None = None
        """The work whose fetch it waited for, or does, to find blocks here that it would have to fetch itself."""
        self.ready = False
        """Whether the prefill worker has sampled the first position of a decode request, so that all its blocks can
        be fetched."""
        self.prefill_lost = False
        """Of a decode request: no other worker has its blocks, so they are computed here."""
        self.prefill_over = -inf
        """The time at which the prefill of a decode request had sampled its first position, or was known to be
        lost."""
        self.room_made = self.idle_turns = 0
        """How often the request gave its blocks back: `room_made` times at once, to a request that could use them,
        and `idle_turns` times after its fetch had been idle."""
        self.admitted: float | None = None
        self.computing: float | None = None
        self.prefilled: float | None = None
        self.first_token: float | None = None
        self.told_landed = -inf
        """When the last report said that blocks of the request have landed."""
        self.tokens_computed = self.tokens_reused = self.tokens_pulled = 0
        self.chunks = self.preemptions = 0
        self.export_due = 0
        """Blocks reserved for the root that are still to be exported."""
        self._reasons: dict[str, None] = {}

    def _sequence(self, branch: ChildRequest) -> Sequence:
        tokens = self.work.prompt + pack_tokens(branch.forced)
        sequence = Sequence(self, branch.sequence, branch.seed, tokens, len(branch.forced))
        sequence.awaits_first = self.work.mode == "decode"
        return sequence

    def _root(self, work: EngineRequest) -> Sequence:
        if len(self.branches) == 1:
            return next(iter(self.branches.values()))
        return Sequence(self, -1, 0, work.prompt + _common_prefix([b.forced for b in work.branches]), 0)

    @property
    def wait(self) -> Wait:
        """What the request waits for; its own fetches are bounded elsewhere."""
        return Wait.PLACE if self.root.status in NOT_ADMITTED else Wait.NOTHING

    @property
    def waits_its_turn(self) -> bool:
        """Whether it needs tokens computed, or a place first: it stands behind whatever prompts are computed now."""
        return any(sequence.status in _BEHIND_PROMPTS for sequence in self.sequences)

    @property
    def waits_since(self) -> float:
        return max(self.queued, self.prefill_over)

    @property
    def waits_for_prefill(self) -> bool:
        """Whether a prefill worker computes its prompt and is not known to be done."""
        return self.work.mode == "decode" and self.prefill_over == -inf

    @property
    def begun(self) -> bool:
        """Whether its client has some of the answer: drawn by prefill, or in an attempt before."""
        return self.work.mode != "prefill" and any(branch.outputs for branch in self.branches.values())

    @property
    def handed_over(self) -> bool:
        """Whether another worker computes the request's blocks."""
        return self.work.mode == "decode" and not self.prefill_lost

    @property
    def sequences(self) -> Iterable[Sequence]:
        """The branches of the request, and its trunk where it has one."""
        if self.root.is_parent:
            yield self.root
        yield from self.branches.values()

    def export_names(self, block_tokens: int) -> tuple[bytes, ...]:
        """Names of all blocks of the root's known tokens, the partial tail last."""
        full = self.root.known // block_tokens
        names = tuple(self.root.names[:full])
        return names if self.root.known % block_tokens == 0 else (*names, self.tail_name(block_tokens))

    def tail_name(self, block_tokens: int) -> bytes:
        """The hand-off name of the root's partial last block."""
        root, full = self.root, self.root.known // block_tokens
        parent = root.names[full - 1] if full else self.work.root
        return tail_name(parent, root.packed(full * block_tokens, root.known))

    def count_again(self) -> None:
        """The last token, found or fetched, has been computed all the same."""
        if self.tokens_reused:
            self.tokens_reused -= 1
        elif self.tokens_pulled and self.work.mode != "decode":
            self.tokens_pulled -= 1

    def explain(self, reason: str) -> None:
        """Keep a reason for the request's trace. Only the first few different reasons are kept."""
        if len(self._reasons) < _REASONS_MAX:
            self._reasons[reason] = None

    def stats(self, now: float) -> RequestStats:
        return RequestStats(
            tokens_computed=self.tokens_computed,
            tokens_reused=self.tokens_reused,
            tokens_pulled=self.tokens_pulled,
            submitted=self.submitted,
            admitted=self.admitted,
            computing=self.computing,
            prefilled=self.prefilled,
            first_token=self.first_token,
            finished=now,
            chunks=self.chunks,
            preemptions=self.preemptions,
            reasons=tuple(self._reasons),
        )


class Fetch:
    """Blocks of a request that are being fetched. `pending` are the targets that have not landed; `moved` is when the
    last one landed, or when the fetch began; `stopped` tells whether its end has been asked for. With `hand_off` the
    blocks beyond the first `bring` are being computed elsewhere."""

    def __init__(self, targets: Items[FetchTarget], now: float, *, hand_off: bool, bring: int) -> None:
        self.moved = now
        self.hand_off = hand_off
        self.pending = {target.index: target for target in targets}
        self.stopped = False
        self.untouched = True
        """Whether no block that only the hand-off can bring has landed yet."""
        self._bring = bring

    def land(self, index: int, now: float) -> FetchTarget | None:
        """Block `index` is there; None when it was not awaited."""
        target = self.pending.pop(index, None)
        if target is not None:
            self.moved = now
            self.untouched = self.untouched and index < self._bring
        return target


def _common_prefix(outputs: Items[tuple[int, ...]]) -> bytes:
    shortest = min(outputs, key=len)
    length = 0
    while length < len(shortest) and all(tokens[length] == shortest[length] for tokens in outputs):
        length += 1
    return pack_tokens(shortest[:length])
