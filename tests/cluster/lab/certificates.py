"""Keys and certificates of one lab, made by the openssl command."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BOUND_S = 30.0
_DAYS = "7"
PROXY = "front-proxy-client"
"""As whom the API server passes requests on."""
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Files: who signs, what the API server shows, the key of service account tokens; and what it shows to servers
    that it passes requests on to, with who signs that."""

    authority: Path
    authority_key: Path
    server: Path
    server_key: Path
    tokens_key: Path
    tokens_public: Path
    proxy_authority: Path
    proxy_authority_key: Path
    proxy: Path
    proxy_key: Path


def make(directory: Path, addresses: Sequence[str], names: Sequence[str]) -> Certificates:
    """All of them; the server's is good for these addresses and DNS names."""
    files = Certificates(*(directory / name for name in _FILES))
    _authority("tandem-lab", files.authority, files.authority_key)
    _authority("tandem-lab-proxy", files.proxy_authority, files.proxy_authority_key)
    alternatives = ",".join([f"IP:{address}" for address in addresses] + [f"DNS:{name}" for name in names])
    _openssl(
        *("req", "-x509", *_CURVE, "-days", _DAYS, "-subj", "/CN=kube-apiserver"),
        *("-CA", str(files.authority), "-CAkey", str(files.authority_key)),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"subjectAltName={alternatives}"),
        *("-addext", "extendedKeyUsage=serverAuth", "-keyout", str(files.server_key), "-out", str(files.server)),
    )
    _openssl(
        *("req", "-x509", *_CURVE, "-days", _DAYS, "-subj", f"/CN={PROXY}"),
        *("-CA", str(files.proxy_authority), "-CAkey", str(files.proxy_authority_key)),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=clientAuth"),
        *("-keyout", str(files.proxy_key), "-out", str(files.proxy)),
    )
    _openssl("genrsa", "-out", str(files.tokens_key), "2048")
    _openssl("rsa", "-in", str(files.tokens_key), "-pubout", "-out", str(files.tokens_public))
    return files


_FILES = (
    *("ca.crt", "ca.key", "server.crt", "server.key", "tokens.key", "tokens.pub"),
    *("proxy-ca.crt", "proxy-ca.key", "proxy.crt", "proxy.key"),
)


def _authority(name: str, certificate: Path, key: Path) -> None:
    use = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    _openssl(
        *("req", "-x509", *_CURVE, "-days", _DAYS, "-subj", f"/CN={name}", *use),
        *("-keyout", str(key), "-out", str(certificate)),
    )


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=_BOUND_S)
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]}: {done.stderr.strip()[-500:]}")
