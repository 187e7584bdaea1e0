"""Parsed outputs of one generation, from a given place of the answer on.

A parser must be fed a sequence from its beginning. When a client comes back, the parser is fed everything again, and
only what lies beyond the client's place is reported.
"""

from collections.abc import Callable, Sequence

import msgspec

from router.api.openai.parsed import finish_reason
from router.api.parsers.delta import ParsedDelta
from router.api.parsers.output import OutputParser


class ParsedOutput(msgspec.Struct, frozen=True):
    """What one output adds to the answer. The client has `skipped` of its tokens already."""

    said: ParsedDelta
    finish: str | None
    skipped: int = 0


class _Sequence(msgspec.Struct):
    """`fed` characters have been read."""

    output_parser: OutputParser
    after: int
    chars: int
    fed: int = 0

    def skip(self, position: int, tokens: int, text: str) -> tuple[int, str]:
        """Read what the client has: how many of the tokens it has, and the text that it has not."""
        if position > self.after:
            return 0, text
        skipped = min(tokens, self.after - position + 1)
        known = len(text) if skipped == tokens else max(0, min(len(text), self.chars - self.fed))
        self.output_parser.feed(text[:known], ParsedDelta())
        self.fed += known
        return skipped, text[known:]


class GenerationParser:
    """The voices of a generation's sequences. The client has `after` tokens of each, whose text is `chars` long."""

    def __init__(
        self,
        output_parser: Callable[[int], OutputParser],
        base: int,
        after: Sequence[int],
        chars: Sequence[int] | None = None,
    ) -> None:
        """`output_parser` makes that of a sequence by its number in the answer; the first one here has number
        `base`."""
        placed = zip(after, chars if chars is not None else after, strict=True)
        self._sequences = [_Sequence(output_parser(base + number), *place) for number, place in enumerate(placed)]

    def hear(self, sequence: int, position: int, tokens: int, text: str, finish: str | None) -> ParsedOutput | None:
        """Parse the text of `tokens` tokens from `position` on and give what it adds; None when the client has all of
        them."""
        one = self._sequences[sequence]
        skipped, text = one.skip(position, tokens, text)
        if tokens and skipped == tokens:
            return None
        said = ParsedDelta()
        one.fed += len(text)
        one.output_parser.feed(text, said)
        if finish is None:
            return ParsedOutput(said, None, skipped)
        one.output_parser.finish(said)
        return ParsedOutput(said, finish_reason(finish, one.output_parser), skipped)
