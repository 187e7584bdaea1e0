"""Decides which prompts leave a prefill worker that cannot keep up, before a token of them has been computed. Pure.

Moving such a prompt costs nothing but messages, so it moves to where its first token is expected clearly earlier. A
worker that is as busy as placement took it to be is not starved. Its prompts stay, since moving them by their own
time alone would undo what placement has weighed.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MOVES_MAX: Final = 2
"""The number of times that the prompt of one request may leave a worker. It never returns to a worker that it has
left."""
_LATER: Final = 2.0
"""The first token is clearly later where it takes so many times as long as elsewhere,"""
_LATER_S: Final = 1.0
"""and so many seconds more."""
_SOON_S: Final = 2.0
_SPARE_S: Final = 5.0
"""Seconds to spare that let a prompt stay where it is: a prompt is looked at once a heartbeat, so it can still be
moved later."""
_HOPELESS: Final = 1.5
"""A request is refused where its answer is expected to take so many times as long as its client waits."""
_WINDOW_S: Final = 10.0
_WINDOW_LEAST_S: Final = 2.0


@dataclass
class PrefillRate:
    """The rate at which a worker computes the prompts that wait there, whatever its steps say: a worker that gets
    little time, or loses time between steps, looks fast by its steps."""

    _gains: deque[tuple[float, int]] = field(default_factory=deque)
    """The times at which the worker was seen to have computed more than before, each with its total of computed
    tokens. A long step shows nothing until it has ended."""
    _now: float = 0.0

    def look(self, now: float, computed: int, waiting: int) -> None:
        """Note that `computed` prompt tokens have been computed on the worker in all, and that `waiting` prompts
        wait."""
        gains, self._now = self._gains, now
        if not waiting or (gains and computed < gains[-1][1]):
            # It has had nothing to do, or what it had computed of a prompt that was cancelled counts no more.
            gains.clear()
        if waiting and (not gains or computed > gains[-1][1]):
            gains.append((now, computed))
        while len(gains) > 2 and gains[1][0] <= gains[-1][0] - _WINDOW_S:
            gains.popleft()

    def token_s(self) -> float:
        """Seconds per token of about the last ten seconds in which prompts have waited; 0 where that is not known."""
        gains = self._gains
        if len(gains) < 2 or gains[-1][0] - gains[0][0] < _WINDOW_LEAST_S:
            return 0.0
        since, gained = gains[0][0], gains[-1][1] - gains[0][1]
        next_gain = gains[-1][1] - gains[-2][1]
        return max((gains[-1][0] - since) / gained, (self._now - since) / (gained + next_gain))


@dataclass(frozen=True)
class WaitingPrompt:
    """A prompt of which nothing has been computed, in seconds: how long it has waited for its first token, how long
    placement expected that to take, when its turn comes, when its first token, what the answer takes after that, and
    until its client's deadline."""

    waited_s: float
    expected_s: float
    turn_s: float
    here_s: float
    answer_s: float
    left_s: float
    moves: int = 0
    """The number of times that the prompt was moved already."""

    @property
    def in_time(self) -> bool:
        """Whether its client is expected to have the whole answer in time where it is."""
        return self.here_s + self.answer_s + _SPARE_S <= self.left_s

    @property
    def soon(self) -> bool:
        """Whether its turn may come before a cancel does: what is known of it is as old as a heartbeat."""
        return self.turn_s < _SOON_S

    def starved(self, patience_s: float) -> bool:
        """Whether its first token comes clearly later, and `patience_s` more, than placement expected."""
        return self.waited_s + self.here_s > _LATER * self.expected_s + patience_s


@dataclass(frozen=True)
class AlternativeWorker:
    """Another place for a prompt. In seconds, `first_s` is the time to the first token there, `others_s` the loss of
    other requests by the prompt, `answer_s` the time of the answer, and `computing_s` the worker's time for the
    prompt."""

    name: str
    first_s: float
    others_s: float
    answer_s: float
    computing_s: float = 0.0


class PromptAction(Enum):
    """The action taken on a prompt that waits."""

    STAY = "stay"
    MOVE = "move"
    REFUSE = "refuse"


@dataclass(frozen=True)
class PromptDecision:
    """The action for a prompt that waits, and the reason."""

    lot: PromptAction
    reason: str


def decide_move(waits: WaitingPrompt, elsewhere: AlternativeWorker | None, patience_s: float) -> PromptDecision:
    """Whether a prompt leaves a worker that is slower than placement took it to be, for where the policy would have
    it now; None where that is nowhere else."""
    first_s = waits.waited_s + waits.here_s
    if not waits.starved(patience_s):
        return PromptDecision(
            PromptAction.STAY, f"first token after {first_s:.1f} s; {waits.expected_s:.1f} s were expected"
        )
    if elsewhere is None or waits.moves >= MOVES_MAX:
        return PromptDecision(
            PromptAction.STAY, f"nobody else can take it, or it was moved often enough: {waits.moves} times"
        )
    told = f"its first token is expected in {waits.here_s:.1f} s, in {elsewhere.first_s:.1f} s on {elsewhere.name}"
    if waits.here_s <= _LATER * (elsewhere.first_s + elsewhere.others_s) + _LATER_S:
        return PromptDecision(PromptAction.STAY, f"{told}: not clearly earlier")
    return PromptDecision(PromptAction.MOVE, told)


def decide_last_resort(waits: WaitingPrompt, elsewhere: AlternativeWorker | None) -> PromptDecision:
    """Decide on a prompt whose client is not sure to have its answer in time from here. The prompt moves to another
    place where it is earlier and in time, however little earlier and whatever others lose. Otherwise it stays or is
    refused."""
    if waits.in_time:
        return PromptDecision(PromptAction.STAY, "its client will have its answer in time")
    told = f"its first token is expected in {waits.here_s:.1f} s, its client waits {waits.left_s:.1f} s more"
    soonest_s = waits.here_s
    if elsewhere is not None:
        soonest_s = min(soonest_s, elsewhere.first_s)
        there = f"{told}; {elsewhere.name} has it in {elsewhere.first_s:.1f} s"
        earlier = elsewhere.first_s < waits.here_s
        if earlier and elsewhere.first_s + elsewhere.answer_s <= waits.left_s and waits.moves < MOVES_MAX:
            return PromptDecision(PromptAction.MOVE, there)
    if soonest_s > _HOPELESS * waits.left_s:
        return PromptDecision(PromptAction.REFUSE, f"{told}; nobody else has it in time")
    return PromptDecision(PromptAction.STAY, f"{told}; nobody else is sure to have it in time")
