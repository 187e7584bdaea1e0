"""Output blocks that the stage keeps, because a sequence's next turn begins with what it has generated. Pure.

The engine offers the full blocks of a sequence that is over. They get slots that are not needed now, under no lease,
and become part of the stage's cache under their names, which follow from the tokens that the engine has computed.
Later works of this worker find them and other workers fetch them, as they do with blocks of prompts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.engine.scheduler.blocks import BlockPool
from tandem.engine.vllm.conduit_messages import OutputSlots, ToRank
from tandem.engine.vllm.stage_params import NO_SLOT

Digested = Callable[[bytes], None]
"""Takes the content words of a slot."""


@dataclass
class _Output:
    names: tuple[bytes, ...]
    slots: tuple[int, ...]
    answered: set[int] = field(default_factory=set)
    whole: bool = True


class StageOutputs:
    """Writes to the pool, `to_ranks` and `to_digest` of the `StageState` it belongs to. `ranks` are all ranks of the
    engine, `writers` those that write to slots. `spare` gives the number of slots that may be filled with blocks that
    are merely worth keeping."""

    def __init__(
        self,
        pool: BlockPool,
        ranks: Sequence[int],
        writers: frozenset[int],
        spare: Callable[[], int],
        to_ranks: list[ToRank],
        to_digest: list[tuple[int, Digested]],
    ) -> None:
        self._pool = pool
        self._ranks = frozenset(ranks)
        self._writers = writers
        self._spare = spare
        self._to_ranks = to_ranks
        self._to_digest = to_digest
        self._outputs: dict[tuple[int, int], _Output] = {}
        self._digesting: dict[int, None] = {}

    @property
    def slots(self) -> list[int]:
        """All slots that are being filled or checked."""
        filling = [slot for output in self._outputs.values() for slot in output.slots if slot != NO_SLOT]
        return [*filling, *self._digesting]

    def offered(self, work: int, sequence: int, names: Sequence[bytes]) -> None:
        """The engine has these blocks, for a moment. The first of them are taken as far as there is room: a later one
        is of no use without those before it."""
        room, slots = self._spare(), list[int]()
        if (work, sequence) not in self._outputs:
            for name in names:
                if self._pool.find(name) is not None:
                    slots.append(NO_SLOT)
                elif room > 0:
                    room -= 1
                    slots += self._pool.allocate(1)
                else:
                    break
        slots += [NO_SLOT] * (len(names) - len(slots))
        taken = any(slot != NO_SLOT for slot in slots)
        if taken:
            self._outputs[work, sequence] = _Output(tuple(names), tuple(slots))
        self._to_ranks.append(OutputSlots(work, sequence, tuple(slots)))

    def saved(self, rank: int, work: int, sequence: int, *, saved: bool) -> None:
        """A rank has done with the slots: its part lies in them, or does not."""
        output = self._outputs.get((work, sequence))
        if output is None:
            return
        output.answered.add(rank)
        output.whole = output.whole and (saved or rank not in self._writers)
        if output.answered < self._ranks:
            return
        del self._outputs[work, sequence]
        # The last first, so that the beginning is evicted last.
        for name, slot in reversed(tuple(zip(output.names, output.slots, strict=True))):
            if slot == NO_SLOT:
                continue
            if output.whole:
                self._digesting[slot] = None
                self._to_digest.append((slot, self._publish(work, name, slot)))
            else:
                self._pool.release(slot)

    def _publish(self, work: int, name: bytes, slot: int) -> Digested:
        def digested(words: bytes) -> None:
            del self._digesting[slot]
            self._pool.publish(slot, name, words, work)
            self._pool.release(slot)

        return digested
