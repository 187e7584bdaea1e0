"""Settings of a router process: the common ones on top, the rest nested by concern."""

from dataclasses import dataclass, field
from pathlib import Path

from router.front.settings import FrontSettings
from router.settings import RouterSettings
from tandem.core.errors import TandemError
from tandem.service.tls import TlsSettings


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
    workers: tuple[str, ...] = ()
    """Addresses of workers that are always there."""
    workers_file: Path | None = None
    """A file with the addresses of workers, watched for changes."""
    model: str = "demo"
    """`demo`, a model directory or a hub id: whose tokenizer and chat template to use."""
    model_name: str | None = None
    """What clients and workers call the model; by default its own name."""
    engine: str = "torch"
    """`simulated` models have no files; everything else reads those of `model`."""
    cache: Path | None = None
    """Where hub models are downloaded to."""
    ticket_key_file: Path | None = None
    api_keys: Path | None = None
    """A key file; without one everybody may ask."""
    name: str = "router"
    """How workers know this router."""
    events: bool = False
    """Print machine-readable event lines on standard output."""
    otlp_endpoint: str | None = None
    """Where spans go; by default what OpenTelemetry's own variables say."""
    link_tls: TlsSettings = field(default_factory=TlsSettings)
    front: FrontSettings = field(default_factory=FrontSettings)
    core: RouterSettings = field(default_factory=RouterSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        for name in ("port", "grpc_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise TandemError("bad_setting", f"{name} = {value}: expected 0 to 65535", param=name)
        if not self.workers and self.workers_file is None:
            raise TandemError("bad_setting", "one of workers and workers_file is needed", param="workers_file")
