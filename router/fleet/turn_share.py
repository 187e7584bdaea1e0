"""Bounds how many outputs the router hands to its streams in one turn of the event loop, over all workers.

A step of thousands of sequences comes in one frame, and writing all of their tokens takes tens of milliseconds in
which nothing else gets a turn. So they are written in slices, in order, with turns for all other work in between.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from tandem.core.messages import RouterMessage, StepOutputs

OUTPUTS_PER_TURN: Final = 256
"""About 5 to 10 ms of writing."""


def sliced(messages: tuple[RouterMessage, ...]) -> Iterator[tuple[tuple[RouterMessage, ...], int]]:
    """The messages of a frame, in order, in parts of not many more outputs than a turn has; of each how many."""
    part: list[RouterMessage] = []
    count = 0
    for message in messages:
        outputs = message.outputs if type(message) is StepOutputs else ()
        if len(outputs) > OUTPUTS_PER_TURN:
            if part:
                yield tuple(part), count
            part, count = [], 0
            for place in range(0, len(outputs), OUTPUTS_PER_TURN):
                some = outputs[place : place + OUTPUTS_PER_TURN]
                yield (StepOutputs(some),), len(some)
            continue
        if part and count + len(outputs) > OUTPUTS_PER_TURN:
            yield tuple(part), count
            part, count = [], 0
        part.append(message)
        count += len(outputs)
    if part:
        yield tuple(part), count


class TurnShare:
    """The outputs that may still be written in this turn of the event loop."""

    def __init__(self) -> None:
        self._left = OUTPUTS_PER_TURN
        self._due = False

    def take(self, outputs: int) -> bool:
        """Whether so many outputs may be written in this turn. Those that are more than what is left may, once."""
        if self._left <= 0:
            return False
        self._left -= outputs
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._renew)
        return True

    def _renew(self) -> None:
        self._left, self._due = OUTPUTS_PER_TURN, False
