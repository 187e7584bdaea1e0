"""Settings of a store process."""

from dataclasses import dataclass, field
from pathlib import Path

from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tiers.settings import TierSettings
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.process.tls_settings import TlsSettings
from tandem.worker.process_settings import KvSettings, LinkSettings, LogSettings


@dataclass(frozen=True)
class CollectSettings:
    """What is brought from workers. A block is asked for `after_s` after a worker has told of it, so that hand-offs
    go first; `waiting_max` bounds the line, of which the oldest are given up."""

    after_s: float = 0.5
    waiting_max: int = 65536
    batch_blocks: int = 32
    pulls: int = 2
    pull_s: float = 10.0
    retry_s: float = 1.0
    """How long a worker that did not answer, or lost the link, is left alone."""


@dataclass(frozen=True)
class StoreSettings:
    """Everything a store can be told. Which workers there are it is told by a file, as routers are, or by pods."""

    worker_id: str = "kv-store-0"
    workers_file: Path | None = None
    kubernetes: str | None = None
    """Instead of a file: `NAMESPACE/NAME` of the service whose pods are the workers, in the cluster of this pod."""
    ticket_key_file: Path | None = None
    socket_directory: str | None = None
    revision: str = ""
    metrics_bind: str | None = None
    events: bool = False
    """Print machine-readable event lines on standard output."""
    identity_s: float = 600.0
    """How long to wait for a worker that says what model's blocks these are."""
    link: LinkSettings = field(default_factory=LinkSettings)
    link_tls: TlsSettings = field(default_factory=TlsSettings)
    """For links to workers."""
    kv: KvSettings = field(default_factory=KvSettings)
    tiers: TierSettings = field(default_factory=lambda: TierSettings(dram_bytes=1 << 30))
    """Whatever they say, a store writes everything through to NVMe, if it has some: it is to outlive its own end."""
    collect: CollectSettings = field(default_factory=CollectSettings)
    index: RedisSettings = field(default_factory=RedisSettings)
    """Where else than to its links the store tells which blocks it has."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        if self.ticket_key_file is None:
            problem = "ticket_key_file is not set: a store needs it"
            raise TandemError("bad_setting", problem, param="ticket_key_file")
        if (self.workers_file is None) == (self.kubernetes is None):
            raise TandemError("bad_setting", "workers_file or kubernetes: a store needs one", param="workers_file")
        if self.kubernetes is not None and not all(self.kubernetes.partition("/")):
            problem = f"kubernetes = {self.kubernetes!r}: expected NAMESPACE/NAME of a service"
            raise TandemError("bad_setting", problem, param="kubernetes")
        if self.tiers.dram_bytes <= 0:
            problem = f"tiers.dram_bytes = {self.tiers.dram_bytes}: a store serves from memory and needs some"
            raise TandemError("bad_setting", problem, param="tiers.dram_bytes")
