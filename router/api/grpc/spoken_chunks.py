"""Chunks of a gRPC answer that is read for reasoning and tool calls."""

from collections.abc import Callable, Sequence

from router.api.exchange import PACE_EVERY, Exchange, Part
from router.api.grpc.chunk_stream import ChunkStream
from router.api.hearing import Hearing
from router.api.parsers.said import Said
from router.api.parsers.speech import Voice
from router.generation import Usage
from tandem.core.messages import TokenLogprob

EncodeSaid = Callable[
    [int, tuple[int, ...], Said, tuple[TokenLogprob, ...], str | None, str | int | None],
    bytes,
]


class SpokenChunks(ChunkStream):
    """As `ChunkStream`, for one generation, told from its beginning; the client has what lies before `after` tokens
    and `chars` characters of each sequence."""

    from_start = True

    def __init__(
        self,
        encode: EncodeSaid,
        encode_usage: Callable[[Usage], bytes],
        voice: Callable[[int], Voice],
        place: tuple[Sequence[int], Sequence[int]],
        bytes_max: int,
        on_slow: Callable[[], None],
    ) -> None:
        """`place` is `after` and `chars`."""
        super().__init__(None, encode_usage, len(place[0]), bytes_max, on_slow)
        self._encode_said = encode
        self._hearing = Hearing(voice, 0, *place)

    def part(self, exchange: Exchange, number: int) -> Part:
        assert number == 0, "a conversation is one prompt"
        return _SpokenChunkPart(self, exchange, self._sequences, self._hearing, self._encode_said)


class _SpokenChunkPart(Part):
    """The sink."""

    __slots__ = ("_encode", "_hearing", "_stream")

    def __init__(
        self, stream: ChunkStream, exchange: Exchange, sequences: int, hearing: Hearing, encode: EncodeSaid
    ) -> None:
        super().__init__(exchange, 0, sequences)
        self._stream = stream
        self._hearing = hearing
        self._encode = encode

    def output(
        self,
        sequence: int,
        position: int,
        tokens: tuple[int, ...],
        text: str,
        logprobs: tuple[TokenLogprob, ...],
        finish: str | None,
        stop_reason: str | int | None,
    ) -> None:
        heard = self._hearing.hear(sequence, position, len(tokens), text, finish)
        if heard is None:
            return
        skipped = heard.skipped
        self.delivered += len(tokens) - skipped
        self.exchange.first_output()
        if position % PACE_EVERY < 2:
            self.exchange.pace(sequence, position)
        said, drawn = heard.said, logprobs[skipped:]
        self._stream.push(self._encode(sequence, tokens[skipped:], said, drawn, heard.finish, stop_reason))
