"""One live worker incarnation behind one link: its attempts by handle, its heartbeat and its view."""

from typing import Protocol

from router.fleet.kv_feed import KvFeed
from router.placement.view import WorkerView
from tandem.core.errors import TandemError
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    Draining,
    Hello,
    Load,
    Ping,
    Pong,
    RouterMessage,
    SequenceOutput,
    SnapshotRequest,
    StepOutputs,
    WorkerCommand,
)
from tandem.service.link import RouterLink


class Target(Protocol):
    """Whoever owns a handle: one attempt's work on one worker."""

    def on_output(self, output: SequenceOutput, now: float) -> None: ...

    def on_failed(self, code: str, message: str) -> None: ...

    def on_report(self, report: AttemptReport) -> None: ...

    def on_lost(self, reason: str) -> None:
        """The link is gone, and with it everything of this handle."""
        ...


class PeerListener(Protocol):
    """What the rest of the router hears about its workers, on the event loop."""

    def joined(self, peer: "Peer") -> None:
        """A worker can be used."""
        ...

    def left(self, peer: "Peer", reason: str) -> None:
        """A worker cannot be used any more; its handles are gone and their targets were told."""
        ...

    def drains(self, peer: "Peer") -> None:
        """A worker takes no new work; what runs there goes on."""
        ...

    def loaded(self, peer: "Peer", load: Load) -> None:
        """A worker's load figures are new, and already in its view."""
        ...


class Peer:
    """Handles count up from 1 on this link and are never reused, so a message for a dead attempt finds nobody."""

    __slots__ = (
        "_next_handle",
        "_pings",
        "_targets",
        "address",
        "alive",
        "asked_at",
        "epoch",
        "feed",
        "heard_at",
        "hello",
        "joined_at",
        "link",
        "view",
        "worker_id",
    )

    def __init__(self, address: str, link: RouterLink, hello: Hello, view: WorkerView, now: float) -> None:
        self.address = address
        self.link = link
        self.hello = hello
        self.view = view
        self.worker_id = hello.worker_id
        self.epoch = hello.epoch
        self.feed = KvFeed(hello.epoch)
        self.alive = True
        self.joined_at = now
        self.heard_at = now
        self.asked_at = now
        self._targets: dict[int, Target] = {}
        self._next_handle = 1
        self._pings = 0

    def open(self, target: Target) -> int:
        """A new handle whose messages go to `target`."""
        handle = self._next_handle
        self._next_handle += 1
        self._targets[handle] = target
        return handle

    def close(self, handle: int) -> None:
        """Nobody listens to the handle any more."""
        self._targets.pop(handle, None)

    def targets(self) -> tuple[tuple[int, Target], ...]:
        """All open handles."""
        return tuple(self._targets.items())

    def send(self, command: WorkerCommand) -> None:
        self.link.tokens.send(command)

    def ping(self) -> None:
        self._pings += 1
        self.link.tokens.send(Ping(self._pings))

    def ask_snapshot(self, now: float) -> None:
        """Ask for the whole set of names; until it has come the index knows nothing of this worker."""
        self.asked_at = now
        self.link.state.send(SnapshotRequest())

    def take(self, messages: tuple[RouterMessage, ...], now: float) -> bool:
        """Hand the messages of one frame to their targets. True when the worker has begun to drain.

        Raises `stale_epoch` when the worker is another incarnation, `protocol_mismatch` on a second `Hello`.
        """
        self.heard_at = now
        targets = self._targets
        drains = False
        for message in messages:
            if type(message) is StepOutputs:
                for output in message.outputs:
                    target = targets.get(output.handle)
                    if target is not None:
                        target.on_output(output, now)
            else:
                drains = self._take_other(message) or drains
        return drains

    def lost(self, reason: str) -> None:
        """Tell every target, once."""
        self.alive = False
        targets, self._targets = self._targets, {}
        for target in targets.values():
            target.on_lost(reason)

    def _take_other(self, message: RouterMessage) -> bool:
        match message:
            case AttemptReport() if (target := self._targets.get(message.handle)) is not None:
                target.on_report(message)
            case AttemptFailed() if (target := self._targets.get(message.handle)) is not None:
                target.on_failed(message.code, message.message)
            case Pong() if message.epoch != self.epoch:
                raise TandemError("stale_epoch", f"{self.worker_id} is another incarnation now")
            case Draining():
                self.view.draining = True
                return True
            case Hello():
                raise TandemError("protocol_mismatch", f"{self.worker_id} introduced itself twice on one link")
            case _:
                pass
        return False
