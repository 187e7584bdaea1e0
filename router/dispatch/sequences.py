"""All sequences of one request: who is finished, what has been accepted, what a new attempt starts from."""

from collections.abc import Iterable, Mapping, Sequence

from kv_transfer.index.protocol import Held
from router.dispatch.attempt import Attempt, Deliver
from router.dispatch.objectives import weight_of
from router.dispatch.positions import Positions
from router.generation import Generation
from router.placement import Objective, PlacementRequest
from tandem.core.messages import SequenceOutput
from tandem.core.request import ChildRequest


class Sequences:
    """Owns the `Positions` of a request, by sequence number from 0."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.positions: Mapping[int, Positions] = {number: Positions(number) for number in range(generation.n)}
        self._all = tuple(self.positions.values())

    @property
    def accepted(self) -> int:
        """Output tokens accepted, all sequences together."""
        # Most requests have one sequence, and these are asked often: a plain loop costs less than a generator.
        accepted = 0
        for each in self._all:
            accepted += len(each.tokens)
        return accepted

    @property
    def lengths(self) -> list[int]:
        """Output tokens accepted of each sequence."""
        return [len(each.tokens) for each in self._all]

    @property
    def tokens_left(self) -> int:
        """The most output tokens that an unfinished sequence may still get."""
        most = self._generation.stopping.max_tokens
        return max((most - len(each.tokens) for each in self.unfinished()), default=0)

    def placement_request(
        self,
        names: Mapping[bytes, Sequence[bytes]],
        held: Mapping[str, Held],
        excluded: tuple[tuple[str, int], ...],
        objective: Objective | None,
        age_ms: float,
    ) -> PlacementRequest:
        """The input of placement: the names of the prompt's blocks by root name, the workers that hold them and how
        many each holds, the objective that the request is to meet, and how long ago it arrived."""
        generation, unfinished = self._generation, self.unfinished()
        replayed = max([len(each.tokens) for each in unfinished], default=0)
        return PlacementRequest(
            generation.model,
            generation.prompt_tokens + replayed,
            len(unfinished),
            max(1, generation.stopping.max_tokens - replayed),
            held,
            excluded,
            (replayed > 0 and generation.n > 1)
            or generation.sampling.prompt_logprobs is not None
            or bool(generation.images),
            names,
            prompt_cache_key=generation.cache_key,
            request_id=generation.request_id,
            objective=objective,
            age_ms=age_ms,
            weight=weight_of(generation.priority),
        )

    def recall(self, outputs: Iterable[SequenceOutput], deliver: Deliver) -> None:
        """Accept what another router had accepted before."""
        for output in outputs:
            positions = self.positions.get(output.sequence)
            new = positions.accept(output) if positions is not None else None
            if isinstance(new, SequenceOutput):
                deliver(new)

    def unfinished(self) -> list[Positions]:
        return [each for each in self._all if each.finish is None]

    def branches(self) -> tuple[ChildRequest, ...]:
        """One branch per unfinished sequence: accepted tokens become forced, sent text is not sent again."""
        return tuple(
            ChildRequest(each.sequence, self._generation.seed, tuple(each.tokens), each.text_chars)
            for each in self.unfinished()
        )

    def lacks_first(self, attempt: Attempt) -> bool:
        """Whether an unfinished sequence has not moved in this attempt."""
        first = attempt.first
        for each in self._all:  # noqa: SIM110  (see `accepted`)
            if each.finish is None and each.next_position == first[each.sequence]:
                return True
        return False

    def lacks_all_first(self, attempt: Attempt) -> bool:
        """Whether no sequence has moved in this attempt."""
        return all(self.positions[number].next_position == first for number, first in attempt.first.items())

    def ended_at_first(self, attempt: Attempt) -> bool:
        """Whether a sequence finished with the first token of this attempt."""
        for number, first in attempt.first.items():  # noqa: SIM110  (see `accepted`)
            if self.positions[number].next_position <= first + 1:
                return True
        return False
