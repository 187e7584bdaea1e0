"""A bounded queue of encoded chunks between the tokens of an exchange and a gRPC call."""

import asyncio
from collections import deque
from collections.abc import Callable

from router.api.response import PACE_EVERY, ApiResponse, Part
from router.generation import Usage
from tandem.core.errors import TandemError
from tandem.core.messages import SequenceOutput

EncodeChunk = Callable[[int, SequenceOutput], bytes]
"""Encodes an output under the index of its sequence in the answer."""


class ChunkStream:
    """An `Answer` that is read with `next`.

    It holds at most `bytes_max` for a client that does not read; beyond that it fails with `slow_client` and calls
    `on_slow`.
    """

    from_start = False

    def __init__(
        self,
        encode: EncodeChunk | None,
        encode_usage: Callable[[Usage], bytes],
        sequences: int,
        bytes_max: int,
        on_slow: Callable[[], None],
    ) -> None:
        """`encode` is None where `part` is made otherwise."""
        self._encode = encode
        self._encode_usage = encode_usage
        self._sequences = sequences
        self._limit = bytes_max
        self._bytes_max: float = bytes_max
        self._on_slow = on_slow
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._over = False
        self.error: TandemError | None = None
        """The error that the exchange failed with."""
        self._wake: asyncio.Future[None] | None = None

    def part(self, exchange: ApiResponse, number: int) -> Part:
        assert self._encode is not None, "nobody encodes chunks"
        return _ChunkPart(self, exchange, number, self._sequences, self._encode)

    def push(self, chunk: bytes) -> None:
        """Queue a chunk; dropped once the client is known to be too slow."""
        if self._over:
            return
        self._queue.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > self._bytes_max:
            self._queue.clear()
            self.fail(TandemError("slow_client", "the client does not read its stream fast enough"))
            asyncio.get_running_loop().call_soon(self._on_slow)
        self._rouse()

    def gather(self) -> None:
        """Take what comes whatever its size: it is what a client that has come back lacks."""
        self._bytes_max = float("inf")

    def flush(self) -> None:
        """Apply the bound again from now on, to the bytes beyond those queued now."""
        self._bytes_max = self._limit + self._bytes

    def finish(self, usage: Usage) -> None:
        self.push(self._encode_usage(usage))
        self._over = True
        self._rouse()

    def fail(self, error: TandemError) -> None:
        self._over = True
        self.error = self.error or error
        self._rouse()

    async def next(self) -> bytes | None:
        """The next chunk, or None after the last. Raises the error the exchange failed with, after its chunks."""
        while not self._queue:
            if self.error is not None:
                raise self.error
            if self._over:
                return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        chunk = self._queue.popleft()
        self._bytes -= len(chunk)
        return chunk

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class _ChunkPart(Part):
    """The sink of one generation."""

    __slots__ = ("_encode", "_stream")

    def __init__(
        self, stream: ChunkStream, exchange: ApiResponse, number: int, sequences: int, encode: EncodeChunk
    ) -> None:
        super().__init__(exchange, number, sequences)
        self._stream = stream
        self._encode = encode

    def output(self, output: SequenceOutput) -> None:
        self.delivered += len(output.tokens)
        self.exchange.first_output()
        if output.position % PACE_EVERY < 2:
            self.exchange.pace(self.base + output.sequence, output.position)
        self._stream.push(self._encode(self.base + output.sequence, output))
