"""Keeps the outputs of a resumable attempt, so that they can be sent again to a router that takes it over."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from tandem.core.messages import SequenceOutput, StepOutputs

_OUTPUT_BYTES: Final = 160
"""About what one output takes in memory besides its text and log-probabilities."""
_LOGPROB_BYTES: Final = 64
_PER_MESSAGE: Final = 256
"""Outputs per message when they are sent again."""


class OutputLog:
    """Outputs by sequence, in order of position and without gaps. `size` is about what they take, in bytes."""

    __slots__ = ("_sequences", "size")

    def __init__(self, kept: Iterable[SequenceOutput] = ()) -> None:
        self._sequences: dict[int, list[SequenceOutput]] = {}
        self.size = 0
        for output in kept:
            self.keep(output)

    def add(self, output: SequenceOutput) -> None:
        """Add an output of this worker. A position that is here already (the router provided it first) is not kept
        twice."""
        outputs = self._sequences.setdefault(output.sequence, [])
        if output.position == _next(outputs):
            outputs.append(output)
            self.size += _size(output)

    def keep(self, output: SequenceOutput) -> None:
        """Add an output of another worker. For a position that this worker passed on, it may add the logprobs that
        are missing here."""
        outputs = self._sequences.setdefault(output.sequence, [])
        if output.position == _next(outputs):
            outputs.append(output)
            self.size += _size(output)
            return
        for index, known in enumerate(outputs):
            if known.position == output.position and known.tokens == output.tokens and not known.logprobs:
                outputs[index] = msgspec.structs.replace(known, logprobs=output.logprobs)
                self.size += _LOGPROB_BYTES * _entries(output)
                return

    def finished(self, sequence: int) -> bool:
        """Whether the sequence's last output is here."""
        outputs = self._sequences.get(sequence)
        return bool(outputs and outputs[-1].finish is not None)

    def messages(self, handle: int) -> Iterator[StepOutputs]:
        """Everything, one sequence after the other, under `handle`."""
        said = [output for outputs in self._sequences.values() for output in outputs]
        for start in range(0, len(said), _PER_MESSAGE):
            yield StepOutputs(_under(handle, said[start : start + _PER_MESSAGE]))


def _under(handle: int, outputs: Sequence[SequenceOutput]) -> tuple[SequenceOutput, ...]:
    return tuple(msgspec.structs.replace(output, handle=handle) for output in outputs)


def _next(outputs: Sequence[SequenceOutput]) -> int:
    return outputs[-1].position + len(outputs[-1].tokens) if outputs else 1


def _size(output: SequenceOutput) -> int:
    return _OUTPUT_BYTES + len(output.text) + _LOGPROB_BYTES * _entries(output)


def _entries(output: SequenceOutput) -> int:
    return sum(1 + len(entry.top) for entry in output.logprobs)
