"""When certificates end is told of the files that are there now, in any form that OpenSSL writes."""

import ssl
import subprocess
from pathlib import Path

import pytest

from tandem.process.certificate_expiry import EXPIRY, expires_s, tell_expiry
from tandem.process.metrics import PrometheusMeter
from tandem.process.tls_settings import TlsSettings
from tests.worlds.certificates import HAS_OPENSSL, issue, make_certificates

pytestmark = pytest.mark.skipif(not HAS_OPENSSL, reason="openssl makes the certificates")


def told_by_openssl(file: Path) -> float:
    """As the program says it: `notAfter=Nov 30 12:00:00 2026 GMT`."""
    told = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate", "-in", str(file)], check=True, capture_output=True, text=True
    )
    return float(ssl.cert_time_to_seconds(told.stdout.strip().removeprefix("notAfter=")))


def signed_for(folder: Path, name: str, *arguments: str) -> Path:
    """A certificate that signs itself."""
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    subprocess.run(["openssl", "req", "-x509", *key, *arguments], cwd=folder, check=True, capture_output=True)
    return folder / f"{name}.pem"


def test_the_end_is_what_openssl_says(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "certificates")
    assert tls.certificate is not None
    assert expires_s(tls.certificate) == told_by_openssl(tls.certificate)
    # From 2050 on the time has another form.
    late = signed_for(tmp_path, "late", "-days", "20000")
    assert expires_s(late) == told_by_openssl(late) > 2_524_608_000


def test_of_a_chain_the_first_to_end_counts(tmp_path: Path) -> None:
    soon, late = signed_for(tmp_path, "soon", "-days", "3"), signed_for(tmp_path, "late", "-days", "300")
    chain = tmp_path / "chain.pem"
    chain.write_text(f"a comment\n{late.read_text()}{soon.read_text()}")
    assert expires_s(chain) == told_by_openssl(soon)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n",
     b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"],
)  # fmt: skip
def test_of_what_is_no_certificate_nothing_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "end.pem"
    file.write_bytes(content)
    assert expires_s(file) is None
    assert expires_s(tmp_path / "missing") is None


def test_a_certificate_that_is_replaced_counts_at_the_next_scrape(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    tls, meter = make_certificates(folder), PrometheusMeter()
    assert tls.certificate is not None
    tell_expiry(meter, tls, TlsSettings(), tls)
    line = f'{EXPIRY}{{certificate="{tls.certificate}"}} '
    (first,) = (each for each in meter.render().decode().splitlines() if each.startswith(line))
    assert float(first.split()[-1]) == told_by_openssl(tls.certificate)
    tls.certificate.write_bytes(signed_for(tmp_path, "other", "-days", "300").read_bytes())
    (second,) = (each for each in meter.render().decode().splitlines() if each.startswith(line))
    assert float(second.split()[-1]) == told_by_openssl(tls.certificate) > float(first.split()[-1])
    tls.certificate.unlink()
    assert line not in meter.render().decode()
    issue(folder)
    assert line in meter.render().decode()


def test_without_certificates_nothing_is_told() -> None:
    meter = PrometheusMeter()
    tell_expiry(meter, TlsSettings())
    assert f"{EXPIRY}{{" not in meter.render().decode()
