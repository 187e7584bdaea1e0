"""What a worker stands on: the seams its process, or the simulator, hands to it."""

from dataclasses import dataclass, field
from typing import Protocol

from kv_transfer.fetch_progress import FetchReport
from tandem.core.clock import Clock
from tandem.core.deadlines import Deadlines
from tandem.core.entropy import Entropy
from tandem.core.messages import RemoteKv
from tandem.core.metrics import Meter, NullMeter
from tandem.core.spans import NullRecorder, Recorder
from tandem.engine.protocol import Engine, FetchJob
from tandem.worker.detokenizer import Decoder
from tandem.worker.settings import HostSettings


class KvFetcher(Protocol):
    """Brings the blocks of a `decode` work (`kv_transfer.fetch.Fetcher`)."""

    async def fetch(self, job: FetchJob, remote: RemoteKv) -> FetchReport:
        """Always ends with `fetch_ended` on the block space, also when cancelled."""
        ...


@dataclass(frozen=True)
class Parts:
    """The seams a worker stands on."""

    engine: Engine
    decoder: Decoder
    clock: Clock
    entropy: Entropy
    recorder: Recorder = field(default_factory=NullRecorder)
    meter: Meter = field(default_factory=NullMeter)
    deadlines: Deadlines = field(default_factory=Deadlines)
    settings: HostSettings = field(default_factory=HostSettings)
