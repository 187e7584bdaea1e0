"""The outcome of one request, as its client saw it. Times are seconds after the start of the replay."""

from dataclasses import dataclass
from typing import Final

from tandem.core.slo import End

UNFINISHED: Final = "unfinished"
"""The error of a request that was still open, or due and not sent, when its replay was cut short."""
_DEADLINE: Final = ("timeout", "http_408", "http_504", "deadline_exceeded")
_REFUSED: Final = ("refused", "http_429", "http_503")


@dataclass(frozen=True)
class Outcome:
    """Times count from `scheduled_s`, when the request was due: a client that falls behind does not hide it.

    `gaps_s` are the times between deltas that carried text. `error` is None when the stream ended as it should.
    """

    scheduled_s: float
    sent_s: float
    end_s: float
    first_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.first_s is not None

    @property
    def end(self) -> End:
        """The end of the request, derived from the parts of its error (`http_503:queue_full`, `stream:worker_lost`,
        `timeout`).

        The bench reports every request that it cancels as unfinished, so a request that a server reports as cancelled
        has failed.
        """
        if self.ok:
            return End.DONE
        parts = (self.error or "").split(":")
        if self.error == UNFINISHED:
            return End.UNFINISHED
        kinds = ((End.DEADLINE, _DEADLINE), (End.REFUSED, _REFUSED))
        return next((end for end, known in kinds if any(part in known for part in parts)), End.FAILED)

    @property
    def ttft_s(self) -> float:
        """Due time to first token."""
        assert self.first_s is not None
        return self.first_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        """Due time to last token."""
        return self.end_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for answers of one token."""
        if self.first_s is None or self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)
