"""One router's link as the worker sees it."""

from dataclasses import dataclass

from tandem.core.messages import KvDelta, KvSnapshot, Load, RouterMessage
from tandem.service.link import WorkerLink


@dataclass
class Session:
    """An accepted link. `heard` is when the router last sent anything (worker's clock)."""

    session_id: int
    link: WorkerLink
    heard: float
    load_sent: float = float("-inf")
    open: bool = True

    def tell(self, message: RouterMessage) -> None:
        if self.open:
            self.link.tokens.send(message)

    def update(self, message: Load | KvDelta | KvSnapshot) -> None:
        if self.open:
            self.link.state.send(message)

    def close(self, reason: str) -> None:
        self.open = False
        self.link.close(reason)
