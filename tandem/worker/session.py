"""One router's link as the worker sees it."""

from dataclasses import dataclass, field
from typing import Final

from tandem.core.messages import KvDelta, KvSnapshot, Load, RouterMessage
from tandem.link.protocol import WorkerLink

_HANDLES_MAX: Final = 4096


@dataclass
class Session:
    """An accepted link. `heard` is the time of the router's last message (worker's clock)."""

    session_id: int
    link: WorkerLink
    heard: float
    load_sent: float = float("-inf")
    open: bool = True
    _opened: dict[int, None] = field(default_factory=dict)

    def opens(self, handle: int) -> bool:
        """Whether a command that opens this handle is the first to do so; the latest handles are remembered.

        A link repeats nothing, but a repeat below it must not start an attempt twice.
        """
        if handle in self._opened:
            return False
        self._opened[handle] = None
        if len(self._opened) > _HANDLES_MAX:
            del self._opened[next(iter(self._opened))]
        return True

    def tell(self, message: RouterMessage) -> None:
        if self.open:
            self.link.tokens.send(message)

    def update(self, message: Load | KvDelta | KvSnapshot) -> None:
        if self.open:
            self.link.state.send(message)

    def close(self, reason: str) -> None:
        self.open = False
        self.link.close(reason)
