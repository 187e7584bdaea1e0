"""Chunks of a gRPC answer that is read for reasoning and tool calls."""

from collections.abc import Callable, Sequence

from router.api.grpc.chunk_stream import ChunkStream
from router.api.parsed_output import GenerationParser
from router.api.parsers.delta import ParsedDelta
from router.api.parsers.output import OutputParser
from router.api.response import PACE_EVERY, ApiResponse, Part
from router.generation import Usage
from tandem.core.messages import TokenLogprob

EncodeDelta = Callable[
    [int, tuple[int, ...], ParsedDelta, tuple[TokenLogprob, ...], str | None, str | int | None],
    bytes,
]


class ParsedChunks(ChunkStream):
    """A `ChunkStream` for one generation, whose output is parsed from its beginning. The client already has the first
    `after` tokens and `chars` characters of each sequence."""

    from_start = True

    def __init__(
        self,
        encode: EncodeDelta,
        encode_usage: Callable[[Usage], bytes],
        output_parser: Callable[[int], OutputParser],
        place: tuple[Sequence[int], Sequence[int]],
        bytes_max: int,
        on_slow: Callable[[], None],
    ) -> None:
        """`place` is `after` and `chars`."""
        super().__init__(None, encode_usage, len(place[0]), bytes_max, on_slow)
        self._encode_delta = encode
        self._hearing = GenerationParser(output_parser, 0, *place)

    def part(self, exchange: ApiResponse, number: int) -> Part:
        assert number == 0, "a conversation is one prompt"
        return _ParsedChunkPart(self, exchange, self._sequences, self._hearing, self._encode_delta)


class _ParsedChunkPart(Part):
    """The sink."""

    __slots__ = ("_encode", "_hearing", "_stream")

    def __init__(
        self,
        stream: ChunkStream,
        exchange: ApiResponse,
        sequences: int,
        hearing: GenerationParser,
        encode: EncodeDelta,
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
