"""Checks of one pull's blocks that run in threads while later blocks arrive; verified blocks are reported in
order."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kv_transfer.transport.protocol import BlockReceived
from kv_transfer.verify import Refusal, Verifier, judge
from tandem.engine.hashing import DigestJob, is_over


@dataclass(frozen=True)
class _Check:
    """Blocks that are checked together."""

    landed: Sequence[BlockReceived]
    names: Sequence[bytes]
    job: DigestJob


class PullVerification:
    """The checks of one pull from incarnation `epoch`.

    `believed(landed, words)` is called for each block that verifies, in the order in which they were added; after the
    first that does not, which is `refused` then, `stopped` is called and nothing is believed any more. Slots of
    blocks that were added and neither believed nor refused may still be read until `close` returns.
    """

    def __init__(
        self,
        verifier: Verifier,
        epoch: int,
        believed: Callable[[BlockReceived, bytes], None],
        stopped: Callable[[], None],
    ) -> None:
        self.refused: tuple[BlockReceived, Refusal] | None = None
        self._verifier = verifier
        self._epoch = epoch
        self._believed = believed
        self._stopped = stopped
        self._checks: deque[_Check] = deque()
        self._over = False
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, landed: Sequence[BlockReceived], names: Sequence[bytes], blocks: Sequence[memoryview]) -> None:
        """Blocks have arrived: `names[i]` was asked for and `blocks[i]` are its bytes."""
        if self._over:
            return
        check = _Check(landed, names, self._verifier.begin(blocks))
        self._checks.append(check)
        self._empty.clear()
        if check.job.over.done():
            self._advance()
        else:
            check.job.over.add_done_callback(lambda _: self._advance())

    async def drained(self) -> None:
        """Wait until everything that was added is believed, or something is refused."""
        if not self._over:
            await self._empty.wait()

    def stop(self) -> None:
        """Nothing is believed any more."""
        self._over = True
        for check in self._checks:
            check.job.give_up()
        self._empty.set()

    async def close(self) -> None:
        """As `stop`. When this returns no thread reads the blocks any more."""
        self.stop()
        while self._checks:
            await is_over(self._checks[0].job)
            self._checks.popleft()

    def _advance(self) -> None:
        """Tell of what is over, as far as all before it is."""
        while self._checks and not self._over and self._checks[0].job.over.done():
            self._tell(self._checks.popleft())
        if not self._checks:
            self._empty.set()

    def _tell(self, check: _Check) -> None:
        handles = [each.handle for each in check.landed]
        found = judge(check.job.words(), handles, epoch=self._epoch, names=check.names)
        for landed, words in zip(check.landed, found, strict=True):
            if isinstance(words, Refusal):
                self.refused = (landed, words)
                self.stop()
                self._stopped()
                return
            self._believed(landed, words)
