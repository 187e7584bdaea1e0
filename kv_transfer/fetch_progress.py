"""How far one fetch has come: a value machine without I/O or clock. Times are the receiver's clock, seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.transport import Alive, PullEvent
from tandem.core.deadlines import Deadlines
from tandem.engine.protocol import FetchJob, FetchTarget, FirstTokens


@dataclass(frozen=True)
class FetchReport:
    """What a fetch brought.

    `seconds` is the whole fetch, `gb_per_s` the rate while the holder had blocks to give. `exposed_s` is how long
    blocks kept arriving after the last time this side had to wait for prefill: what the transfer cost beyond it.
    `reason` is None when every block landed, and `code` is empty; `passed_over` says of each transport that was
    tried before `path` why it did not carry.
    """

    blocks: int
    bytes: int
    seconds: float
    path: str
    gb_per_s: float
    first: FirstTokens | None
    reason: str | None
    exposed_s: float
    acknowledged: bool = False
    code: str = ""
    passed_over: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """`reason` without its code."""
        return (self.reason or "").removeprefix(f"{self.code}: ")


@dataclass
class FetchProgress:
    """State of one fetch over one or more pulls. `started` is when it was asked for."""

    job: FetchJob
    deadlines: Deadlines
    block_bytes: int
    started: float
    path: str = ""
    first: FirstTokens | None = None
    failed: dict[str, str] = field(default_factory=dict)
    """Why the transports that were tried did not carry, by scheme."""
    _landed: dict[int, None] = field(default_factory=dict)
    _heard: float = field(init=False)
    _moved: float = field(init=False)
    _burst: float = field(init=False)
    _ended: float = field(init=False)
    _waiting_since: float | None = None
    _waited_s: float = 0.0

    def __post_init__(self) -> None:
        self._heard = self._moved = self._burst = self._ended = self.started

    @property
    def blocks(self) -> int:
        return len(self._landed)

    @property
    def whole(self) -> bool:
        return len(self._landed) == len(self.job.targets)

    def open_targets(self) -> tuple[FetchTarget, ...]:
        """What has not landed, in prompt order."""
        return tuple(target for target in self.job.targets if target.index not in self._landed)

    def heard(self, event: PullEvent, now: float) -> None:
        """The holder gave a sign of life."""
        self._heard = now
        if isinstance(event, Alive):
            if self._waiting_since is None:
                self._waiting_since = now
            return
        self._moved = now
        if self._waiting_since is not None:
            self._waited_s += now - self._waiting_since
            self._waiting_since, self._burst = None, now
        if isinstance(event, FirstTokens):
            self.first = event

    def landed(self, index: int, now: float) -> None:
        """Block `index` is verified."""
        self._landed[index] = None
        self._ended = now

    def deadline(self) -> float:
        """When to give up: `Alive` keeps a silent transfer going only as long as prefill may take to progress."""
        return min(self._heard + self.deadlines.transfer_progress_s, self._moved + self.deadlines.prefill_progress_s)

    def report(self, reason: str | None, acknowledged: bool, now: float, code: str = "") -> FetchReport:
        """The end of it. `code` is that of the error behind `reason`."""
        seconds = now - self.started
        moved = self.blocks * self.block_bytes
        active_s = self._ended - self.started - self._waited_s
        return FetchReport(
            blocks=self.blocks,
            bytes=moved,
            seconds=seconds,
            path=self.path,
            gb_per_s=moved / active_s / 1e9 if active_s > 0 else 0.0,
            first=self.first,
            reason=reason,
            exposed_s=max(0.0, self._ended - self._burst),
            acknowledged=acknowledged,
            code=code,
            passed_over=tuple(f"{path}: {why}" for path, why in self.failed.items() if path != self.path),
        )


def routes(addresses: Sequence[str], schemes: Sequence[str], attempts_max: int) -> tuple[str, ...]:
    """Addresses to try in order: the holder's preference among the transports there are; the last one once more."""
    usable = [address for address in addresses if address.partition("://")[0] in schemes]
    return tuple([*usable, usable[-1]][:attempts_max]) if usable else ()
