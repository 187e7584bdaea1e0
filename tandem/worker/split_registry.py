"""The record on which the routers of a service agree about which workers take prompts for others: every worker keeps
the latest.

Routers know nothing of each other, and each has a link to every worker. So workers lend the right to decide. A worker
accepts a new record only from the router whose record it keeps, until that router has been silent for the length of
its lease. The record means nothing to the worker itself.
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
        """Keep the record and send it to `routers`, or send the sender alone the record that is kept instead."""
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
