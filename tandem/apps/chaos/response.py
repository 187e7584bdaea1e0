"""One answer as its client received it: its text, when it came, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tandem.apps.chaos.request import ChaosRequest
from tandem.apps.client.answer import Piece, TokenUsage

RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
"""A typed error, as a status or as an event of the stream."""
BROKEN: Final = "broken"
"""The connection ended before the answer did."""
REFUSED: Final = "refused"
"""The connection was refused."""
WITHOUT_END: Final = "without end"


@dataclass
class ReceivedAnswer:
    """One answer so far. Times are on the client's loop clock, seconds."""

    ask: ChaosRequest
    request_id: str
    sent_s: float
    end: str = RUNNING
    ended_s: float | None = None
    reason: str = ""
    """The reason for an end that is not `done`."""
    kind: str = ""
    """The reason in a word: an error's code, or the type of what broke the connection."""
    status: int = 200
    """The status with which a request was refused; 200 for one that was not."""
    usage: TokenUsage | None = None
    """Tokens as the router counted them; None until it has reported them."""
    times_s: list[float] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    came_back: bool = False
    """The connection broke and the client asked for the rest."""

    @property
    def tokens(self) -> int:
        """Output tokens of all sequences, as the router counted them; 0 until it has reported them."""
        return self.usage.completion_tokens if self.usage is not None else 0

    def take(self, piece: Piece) -> None:
        """The next piece of the answer."""
        for choice in piece.choices:
            if choice.content:
                self.texts[choice.index] = self.texts.get(choice.index, "") + choice.content
                self.times_s.append(piece.time_s)
            if choice.finish_reason is not None:
                self.finishes[choice.index] = choice.finish_reason
        self.usage = piece.usage or self.usage

    def ended(self, end: str, now_s: float, reason: str = "", kind: str = "") -> None:
        """The answer has come to its end."""
        self.end, self.ended_s, self.reason, self.kind = end, now_s, reason, kind

    @property
    def resumed(self) -> bool:
        """Whether it was gone on with after its connection had broken, to its end."""
        return self.came_back and self.end == DONE

    def longest_pause_s(self, since_s: float) -> float:
        """The longest silence that was not over at `since_s`. Waiting for the first token counts from then on only:
        what came before is what any request waits."""
        last = () if self.ended_s is None else (self.ended_s,)
        moments: Sequence[float] = (max(self.sent_s, since_s), *self.times_s, *last)
        return max((after - before for before, after in pairwise(moments) if after >= since_s), default=0.0)
