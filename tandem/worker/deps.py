"""The dependencies of a worker: the seams that its process, or the simulator, hands to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kv_transfer.fetch import KvLoadSpec, OnAllReceived, OnHandOffFailed
from kv_transfer.fetch_progress import FetchReport, PrefillStatus
from kv_transfer.tiers.protocol import Tiers
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import Entropy
from tandem.core.messages import Hello, RemoteKv
from tandem.core.metrics import Meter, NullMeter
from tandem.core.spans import NullRecorder, Recorder
from tandem.engine.hashing import InlineHashing, OpenHashing
from tandem.engine.protocol import BlockSpace, Engine, EngineInfo, FetchJob
from tandem.worker.detokenizer import Decoder
from tandem.worker.settings import HostSettings


class KvFetcher(Protocol):
    """Fetches the blocks of a request (`kv_transfer.fetch.Fetcher`)."""

    async def fetch(
        self,
        job: FetchJob,
        remote: RemoteKv | None,
        bringing: KvLoadSpec,
        whole: OnAllReceived,
        prefilled: PrefillStatus | None,
        failed: OnHandOffFailed,
    ) -> FetchReport:
        """Fetch blocks. Always ends with `fetch_ended` on the block space, also when cancelled. `whole` receives the
        report of what a hand-off has brought once its last block has landed. `prefilled` says once the hand-off's
        prompt is computed. `failed` is called before the engine computes what a hand-off has not brought."""
        ...


OpenTiers = Callable[[BlockSpace, EngineInfo], Tiers]


class Publisher(Protocol):
    """Tells an index beyond the links what this worker has (`kv_transfer.index.redis_publisher.RedisPublisher`)."""

    def become(self, hello: Hello) -> None:
        """The worker introduces itself like this from now on, perhaps as a new incarnation."""
        ...

    def change(self, tier: str, stored: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Names that a tier has gained and lost, in order. Never waits."""
        ...

    async def run(self) -> None:
        """Publish until cancelled."""
        ...

    async def close(self) -> None:
        """Withdraw what was published, which no longer holds. Bounded."""
        ...


OpenPublisher = Callable[[Hello, Callable[[], Mapping[str, Sequence[bytes]]]], Publisher]
"""Makes a publisher from the worker's `Hello` and a function that gives the names of everything it has, by tier."""


@dataclass(frozen=True)
class WorkerDeps:
    """The seams a worker stands on."""

    engine: Engine
    decoder: Decoder
    clock: Clock
    entropy: Entropy
    recorder: Recorder = field(default_factory=NullRecorder)
    meter: Meter = field(default_factory=NullMeter)
    deadlines: Deadlines = field(default_factory=Deadlines)
    settings: HostSettings = field(default_factory=HostSettings)
    open_tiers: OpenTiers | None = None
    """Makes the worker's own tiers once its engine has loaded; None when nothing is kept below its pool."""
    open_publisher: OpenPublisher | None = None
    """Makes the publisher that reports to an index beyond the links which blocks the worker has; None when there is
    no such index."""
    open_hashing: OpenHashing = InlineHashing
    """Makes who checks blocks that arrive."""
    hardware: str = ""
    """The hardware that the engine computes on (`Hello.hardware`)."""
    node: str = ""
    """The node on which it shares memory (`kv.node`)."""
    kv_problems: tuple[str, ...] = ()
    """Why transports of KV are slower than what they are for, one sentence each; routers show them."""
