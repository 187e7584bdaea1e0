"""The text side of one output sequence: ids in; new text, its offset and stop-string finishes out.

Everything is a pure function of the prompt's tail and the output ids, so a worker that takes over replays the ids
another one produced and continues with the same held-back characters.
"""

from collections.abc import Sequence

import msgspec

from tandem.core.request import Stopping
from tandem.worker.detokenizer import Decoder, Detokenizer
from tandem.worker.stop_strings import StopMatcher


class TextPiece(msgspec.Struct, frozen=True, gc=False):
    """Text that `feed` released. `offset` is where it starts in the sequence's text; `stop` is the string found."""

    text: str
    offset: int
    stop: str | None


class TextStream:
    """Detokenizer and stop matcher of one sequence. Stop strings count from output token `min_tokens` on.

    `forced` ids are replayed first; of their text, the `sent_chars` characters the client already has are not
    released again, and anything beyond comes with the first piece.
    """

    __slots__ = (
        "_detokenizer",
        "_matched_as_it_comes",
        "_matcher",
        "_min_tokens",
        "_pending",
        "_suppressed",
        "released",
        "tokens",
    )

    def __init__(
        self,
        decoder: Decoder,
        prompt_tail: Sequence[int],
        stopping: Stopping,
        forced: Sequence[int] = (),
        sent_chars: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(decoder, prompt_tail)
        self._matcher = StopMatcher(stopping.stop)
        self._matched_as_it_comes = bool(stopping.stop)
        self._min_tokens = stopping.min_tokens
        self._pending = ""
        self.released = 0
        """Characters given out so far."""
        self._suppressed = sent_chars
        self.tokens = 0
        """Output tokens seen, forced ones included."""
        for token in forced:
            self._push(token)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matcher.matched

    def plain(self, token: int) -> str | None:
        """The text of the next output token when the token brings nothing else. Otherwise None, and the token was not
        taken: `feed` gives the rest."""
        if self._matched_as_it_comes or self._pending or self._suppressed > self.released:
            return None
        self.tokens += 1
        text = self._detokenizer.feed(token)
        self.released += len(text)
        return text

    def feed(self, token: int) -> TextPiece:
        """The next output token."""
        start, plain = self.released, self.plain(token)
        if plain is not None:
            return TextPiece(plain, start, None)
        self._push(token)
        return self._release()

    def skip(self, token: int) -> None:
        """The next output token, whose text another worker delivers."""
        self._push(token)
        self._suppressed = self.released + len(self._pending)

    def finish(self, token: int | None) -> TextPiece:
        """The sequence ends with `token` (None: its last token is an end token, which has no text).

        Everything held back is released, unless it turns out to complete a stop string.
        """
        if token is None:
            self.tokens += 1
        else:
            self._push(token)
        self._take(self._detokenizer.flush())
        if self._matcher.matched is None:
            self._pending += self._matcher.flush()
        return self._release()

    def _push(self, token: int) -> None:
        self.tokens += 1
        self._take(self._detokenizer.feed(token))

    def _take(self, text: str) -> None:
        self._pending += self._matcher.feed(text) if self.tokens >= self._min_tokens else text

    def _release(self) -> TextPiece:
        start = self.released
        text, self._pending = self._pending, ""
        self.released += len(text)
        hidden = min(max(self._suppressed - start, 0), len(text))
        return TextPiece(text[hidden:], start + hidden, self._matcher.matched)
