"""What happened to one request, as its client saw it. Times are seconds after the start of the replay."""

from dataclasses import dataclass


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
