"""Where the routers of a service agree on who takes prompts for others: every worker keeps the latest record.

Routers know nothing of each other, and every one has a link to every worker. So workers lend the right to decide: the
router whose record a worker keeps is the only one that it takes another from, until that one has been silent for the
length of its lease. What is kept says nothing to the worker itself.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from tandem.core.messages import PublishSplit, RouterMessage, SplitPublished, SplitRecord

_LEASE_MAX_S: Final = 60.0


class Listener(Protocol):
    """A router's session."""

    def tell(self, message: RouterMessage) -> None: ...


class SplitRegistry:
    """One worker's. Time is the worker's own clock."""

    def __init__(self) -> None:
        self.record: SplitRecord | None = None
        self._until = float("-inf")

    def publish(self, command: PublishSplit, sender: Listener, routers: Iterable[Listener], now: float) -> None:
        """Keep the record and tell `routers`, or tell the sender alone which one is kept instead."""
        if self._refuses(command.record, now):
            self.tell((sender,), now)
            return
        self.record = command.record
        self._until = now + min(_LEASE_MAX_S, max(0.0, command.lease_s))
        self.tell(routers, now)

    def tell(self, routers: Iterable[Listener], now: float) -> None:
        """Send `routers` the record that is kept, if there is one."""
        if self.record is not None:
            message = SplitPublished(self.record, max(0.0, self._until - now))
            for router in routers:
                router.tell(message)

    def _refuses(self, record: SplitRecord, now: float) -> bool:
        kept = self.record
        if kept is None:
            return False
        if record.holder != kept.holder:
            return now < self._until or (record.term, record.holder) < (kept.term, kept.holder)
        return record.term < kept.term
