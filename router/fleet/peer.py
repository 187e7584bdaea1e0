"""One live worker incarnation behind one link: its attempts by handle, its heartbeat and its view."""

from typing import Protocol

import msgspec

from router.fleet.kv_feed import KvFeed
from router.placement.view import WorkerView
from tandem.core.errors import TandemError
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    AttemptResumed,
    Cancel,
    Draining,
    Hello,
    Load,
    Ping,
    Pong,
    Progressed,
    Ready,
    ResumeNotFound,
    RouterMessage,
    SequenceOutput,
    SnapshotRequest,
    SplitPublished,
    StepOutputs,
    Transferred,
    WorkerCommand,
)
from tandem.link.protocol import RouterLink

News = Draining | Ready | SplitPublished | Transferred
"""The messages in which a worker reports on itself, rather than on one of its handles."""


class Target(Protocol):
    """The owner of a handle: one attempt's work on one worker."""

    def on_output(self, output: SequenceOutput, now: float) -> None: ...

    def on_failed(self, failure: AttemptFailed) -> None: ...

    def on_report(self, report: AttemptReport) -> None: ...

    def on_transferred(self, code: str) -> None:
        """Note that the fetch has ended, with whatever it brought; `code` is empty when it brought everything."""
        ...

    def on_progress(self, now: float, tokens: int) -> None:
        """The worker makes progress but has no output yet; `tokens` of the prompt are computed, or zero."""
        ...

    def on_claimed(self, claimed: AttemptResumed | None) -> None:
        """The answer to a `Claim`; None when there is nothing to claim."""
        ...

    def on_lost(self, reason: str) -> None:
        """The link is gone, and with it everything of this handle."""
        ...


class PeerListener(Protocol):
    """Receives what the rest of the router learns about its workers, on the event loop."""

    def joined(self, peer: "Peer") -> None:
        """A worker can be used."""
        ...

    def left(self, peer: "Peer", reason: str) -> None:
        """Note that a worker cannot be used any more. Its handles are gone and their targets have been notified."""
        ...

    def drains(self, peer: "Peer") -> None:
        """Note that a worker takes no new work, while its running work goes on."""
        ...

    def loaded(self, peer: "Peer", load: Load) -> None:
        """A worker's load figures are new, and already in its view."""
        ...

    def pair_opened(self, prefill: str, decode: str, reason: str) -> None:
        """Nothing gets from one worker to the other any more: what waits for that need not."""
        ...

    def split_published(self, peer: "Peer", published: SplitPublished) -> None:
        """A worker keeps this record of who takes prompts for others."""
        ...

    def services_changed(self) -> None:
        """The known services have changed: requests that wait may be placed elsewhere now."""
        ...


