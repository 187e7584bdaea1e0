"""What is said: conversations of several turns whose prompts grow, some with a beginning in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.entropy import SeededEntropy, below
from tandem.core.request import Sampling, Stopping
from tools.equality.models import Subject

_GROUP = 8
"""So many conversations share a system prompt."""
_SYSTEM_TOKENS = 160
_GREEDY = Sampling(temperature=0.0)
_DRAWN = Sampling(temperature=0.9, top_p=0.9)


@dataclass(frozen=True)
class UserTurn:
    """What the user adds, and how the answer is drawn."""

    says: tuple[int, ...]
    sampling: Sampling
    stopping: Stopping
    seed: int


@dataclass(frozen=True)
class Conversation:
    """`system` is shared by a group; a turn's prompt is everything before it and what the user adds."""

    number: int
    system: tuple[int, ...]
    turns: tuple[UserTurn, ...]

    def prompt(self, turn: int, answers: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Token ids of the prompt of a turn, given the answers to the turns before it."""
        said = self.system
        for index in range(turn):
            said += self.turns[index].says + answers[index]
        return said + self.turns[turn].says


def draw(subject: Subject, conversations: int, turns: int, seed: int = 1) -> tuple[Conversation, ...]:
    """`conversations` of `turns` each; every second one is greedy, the others are drawn with a seed."""
    return tuple(_one(subject, number, turns, seed) for number in range(conversations))


def _one(subject: Subject, number: int, turns: int, seed: int) -> Conversation:
    entropy = SeededEntropy(seed, f"conversation {number}")
    system = subject.prompt(_SYSTEM_TOKENS, 7 * (number // _GROUP) + 1)
    said = tuple(
        UserTurn(
            says=subject.prompt(24 + below(entropy, 120), 1000 + 100 * number + turn),
            sampling=_GREEDY if number % 2 == 0 else _DRAWN,
            stopping=Stopping(8 + below(entropy, 24), ignore_eos=True),
            seed=number,
        )
        for turn in range(turns)
    )
    return Conversation(number, system, said)


_PAUSES = (6, 40, 250)
"""After how many other turns a conversation goes on: what it said before lies in a pool, in DRAM or further down."""


def order(conversations: Sequence[Conversation], seed: int = 1) -> tuple[tuple[Conversation, int], ...]:
    """All turns, each conversation's own in order, with pauses of different lengths between them."""
    entropy = SeededEntropy(seed, "order")
    placed = []
    for start, conversation in enumerate(conversations):
        at = float(len(conversation.turns) * start)
        for turn in range(len(conversation.turns)):
            placed.append((at, conversation.number, turn))
            at += _PAUSES[below(entropy, len(_PAUSES))]
    by_number = {conversation.number: conversation for conversation in conversations}
    return tuple((by_number[number], turn) for _, number, turn in sorted(placed))
