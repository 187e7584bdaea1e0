"""The receiving half of a channel, shared by every `Link` implementation, and the bounds of both halves."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandem.core.errors import TandemError

T = TypeVar("T")


@dataclass(frozen=True)
class LinkLimits:
    """Bounds of one channel. What does not fit closes the link; nothing is ever dropped silently.

    `queue_*` bound what was sent and not yet taken by the peer, `inbox_frames` what was received and not yet
    asked for. `frame_bytes` is where a tick's messages are cut into several frames. `flush_s` is how long a
    closing link may go on delivering what was sent before.
    """

    queue_messages: int = 65_536
    queue_bytes: int = 64 << 20
    inbox_frames: int = 256
    frame_bytes: int = 1 << 20
    flush_s: float = 1.0


class Inbox(Generic[T]):
    """Received frames, one reader. After `end` the frames that came before are still given, then `link_lost`."""

    def __init__(self) -> None:
        self._frames: deque[tuple[T, ...]] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._reason: str | None = None
        self.messages = 0
        """Messages received and not yet taken."""

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def ended(self) -> bool:
        return self._reason is not None

    def put(self, frame: tuple[T, ...]) -> None:
        """Add a frame; frames without messages and frames after the end are dropped."""
        if frame and self._reason is None:
            self._frames.append(frame)
            self.messages += len(frame)
            _wake(self._arrived)

    def end(self, reason: str, *, drop: bool) -> None:
        """Nothing more comes. `drop` forgets what is unread: this side closed the link itself."""
        if drop:
            self._frames.clear()
            self.messages = 0
        if self._reason is None:
            self._reason = reason
        _wake(self._arrived)

    async def get(self) -> tuple[T, ...]:
        """The next frame. Raises `link_lost` with the reason of `end`."""
        while not self._frames:
            if self._reason is not None:
                raise TandemError("link_lost", self._reason)
            assert self._arrived is None, "a channel has one reader"
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            finally:
                self._arrived = None
        frame = self._frames.popleft()
        self.messages -= len(frame)
        return frame


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