class Peer:
    """One live worker incarnation behind one link. Handles count up from 1 on this link and are never reused, so a
    message for a dead attempt reaches no target."""

    __slots__ = (
        "_addresses",
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
        "itl_target_s",
        "leaves_at",
        "link",
        "view",
        "worker_id",
    )

    def __init__(self, address: str, link: RouterLink, hello: Hello, view: WorkerView, now: float) -> None:
        self.address = address
        self.link = link
        self.hello = hello
        self._addresses: dict[str, tuple[str, ...]] = {}
        self.view = view
        self.worker_id = hello.worker_id
        self.epoch = hello.epoch
        self.feed = KvFeed(hello.epoch)
        self.alive = True
        self.heard_at = now
        self.view.ready_at = now if view.ready else None
        self.leaves_at: float | None = None
        """When the worker will have left; None until it reports that it drains."""
        self.itl_target_s: float | None = None
        """Seconds that the worker's steps may take, as last sent on this link (`Tune`)."""
        self.asked_at = now
        self._targets: dict[int, Target] = {}
        self._next_handle = 1
        self._pings = 0

    def open(self, target: Target) -> int:
        """A new handle whose messages go to `target`."""
        handle = self.reserve()
        self._targets[handle] = target
        return handle

    def reserve(self) -> int:
        """A new handle without a target."""
        handle = self._next_handle
        self._next_handle += 1
        return handle

    def pass_on(self, handle: int, target: Target) -> int:
        """Send later messages under the handle to another target."""
        assert handle in self._targets, f"handle {handle} of {self.worker_id} is not open"
        self._targets[handle] = target
        return handle

    def close(self, handle: int) -> None:
        """Drop the handle's target: later messages for the handle are ignored."""
        self._targets.pop(handle, None)

    def targets(self) -> tuple[tuple[int, Target], ...]:
        """All open handles."""
        return tuple(self._targets.items())

    def addresses_by(self, path: str) -> tuple[str, ...]:
        """The addresses from which the worker's blocks can be pulled, in the worker's own order except that transport
        `path` comes first."""
        found = self._addresses.get(path)
        if found is None:
            addresses = self.hello.addresses
            found = tuple(sorted(addresses, key=lambda address: address.partition("://")[0] != path))
            self._addresses[path] = found
        return found

    def send(self, command: WorkerCommand) -> None:
        self.link.tokens.send(command)

    def ping(self) -> None:
        self._pings += 1
        self.link.tokens.send(Ping(self._pings))

    def ask_snapshot(self, now: float) -> None:
        """Ask for the whole set of names; until it has come the index knows nothing of this worker."""
        self.asked_at = now
        self.link.state.send(SnapshotRequest())

    def take(self, messages: tuple[RouterMessage, ...], now: float) -> tuple[News, ...]:
        """Deliver the messages of one frame to their targets. Returns what the worker reports about itself, which is
        already in its view.

        Raises `stale_epoch` when the worker is another incarnation, `protocol_mismatch` on a second `Hello`.
        """
        self.heard_at = now
        targets = self._targets
        news: tuple[News, ...] = ()
        for message in messages:
            # The kinds that every request brings; the rest is seldom.
            if type(message) is StepOutputs:
                for output in message.outputs:
                    target = targets.get(output.handle)
                    if target is not None:
                        target.on_output(output, now)
            elif type(message) is AttemptReport:
                target = self._targets.get(message.handle)
                if target is not None:
                    target.on_report(message)
            elif type(message) is Transferred:
                target = self._targets.get(message.handle)
                if target is not None:
                    target.on_transferred(message.code)
                news += (message,)
            else:
                news += self._take_other(message)
        return news

    def lost(self, reason: str) -> None:
        """Tell every target, once."""
        self.alive = False
        targets, self._targets = self._targets, {}
        for target in targets.values():
            target.on_lost(reason)

    def _claimed(self, claimed: AttemptResumed) -> None:
        """Pass a claimed attempt to its target, or cancel the attempt if no target waits for it any more."""
        target = self._targets.get(claimed.handle)
        if target is not None:
            target.on_claimed(claimed)
        else:
            self.send(Cancel(claimed.handle))

    def _take_other(self, message: RouterMessage) -> tuple[News, ...]:
        match message:
            case Progressed():
                # A worker that does not tell of tokens, or not of all, has said that it gets on all the same.
                tokens = message.tokens + (0,) * (len(message.handles) - len(message.tokens))
                for handle, computed in zip(message.handles, tokens, strict=False):
                    if (moving := self._targets.get(handle)) is not None:
                        moving.on_progress(self.heard_at, computed)
            case AttemptFailed() if (target := self._targets.get(message.handle)) is not None:
                target.on_failed(message)
            case AttemptResumed():
                self._claimed(message)
            case ResumeNotFound() if (target := self._targets.get(message.handle)) is not None:
                target.on_claimed(None)
            case Pong() if message.epoch != self.epoch:
                raise TandemError("stale_epoch", f"{self.worker_id} is another incarnation now")
            case Draining():
                self.view.draining = True
                self.leaves_at = self.heard_at + message.within_s
                return (message,)
            case Ready():
                told = {"addresses": message.addresses, "canary": message.canary, "problems": message.problems}
                self.hello = msgspec.structs.replace(self.hello, unready=False, **told)
                self._addresses.clear()
                self.view.ready = True
                self.view.ready_at = self.heard_at if self.view.ready_at is None else self.view.ready_at
                return (message,)
            case SplitPublished():
                return (message,)
            case Hello() if (message.epoch, message.worker_id) == (self.epoch, self.worker_id):
                pass
            case Hello():
                raise TandemError("protocol_mismatch", f"{self.worker_id} introduced itself twice on one link")
            case _:
                pass
        return ()
