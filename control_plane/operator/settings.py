"""Settings of the operator process."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from control_plane.objects.installation import Installation, tenants_of
from tandem.core.errors import TandemError
from tandem.process.tls_settings import TlsSettings
from tandem.spec.cluster_rules import has_credentials


@dataclass(frozen=True)
class LogSettings:
    """`format` is `human` or `json`."""

    format: str = "human"
    level: str = "info"


@dataclass(frozen=True)
class OperatorSettings:
    """Everything the operator can be told."""

    kubeconfig: str | None = None
    """File; without one the service account of this pod."""
    namespace: tuple[str, ...] = ()
    """Namespaces whose services are looked after; by default all."""
    router_url: tuple[str, ...] = ()
    """Routers to ask, as `http://host:port`; by default pods labelled app.kubernetes.io/name=tandem-router."""
    router_port: int = 8000
    """Of those pods."""
    router_key_file: Path | None = None
    """File with an API key, where routers ask for one."""
    router_tls: TlsSettings = field(default_factory=TlsSettings)
    """Certificates for asking routers, where they speak TLS."""
    own_namespace: str | None = None
    """Where this operator and its Lease are, and the routers it finds by itself; by default that of its pod."""
    lease: str = "tandem-operator"
    identity: str = ""
    """Another one for each replica; by default drawn."""
    bind: str = "[::]:8080"
    """`host:port` of /healthz, /readyz and /metrics; port 0 lets the system choose."""
    scaler_bind: str = "[::]:9090"
    """`host:port` of the scaler that KEDA asks."""
    scaler_tls: TlsSettings = field(default_factory=TlsSettings)
    workers: int = 4
    """Services that are looked at side by side."""
    look_up_models: bool = True
    """Ask the hub for a model's config.json, to refuse pools that cannot hold it before they start."""
    events: bool = False
    """Print machine-readable event lines on standard output."""
    installation: Installation = field(default_factory=Installation)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        for url in self.router_url:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                problem = f"router_url = {url!r}: expected http://host:port"
                raise TandemError("bad_setting", problem, param="router_url")
        if has_credentials(self.installation.redis_url or ""):
            problem = "redis_url has a user or a password: put the URL into a Secret and name that in redis_secret"
            raise TandemError("bad_setting", problem, param="installation.redis_url")
        tenants_of(self.installation)
        if self.workers < 1:
            raise TandemError("bad_setting", f"workers = {self.workers}: at least 1", param="workers")
