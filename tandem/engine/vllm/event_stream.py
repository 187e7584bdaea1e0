"""vLLM's events about its prefix cache, in order and whole: a ZeroMQ subscription with replay of what was missed."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

import zmq
import zmq.asyncio

from tandem.engine.vllm.arguments import Sockets
from tandem.engine.vllm.names import EventBatch, decode_batch
from tandem.process.logs import event

_log = logging.getLogger(__name__)
_REPLAY_S: Final = 2.0
_SEQUENCE_BYTES: Final = 8
_BACKLOG: Final = 100_000


class EventStream:
    """The stream of event batches from the first one on. vLLM publishes without asking whether its subscribers keep
    up."""

    def __init__(self, sockets: Sockets) -> None:
        self._context = zmq.asyncio.Context()
        self._sockets = sockets
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, _BACKLOG)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(sockets.events)
        self._next = 0

    async def batches(self) -> AsyncIterator[EventBatch | None]:
        """Every batch once, in order; None where some are lost for good. Ends only by cancellation."""
        while True:
            _topic, number, payload = await self._socket.recv_multipart()
            sequence = int.from_bytes(number, "big")
            if sequence > self._next:
                async for found in self._missed(sequence):
                    yield found
            if sequence >= self._next:
                self._next = sequence + 1
                yield decode_batch(payload)

    async def _missed(self, until: int) -> AsyncIterator[EventBatch | None]:
        """The batches from the next one to before `until`."""
        first = self._next
        found = await self._replay(first)
        event(_log, "kv_events_missed", first=first, until=until, replayed=len(found))
        for sequence in range(first, until):
            if sequence not in found:
                yield None
                break
        for sequence in sorted(found):
            if self._next <= sequence < until:
                self._next = sequence + 1
                yield decode_batch(found[sequence])

    async def _replay(self, first: int) -> dict[int, bytes]:
        """The batches from number `first` on that vLLM still has, by number."""
        found: dict[int, bytes] = {}
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._sockets.replay)
        try:
            async with asyncio.timeout(_REPLAY_S):
                await socket.send_multipart((b"", first.to_bytes(_SEQUENCE_BYTES, "big")))
                while True:
                    _empty, _topic, number, payload = await socket.recv_multipart()
                    sequence = int.from_bytes(number, "big", signed=True)
                    if sequence < 0:
                        return found
                    found[sequence] = payload
        except TimeoutError:
            return found
        finally:
            socket.close()

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
