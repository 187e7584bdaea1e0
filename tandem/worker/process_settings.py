"""Settings of a worker process: the common ones on top, the rest nested by concern."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kv_transfer.index.redis_settings import RedisSettings
from kv_transfer.tiers.settings import TierSettings
from kv_transfer.transport.limits import ConnectionLimits
from kv_transfer.transport.locked_memory import PROBE_BYTES
from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.presets import SimulatedSettings
from tandem.engine.torch.settings import TorchSettings
from tandem.engine.vllm.exchange import refuse_contradiction
from tandem.engine.vllm.settings import VllmSettings
from tandem.engine.vllm.stage_settings import StageSettings
from tandem.link.address import TCP
from tandem.process.tls_settings import KV_TLS_MODES, TlsSettings
from tandem.worker.identity import MODES
from tandem.worker.settings import HostSettings

ENGINES: Final = ("torch", "vllm", "simulated")


@dataclass(frozen=True)
class LinkSettings:
    """Where routers reach this worker. `advertise` is the host to hand out when it is not the one bound to."""

    transport: str = TCP
    """Always `tcp`: links over gRPC are gone."""
    bind: str = "127.0.0.1:0"
    advertise: str | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)

    def __post_init__(self) -> None:
        if self.transport != TCP:
            problem = f"transport = {self.transport!r}: links run over {TCP} alone; leave the setting out"
            raise TandemError("bad_setting", problem, param="transport")


@dataclass(frozen=True)
class KvSettings:
    """How KV blocks travel: transports (`shm`, `nixl`, `tcp`) in order of preference, and where `tcp` listens; `nixl`
    does so for its control connections."""

    transports: tuple[str, ...] = ("shm", "tcp")
    host: str = "127.0.0.1"
    port: int = 0
    nixl_port: int = 0
    shm_directory: str | None = None
    """Where workers of one machine find each other's sockets for `shm`; by default `socket_directory`."""
    node: str = ""
    """Name of the machine whose workers share `shm_directory`. `shm` addresses with another name are passed over;
    without one every worker may be on this machine."""
    advertise: str | None = None
    tls: str = "auto"
    """Whether `tcp` is encrypted, with the certificates of links: `auto` where there are some, `on` insists on them,
    `off` never. Workers that see it differently do not pull from each other."""
    lock_probe: int = PROBE_BYTES
    """Bytes that a worker with `nixl` tries to lock when it starts, as registering memory with an RDMA device does;
    0 tries nothing."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)

    def __post_init__(self) -> None:
        if self.lock_probe < 0:
            problem = f"lock_probe = {self.lock_probe}: expected bytes, or 0 to try nothing"
            raise TandemError("bad_setting", problem, param="lock_probe")
        if self.tls not in KV_TLS_MODES:
            problem = f"tls = {self.tls!r}: expected {', '.join(KV_TLS_MODES)}"
            raise TandemError("bad_setting", problem, param="tls")


@dataclass(frozen=True)
class LogSettings:
    """`format` is `human` or `json`."""

    format: str = "human"
    level: str = "info"


@dataclass(frozen=True)
class WorkerSettings:
    """Everything a worker process can be told. `role` is `prefill`, `decode`, `unified` or `auto`."""

    worker_id: str
    role: str
    revision: str = ""
    engine: str = "torch"
    """`torch`, `vllm` or `simulated`."""
    model: str = "demo"
    """`demo`, a model directory or a hub id."""
    model_name: str | None = None
    dtype: str | None = None
    block_tokens: int | None = None
    kv_memory: int | None = None
    """Bytes of KV memory."""
    ticket_key_file: Path | None = None
    socket_directory: str | None = None
    metrics_bind: str | None = None
    """`host:port` where Prometheus can scrape this worker; None serves none, port 0 lets the system choose."""
    events: bool = False
    """Print machine-readable event lines on standard output."""
    bind: bool = True
    """Keep to the CPUs, the memory and the network devices next to the GPUs, but for what was chosen outside."""
    drills: bool = False
    """Let `tandem drill` cause faults in this worker, by signal."""
    otlp_endpoint: str | None = None
    """Where spans go; by default what OpenTelemetry's own variables say."""
    link: LinkSettings = field(default_factory=LinkSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    deadlines: Deadlines = field(default_factory=Deadlines)
    host: HostSettings = field(default_factory=HostSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    torch: TorchSettings = field(default_factory=TorchSettings)
    vllm: VllmSettings = field(default_factory=VllmSettings)
    stage: StageSettings = field(default_factory=StageSettings)
    """Host memory through which vLLM's blocks are exchanged."""
    tiers: TierSettings = field(default_factory=TierSettings)
    simulated: SimulatedSettings = field(default_factory=SimulatedSettings)
    index: RedisSettings = field(default_factory=RedisSettings)
    """Where else than to its links the worker tells which blocks it has."""
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        self._require("engine", self.engine in ENGINES, " or ".join(ENGINES))
        self._require("role", self.role in MODES, "prefill, decode, unified or auto")
        if not self.worker_id:
            raise TandemError("bad_setting", "worker_id is empty", param="worker_id")
        if self.scheduler.queue_s not in (SchedulerSettings.queue_s, self.deadlines.queue_s):
            problem = (
                f"scheduler.queue_s = {self.scheduler.queue_s:g}: set deadlines.queue_s, which is for both sides"
            )
            raise TandemError("bad_setting", problem, param="scheduler.queue_s")
        nodes = self.vllm.nodes.count
        if nodes > 1 and (self.role not in ("unified", "auto") or self.engine != "vllm"):
            problem = f"vllm.nodes.count = {nodes}: only workers of role unified or auto with engine vllm span nodes"
            raise TandemError(
                "bad_setting", f"{problem}; ranks on other nodes hand no KV over", param="vllm.nodes.count"
            )
        if self.engine == "vllm":
            # One of role auto that hands nothing over serves like a unified one.
            refuse_contradiction(self.vllm.kv_transfer, "unified" if self.role == "auto" else self.role)
        if self.role in ("prefill", "auto") and self.ticket_key_file is None:
            problem = f"a worker of role {self.role} needs the ticket key file: it hands KV over"
            raise TandemError("bad_setting", problem, param="ticket_key_file")

    @property
    def follows(self) -> bool:
        """Whether this process holds ranks of a worker that is on another node, and is no worker itself."""
        return self.vllm.nodes.rank > 0

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise TandemError("bad_setting", f"{name} = {getattr(self, name)!r}: expected {what}", param=name)
