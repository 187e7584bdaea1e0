"""Outputs of one sequence as dispatch hands them on, for tests that say them themselves."""

from router.generation import Sink
from tandem.core.messages import SequenceOutput, TokenLogprob


def said(
    sequence: int,
    position: int,
    tokens: tuple[int, ...],
    text: str = "",
    logprobs: tuple[TokenLogprob, ...] = (),
    finish: str | None = None,
    stop_reason: str | int | None = None,
    *,
    offset: int = 0,
) -> SequenceOutput:
    """The output of `tokens` from `position` on; `offset` is where `text` begins in the sequence's text."""
    return SequenceOutput(0, sequence, position, tokens, text, offset, finish, stop_reason, logprobs)


class Speaker:
    """Says outputs to a sink and counts where in its sequence's text each one begins."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._chars: dict[int, int] = {}

    def say(
        self,
        sequence: int,
        position: int,
        tokens: tuple[int, ...],
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        finish: str | None = None,
    ) -> None:
        """The next tokens of one sequence."""
        offset = self._chars.get(sequence, 0)
        self._chars[sequence] = offset + len(text)
        self._sink.output(said(sequence, position, tokens, text, logprobs, finish, offset=offset))
