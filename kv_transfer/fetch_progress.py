"""Progress of a fetch with one origin, and the outcome of all origins: values without I/O or clock.

Times are the receiver's clock, seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from kv_transfer.transport.protocol import Alive, PullEvent
from tandem.core.deadlines import Deadlines
from tandem.engine.protocol import FetchJob, FetchTarget, FirstTokens


@dataclass(frozen=True)
class OriginReport:
    """Blocks that one origin brought and that did not have to be computed for this request.

    `origin` is a tier of `tandem.core.tiers`, `path` the tier or the transport that carried them. `reason` says why
    some of the blocks that the origin was expected to have did not come; None when all did.
    """

    origin: str
    holder: str
    path: str
    blocks: int
    tokens: int
    bytes: int
    started: float
    seconds: float
    reason: str | None = None

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class FetchReport:
    """Result of a fetch: `brought` are the blocks from origins that already had them; everything else is about the
    hand-off, if there was one.

    `seconds` is the whole fetch, `gb_per_s` the rate while the holder had blocks to give. `exposed_s` is how long
    blocks kept arriving after the last time this side had to wait for prefill: what the transfer cost beyond it.
    `reason` is None when every block landed, and `code` is empty; `passed_over` gives for each transport that was
    tried before `path` the reason why it did not carry.
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
    started: float = 0.0
    ended: float = 0.0
    brought: tuple[OriginReport, ...] = ()
    handed_over: bool = True

    @property
    def message(self) -> str:
        """`reason` without its code."""
        return (self.reason or "").removeprefix(f"{self.code}: ")


class PrefillStatus:
    """Whether the prompt of a hand-off has been computed where its blocks come from, as far as its receiver knows."""

    def __init__(self) -> None:
        self.at: float | None = None
        """When the receiver learned that the prompt has been computed; None while it does not know."""
        self.changed: Callable[[], None] = ignore_change

    def known(self, now: float) -> None:
        """Record that the router says so, or that no worker computes the prompt there any more."""
        if self.at is None:
            self.at = now
            self.changed()


def ignore_change() -> None:
    """Ignore the change: no pull is running that would have to react to it."""


@dataclass
class FetchProgress:
    """Progress of one origin's part of a fetch, over one or more pulls. `started` is when the origin was asked,
    `until` when its part has to be over whatever the origin does."""

    job: FetchJob
    deadlines: Deadlines
    block_bytes: int
    started: float
    until: float = inf
    prefilled: PrefillStatus | None = None
    """Status of the prefill that computes the blocks; None where no worker computes them."""
    path: str = ""
    first: FirstTokens | None = None
    failed: dict[str, str] = field(default_factory=dict)
    """Why the transports that were tried did not carry, by scheme."""
    absent: str | None = None
    """Why a block that was expected did not come."""
    _landed: dict[int, str] = field(default_factory=dict)
    """Blocks that are verified, with the tier they came from where there are several."""
    _spent: dict[str, float] = field(default_factory=dict)
    """Seconds between one block and the next, by the tier of the latter."""
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
        """Targets that have not landed, in prompt order."""
        return tuple(target for target in self.job.targets if target.index not in self._landed)

    def moved(self, now: float) -> None:
        """Record that the transfer made progress at `now`."""
        self._heard = self._moved = now

    def heard(self, event: PullEvent, now: float) -> None:
        """The holder gave a sign of life."""
        self._heard = now
        if isinstance(event, Alive):
            if self._waiting_since is None:
                self._waiting_since = now
            return
        self.moved(now)
        if self._waiting_since is not None:
            self._waited_s += now - self._waiting_since
            self._waiting_since, self._burst = None, now
        if isinstance(event, FirstTokens):
            self.first = event

    def landed(self, index: int, now: float, tier: str = "") -> None:
        """Block `index` is verified."""
        self._landed[index] = tier
        self._spent[tier] = self._spent.get(tier, 0.0) + now - self._ended
        self._ended = now

    def missed(self, index: int, reason: str) -> None:
        """Block `index` will not come from this origin."""
        self.absent = self.absent or f"block {index}: {reason}"

    def deadline(self) -> float:
        """Time at which to give up. `Alive` keeps a silent transfer going for as long as a request may take. The
        router judges whether prefill makes progress. A holder that computes may be short of time to send `Alive`, and
        what it computes would be computed twice: while it computes, silence ends a pull only when the router should
        have ended it."""
        bounds, heard = self.deadlines, self._heard
        silent_s = bounds.transfer_progress_s
        if self.prefilled is not None:
            heard = max(heard, self.prefilled.at or heard)
            silent_s = silent_s if self.prefilled.at is not None else max(silent_s, bounds.unjudged_s)
        return min(heard + silent_s, self._moved + bounds.total_s, self.until)

    def answer_s(self, now: float) -> float:
        """Seconds that a holder may take to answer a pull, for which it needs to compute nothing."""
        bounds = self.deadlines
        return min(self.deadline() - now, max(bounds.transfer_progress_s, bounds.prefill_progress_s))

    def brought(self, origin: str, holder: str, reason: str | None) -> tuple[OriginReport, ...]:
        """Reports of the blocks that came, one per tier where they came from several; empty when no block came and
        there is no reason to give."""
        tokens: dict[str, list[int]] = {}
        for target in self.job.targets:
            if (tier := self._landed.get(target.index)) is not None:
                tokens.setdefault(tier, []).append(target.tokens)
        if not tokens and (reason or self.absent):
            tokens[""] = []
        return tuple(
            OriginReport(
                origin=tier or origin,
                holder=holder,
                path=self.path or tier,
                blocks=len(counts),
                tokens=sum(counts),
                bytes=len(counts) * self.block_bytes,
                started=self.started,
                seconds=self._spent.get(tier, 0.0),
                reason=reason or self.absent,
            )
            for tier, counts in tokens.items()
        )

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
            started=self.started,
            ended=now,
        )


def routes(addresses: Sequence[str], schemes: Sequence[str], attempts_max: int, node: str = "") -> tuple[str, ...]:
    """Addresses to try in order: the holder's preference among the transports there are; the last one once more.
    Shared memory of another node than `node` is none of them; without a name every node may be this one."""
    usable = [address for address in addresses if _usable(address, schemes, node)]
    return tuple([*usable, usable[-1]][:attempts_max]) if usable else ()


def _usable(address: str, schemes: Sequence[str], node: str) -> bool:
    scheme, _, rest = address.partition("://")
    elsewhere = bool(node) and scheme == "shm" and rest.partition("/")[0] not in ("", node)
    return scheme in schemes and not elsewhere
