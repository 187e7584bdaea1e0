"""All sequences of one request: who is finished, what has been accepted, what a new attempt starts from."""

from collections.abc import Mapping

from router.dispatch.attempt import Attempt
from router.dispatch.positions import Positions
from router.generation import Generation
from tandem.core.request import Branch


class Sequences:
    """Owns the `Positions` of a request, by sequence number from 0."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.positions: Mapping[int, Positions] = {number: Positions(number) for number in range(generation.n)}

    @property
    def accepted(self) -> int:
        """Output tokens accepted, all sequences together."""
        return sum(len(each.tokens) for each in self.positions.values())

    @property
    def replayed(self) -> int:
        """Output tokens that the longest unfinished sequence would replay."""
        return max((len(each.tokens) for each in self.unfinished()), default=0)

    def unfinished(self) -> list[Positions]:
        return [each for each in self.positions.values() if each.finish is None]

    def branches(self) -> tuple[Branch, ...]:
        """One branch per unfinished sequence: accepted tokens become forced, sent text is not sent again."""
        return tuple(
            Branch(each.sequence, self._generation.seed, tuple(each.tokens), each.text_chars)
            for each in self.unfinished()
        )

    def next_positions(self) -> dict[int, int]:
        """Where each unfinished sequence stands."""
        return {each.sequence: each.next_position for each in self.unfinished()}

    def lacks_first(self, attempt: Attempt) -> bool:
        """Whether an unfinished sequence has not moved in this attempt."""
        return any(each.next_position == attempt.first[each.sequence] for each in self.unfinished())

    def ended_at_first(self, attempt: Attempt) -> bool:
        """Whether a sequence finished with the first token of this attempt."""
        return any(self.positions[number].next_position <= first + 1 for number, first in attempt.first.items())
