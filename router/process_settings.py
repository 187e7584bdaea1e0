"""Settings of a router process: the common ones on top, the rest nested by concern."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kv_transfer.index.redis_settings import RedisSettings
from router.api.openai.defaults import AUTO as FROM_FILE
from router.api.openai.defaults import check_setting
from router.api.parsers.dialect import AUTO, ParserSettings
from router.api.settings import ApiSettings
from router.settings import AdmissionSettings, PlacementSettings, RouterSettings
from tandem.core.errors import TandemError
from tandem.process.tls_settings import TlsSettings
from tandem.spec.tenants import read_tenants

MAX_STREAMS: Final = 1_000_000


@dataclass(frozen=True)
class LogSettings:
    """`format` is `human` or `json`."""

    format: str = "human"
    level: str = "info"


@dataclass(frozen=True)
class ProcessSettings:
    """Everything a router process can be told."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 lets the system choose."""
    grpc_port: int | None = None
    """None serves no public gRPC; 0 lets the system choose."""
    peer_port: int | None = None
    """Where the control plane asks, over TLS and with a certificate (those of `link_tls`); it is the same interface.
    None listens nowhere else; 0 lets the system choose."""
    metrics_bind: str | None = None
    """`host:port` where `/health`, `/ready` and `/metrics` are answered without a key, and on connections that no
    client of `port` can take; port 0 lets the system choose. None listens nowhere else."""
    workers: tuple[str, ...] = ()
    """Addresses of workers that are always there."""
    workers_file: Path | None = None
    """A file with the addresses of workers, watched for changes."""
    kubernetes: bool = False
    """Find services and workers in a cluster: by `kubeconfig`, or as a pod with its service account. The services say
    which models there are, so `model` and what belongs to it is not looked at."""
    kubeconfig: Path | None = None
    namespace: tuple[str, ...] = ()
    """Where to look; may be given several times. Without one everywhere."""
    tenants: tuple[str, ...] = ()
    """Names that the models of each namespace may have, `NAMESPACE=PATTERN` each; without any every name."""
    tenant_keys: Path | None = None
    """A directory with a file of ticket keys for each namespace of `tenants`, by its name, which its workers have."""
    tenant_credentials: Path | None = None
    """A directory with a directory of credentials for each namespace of `tenants`, by its name, in which each file is
    what an environment variable would be. With it the process's own are for no tenant."""
    text_files: Path | None = None
    """A directory with a directory `NAMESPACE/NAME` for each service whose tokenizer the router cannot get from where
    the service says."""
    model: str = "demo"
    """`demo`, a model directory or a hub id: whose tokenizer and chat template to use."""
    model_name: str | None = None
    """What clients and workers call the model; by default its own name."""
    engine: str = "torch"
    """`simulated` models have no files; everything else reads those of `model`."""
    tool_parser: str = AUTO
    """In which form the model writes tool calls: `hermes`, `llama3_json`, `mistral`; `auto` looks at its chat
    template; with `none` they stay text."""
    reasoning_parser: str = AUTO
    """`think` when the model reasons in such tags before it answers; `auto` and `none` as above."""
    chat_template: str | None = None
    """A file of the model's directory, or any other, whose template replaces the model's own."""
    generation_config: str = FROM_FILE
    """What requests that leave it open are drawn with: `auto` as the model's generation_config.json says, `vllm` with
    vLLM's neutral values."""
    cache: Path | None = None
    """Where hub models are downloaded to."""
    ticket_key_file: Path | None = None
    api_keys: Path | None = None
    """A key file; without one everybody may ask."""
    max_streams: int | None = None
    """Requests that this router holds at once. What follows from it: `core.admission.requests_max` as many,
    `queued_max` a quarter of it, `core.placement.sequences_per_worker_max` as many, within what each worker computes
    at once (its `scheduler.max_sequences`), and `front.connections_max` twice as many. Each of them that is set to
    anything but its default stays as it is."""
    name: str = "router"
    """How workers know this router."""
    events: bool = False
    """Print machine-readable event lines on standard output."""
    otlp_endpoint: str | None = None
    """Where spans go; by default what OpenTelemetry's own variables say."""
    index: RedisSettings = field(default_factory=RedisSettings)
    """Where else to look for blocks."""
    link_tls: TlsSettings = field(default_factory=TlsSettings)
    front: ApiSettings = field(default_factory=ApiSettings)
    core: RouterSettings = field(default_factory=RouterSettings)
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def parsers(self) -> ParserSettings:
        """How answers are read. Raises `bad_setting` for a parser that there is not."""
        return ParserSettings(self.tool_parser, self.reasoning_parser)

    def __post_init__(self) -> None:
        _ = self.parsers
        read_tenants(self.tenants)
        check_setting("generation_config", self.generation_config)
        if self.max_streams is not None and not 1 <= self.max_streams <= MAX_STREAMS:
            problem = f"max_streams = {self.max_streams}: expected 1 to {MAX_STREAMS}"
            raise TandemError("bad_setting", problem, param="max_streams")
        for name in ("port", "grpc_port", "peer_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise TandemError("bad_setting", f"{name} = {value}: expected 0 to 65535", param=name)
        if self.peer_port is not None and self.link_tls.certificate is None:
            raise TandemError("bad_setting", "peer_port: it needs the certificates of link_tls", param="peer_port")
        if self.kubernetes and self.workers_file is not None:
            raise TandemError("bad_setting", "kubernetes and workers_file exclude each other", param="workers_file")
        if not (self.workers or self.kubernetes) and self.workers_file is None:
            problem = "one of workers, workers_file and kubernetes is needed"
            raise TandemError("bad_setting", problem, param="workers_file")


def sized(settings: ProcessSettings) -> ProcessSettings:
    """The settings with every bound that follows from `max_streams`."""
    streams = settings.max_streams
    if streams is None:
        return settings
    core, front, admission, placement = settings.core, settings.front, AdmissionSettings(), PlacementSettings()
    of_requests = replace(
        core.admission,
        requests_max=_or(streams, core.admission.requests_max, admission.requests_max),
        queued_max=_or(max(1, streams // 4), core.admission.queued_max, admission.queued_max),
    )
    most = _or(streams, core.placement.sequences_per_worker_max, placement.sequences_per_worker_max)
    core = replace(core, admission=of_requests, placement=replace(core.placement, sequences_per_worker_max=most))
    connections = _or(2 * streams, front.connections_max, ApiSettings().connections_max)
    return replace(settings, core=core, front=replace(front, connections_max=connections))


def _or(follows: int, given: int, default: int) -> int:
    """What was given, or what follows where it is the default."""
    return follows if given == default else given
