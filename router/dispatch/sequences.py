"""All sequences of one request: who is finished, what has been accepted, what a new attempt starts from."""

from collections.abc import Iterable, Mapping

from router.dispatch.attempt import Attempt, Deliver
from router.dispatch.positions import Positions
from router.generation import Generation
from router.placement import PlacementRequest
from tandem.core.messages import SequenceOutput
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

    @property
    def tokens_left(self) -> int:
        """The most output tokens that an unfinished sequence may still get."""
        most = self._generation.stopping.max_tokens
        return max((most - len(each.tokens) for each in self.unfinished()), default=0)

    def placement_request(self, cached: Mapping[str, int], excluded: tuple[tuple[str, int], ...]) -> PlacementRequest:
        """What placement has to know; `cached` gives leading prompt tokens by worker id."""
        replayed = self.replayed
        return PlacementRequest(
            model=self._generation.model,
            prompt_tokens=self._generation.prompt_tokens + replayed,
            sequences=len(self.unfinished()),
            max_tokens=max(1, self._generation.stopping.max_tokens - replayed),
            cached=cached,
            excluded=excluded,
            local_only=replayed > 0 and self._generation.n > 1,
        )

    def recall(self, outputs: Iterable[SequenceOutput], deliver: Deliver) -> None:
        """Accept what another router had accepted before."""
        for output in outputs:
            positions = self.positions.get(output.sequence)
            new = positions.accept(output) if positions is not None else None
            if isinstance(new, SequenceOutput):
                deliver(new.sequence, new.position, new.tokens, new.text, new.logprobs, new.finish, new.stop_reason)

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

    def lacks_all_first(self, attempt: Attempt) -> bool:
        """Whether no sequence has moved in this attempt."""
        return all(self.positions[number].next_position == first for number, first in attempt.first.items())

    def ended_at_first(self, attempt: Attempt) -> bool:
        """Whether a sequence finished with the first token of this attempt."""
        return any(self.positions[number].next_position <= first + 1 for number, first in attempt.first.items())
