"""Which certificates a part of the platform shows and believes. What is made of them: `tls.py`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError

KV_TLS_MODES: Final = ("auto", "on", "off")
"""Whether KV over TCP is encrypted; with `auto` it is wherever certificates are set."""


@dataclass(frozen=True)
class TlsSettings:
    """PEM files. All three are set, or none: both ends of a link show a certificate of the same authority."""

    certificate: Path | None = None
    private_key: Path | None = None
    authority: Path | None = None
    server_name: str | None = None
    """The name in the certificates of those we dial, where that is not their address: pods have new ones all the
    time, and one name for all of them."""
    client_names: tuple[str, ...] = ()
    """Names of which the certificate of each client that dials us must have one; without any every certificate of the
    authority will do."""

    def __post_init__(self) -> None:
        given = [path is not None for path in (self.certificate, self.private_key, self.authority)]
        if any(given) and not all(given):
            raise TandemError("bad_setting", "certificate, private_key and authority belong together", param="tls")
