"""One request's work on one worker."""

from benchmarks.fleet.workload import Request
from tandem.engine.scheduler.step_rules import Order, Way, order_of

_BLOCK = 16
"""Tokens of an engine's block: only whole ones are found again."""


class WorkerRequest:
    """Between its submission to a worker and its end there. Owned by the worker; tokens throughout.

    `total` is what has to be known before the next token can be drawn: the prompt, after a preemption or the loss of
    another worker also what was generated. `done` of it are known. The first `pinned` blocks of the prompt are shared
    ones of the pool; `private` tokens are reserved besides, in whole blocks of the engine.
    """

    __slots__ = (
        "admitted",
        "bring",
        "cancelled",
        "done",
        "finish_step",
        "first_step",
        "gaps_before",
        "handed_over",
        "idle_turns",
        "keeps",
        "left",
        "moved_s",
        "order",
        "over",
        "parked",
        "patience_s",
        "peer",
        "pinned",
        "prefill_only",
        "private",
        "published",
        "ready",
        "request",
        "resumed",
        "room_made",
        "running",
        "told_s",
        "total",
        "uncached",
        "untouched",
    )

    def __init__(self, request: Request, *, prefill_only: bool, handed_over: bool) -> None:
        self.request = request
        self.prefill_only = prefill_only
        self.handed_over = handed_over
        """A prefill worker computes the prompt, whose blocks come from there."""
        self.peer: WorkerRequest | None = None
        """Of a prefill job, the job that waits for its blocks."""
        self.order: Order = order_of(request.priority, 0)
        """Its place among the jobs of its worker, which gives it."""
        self.ready = not handed_over
        """What it waits for, but its place, is there."""
        self.bring = 0
        """Leading blocks that are to be had from tiers or peers before the rest is computed."""
        self.patience_s = 0.0
        """How long bringing them may take."""
        self.total = request.input_tokens + request.emitted
        self.left = request.output_tokens - request.emitted - (1 if handed_over else 0)
        """Tokens still to be emitted here."""
        self.uncached = 0 if handed_over else self.total
        """Prompt tokens to compute, as far as is known."""
        self.done = 0
        self.pinned: tuple[int, ...] = ()
        self.published = 0
        """Blocks of the prompt that were looked at for publishing."""
        self.private = 0
        self.first_step = 0
        self.finish_step = 0
        self.gaps_before: dict[int, int] = {}
        """The gaps of its worker's steps before it took part in them."""
        self.told_s = 0.0
        """When its last token but those of the present batch came."""
        self.admitted = False
        """It has had its place before."""
        self.parked = False
        """It has its room, and waits for blocks to come."""
        self.untouched = True
        """Nothing has come for a parked hand-over."""
        self.moved_s = 0.0
        """When something last did."""
        self.idle_turns = 0
        self.room_made = 0
        self.running = False
        self.resumed = False
        self.cancelled = False
        """It ends before its time, at the next step's boundary."""
        self.over = False
        """Nothing of it is here any more."""
        self.keeps = False
        """Its blocks stay pinned after its end here, until they have been transferred."""

    @property
    def way(self) -> Way:
        """How it comes by its prompt's KV when it is admitted."""
        if self.admitted or not (self.handed_over or self.bring):
            return "compute"
        return "fetch" if self.handed_over else "bring"

    @property
    def at_edge(self) -> bool:
        """Whether the next token to compute begins a block that is not looked at yet, but for less than an engine's
        block."""
        return 0 <= self.published * self.request.block_tokens - self.done < _BLOCK

    def context(self, step: int) -> int:
        """Positions its next decode step attends to."""
        return self.total + step - self.first_step

    def known(self, blocks: int) -> int:
        """Tokens that need no computing once the first so many blocks are here: whole engine blocks, and never the
        last token, whose logits the next one needs."""
        return min(self.request.leading(blocks) // _BLOCK * _BLOCK, self.total - 1)

    def touched(self, now: float) -> None:
        """A part of what is handed over has come, or is coming until `now`."""
        self.untouched = False
        self.moved_s = max(self.moved_s, now)
