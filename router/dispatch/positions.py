"""Position ownership of one sequence: each position is accepted once, in order, whichever worker brings it.

Workers repeat themselves and each other: prefill and decode both report the first token, and a resumed attempt
overlaps what was accepted. A repeat must equal what was accepted. Pure; one owner changes it in place.
"""

import msgspec

from tandem.core.messages import SequenceOutput


class Mismatch(msgspec.Struct, frozen=True):
    """An output that cannot be part of this sequence.

    `kind` is `conflict` (it differs from what was accepted) or `gap` (something before it is missing).
    """

    kind: str
    reason: str


class Positions:
    """The accepted positions of one sequence. `moved_s`, the time when they last grew, belongs to the owner."""

    __slots__ = ("finish", "moved_s", "sequence", "text_chars", "tokens")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.tokens: list[int] = []
        self.text_chars = 0
        self.finish: str | None = None
        self.moved_s = 0.0

    @property
    def next_position(self) -> int:
        """The position, counted from 1, that would be accepted next."""
        return len(self.tokens) + 1

    def accept(self, output: SequenceOutput) -> SequenceOutput | Mismatch | None:
        """Take in an output: gives the new part of it to deliver, None when there is none, or why it cannot be.

        After a mismatch nothing has changed. After the finish everything is late and gives None.
        """
        if self.finish is not None:
            return None
        if output.position == len(self.tokens) + 1 and output.offset == self.text_chars:
            self.tokens.extend(output.tokens)
            self.text_chars += len(output.text)
            self.finish = output.finish
            return output
        return self._reconcile(output)

    def _reconcile(self, output: SequenceOutput) -> SequenceOutput | Mismatch | None:
        repeated = len(self.tokens) + 1 - output.position
        mismatch = self._misplaced(output, repeated) or self._differing(output, repeated)
        if mismatch is not None:
            return mismatch
        if len(output.tokens) < repeated or (len(output.tokens) == repeated and output.finish is None):
            return None
        return self._rest(output, repeated)

    def _misplaced(self, output: SequenceOutput, repeated: int) -> Mismatch | None:
        if output.position < 1 or repeated < 0:
            reason = f"position {output.position} came when {self.next_position} was expected"
            return Mismatch("gap", f"sequence {self.sequence}: {reason}")
        if output.offset > self.text_chars:
            reason = f"text at offset {output.offset} came when {self.text_chars} was expected"
            return Mismatch("gap", f"sequence {self.sequence}: {reason}")
        return None

    def _differing(self, output: SequenceOutput, repeated: int) -> Mismatch | None:
        start = output.position - 1
        for index, token in enumerate(output.tokens[:repeated]):
            if token != self.tokens[start + index]:
                reason = f"position {start + index + 1} is {token}, but {self.tokens[start + index]} was accepted"
                return Mismatch("conflict", f"sequence {self.sequence}: {reason}")
        if output.finish is not None and len(output.tokens) <= repeated and repeated > 0:
            reason = f"it ends at position {start + len(output.tokens)}, where it was accepted to go on"
            return Mismatch("conflict", f"sequence {self.sequence}: {reason}")
        return None

    def _rest(self, output: SequenceOutput, repeated: int) -> SequenceOutput | Mismatch:
        known = self.text_chars - output.offset
        if known > len(output.text):
            reason = f"its text ends at {output.offset + len(output.text)}, but {self.text_chars} were accepted"
            return Mismatch("conflict", f"sequence {self.sequence}: {reason}")
        rest = msgspec.structs.replace(
            output,
            position=self.next_position,
            tokens=output.tokens[repeated:],
            text=output.text[known:],
            offset=self.text_chars,
            logprobs=output.logprobs[repeated:],
        )
        self.tokens.extend(rest.tokens)
        self.text_chars += len(rest.text)
        self.finish = rest.finish
        return rest
