"""Until when the certificates of a process hold, read from its files whenever metrics are asked for.

A file that has been replaced counts at once, since the next connection takes it.
"""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tandem.process.metrics import PrometheusMeter
from tandem.process.tls_settings import TlsSettings

EXPIRY: Final = "tandem_certificate_expiry_timestamp_seconds"
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def tell_expiry(meter: PrometheusMeter, *tls: TlsSettings) -> None:
    """Export when the certificates end, by file."""
    files = {each.certificate for each in tls if each.certificate is not None}
    if files:
        meter.ask(EXPIRY, lambda: {(str(file),): found for file in files if (found := expires_s(file)) is not None})


def expires_s(file: Path) -> float | None:
    """The end of the first certificate to end in a PEM file, in seconds since the epoch; None while the file cannot
    be read."""
    try:
        found = _PEM.findall(file.read_text("ascii", "replace"))
        return min((_not_after(ssl.PEM_cert_to_DER_cert(each)) for each in found), default=None)
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> float:
    """The end of a certificate (RFC 5280, section 4.1): the second time in the fifth part of what is signed, or the
    fourth where the version is left out. Raises `ValueError` or `IndexError` for what is none."""
    _, certificate = _parts(der)[0]
    _, signed = _parts(certificate)[0]
    parts = [each for each in _parts(signed) if each[0] != _VERSION]
    kind, validity = parts[3]
    if kind != _SEQUENCE:
        raise ValueError("no validity")
    kind, end = _parts(validity)[1]
    text = end.decode("ascii")
    if kind == _UTC_TIME:
        # Two digits of the year, of 1950 to 2049.
        text = f"{'19' if text >= '50' else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Kind and content of each part, as DER has them one after the other."""
    at, found = 0, []
    while at < len(der):
        kind, length, at = der[at], der[at + 1], at + 2
        if length >= 0x80:
            digits = length & 0x7F
            length, at = int.from_bytes(der[at : at + digits]), at + digits
        if at + length > len(der):
            raise ValueError("it is cut off")
        found.append((kind, der[at : at + length]))
        at += length
    return found
