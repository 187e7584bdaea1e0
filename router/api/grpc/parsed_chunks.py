"""Chunks of a gRPC answer that is read for reasoning and tool calls."""

from collections.abc import Callable, Sequence

import msgspec

from router.api.grpc.chunk_stream import ChunkStream
from router.api.parsed_output import GenerationParser
from router.api.parsers.delta import ParsedDelta
from router.api.parsers.output import OutputParser
from router.api.response import PACE_EVERY, ApiResponse, Part
from router.generation import Usage
from tandem.core.messages import SequenceOutput

EncodeDelta = Callable[[SequenceOutput, ParsedDelta], bytes]
"""Encodes an output whose text was parsed as the delta."""


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

    def output(self, output: SequenceOutput) -> None:
        heard = self._hearing.hear(output.sequence, output.position, len(output.tokens), output.text, output.finish)
        if heard is None:
            return
        skipped = heard.skipped
        self.delivered += len(output.tokens) - skipped
        self.exchange.first_output()
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(output.sequence, output.position)
        rest = msgspec.structs.replace(
            output, tokens=output.tokens[skipped:], logprobs=output.logprobs[skipped:], finish=heard.finish
        )
        self._stream.push(self._encode(rest, heard.said))
