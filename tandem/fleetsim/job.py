"""One request's work on one worker."""

from typing import Final

from tandem.fleetsim.workload import Request

_LAST_BLOCK: Final = 16
"""A prompt that is cached whole computes its last engine block again: the next token needs its logits."""


class Job:
    """Between its submission to a worker and its end there. Owned by the worker; tokens throughout.

    `total` is what has to be known before the next token can be drawn: the prompt, after a preemption also what was
    generated. `done` of it are known. The first `pinned` blocks of the prompt are shared ones of the pool;
    `private` tokens are reserved besides.
    """

    __slots__ = (
        "cancelled",
        "done",
        "finish_step",
        "first_step",
        "gaps_before",
        "handed_over",
        "keeps",
        "left",
        "loading",
        "pinned",
        "prefill_only",
        "private",
        "published",
        "request",
        "resumed",
        "running",
        "told_s",
        "total",
        "uncached",
    )

    def __init__(self, request: Request, *, prefill_only: bool, handed_over: bool) -> None:
        self.request = request
        self.prefill_only = prefill_only
        self.handed_over = handed_over
        """The prompt's blocks come from a prefill worker, and have arrived."""
        self.total = request.input_tokens
        self.left = request.output_tokens - (1 if handed_over else 0)
        """Tokens still to be emitted here."""
        self.uncached = 0 if handed_over else request.input_tokens
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
        self.running = False
        self.resumed = False
        self.loading = False
        self.cancelled = False
        """It ends before its time, at the next step's boundary."""
        self.keeps = False
        """Its blocks stay pinned after its end here, until they have been transferred."""

    def context(self, step: int) -> int:
        """Positions its next decode step attends to."""
        return self.total + step - self.first_step

    def known(self, blocks: int) -> int:
        """Tokens that need no computing once the first so many blocks are here."""
        return min(self.request.leading(blocks), (self.total - 1) // _LAST_BLOCK * _LAST_BLOCK)
