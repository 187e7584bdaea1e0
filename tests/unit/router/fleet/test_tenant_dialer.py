"""Workers of several tenants are dialed with what their own namespace has."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from kv_transfer.tickets import Keyring, TicketKey
from router.__main__ import open_tenant_keys
from router.api.auth import Keys
from router.api.chat_templates.templates import InlineTemplates
from router.fleet.services import MemberFacts, ServiceFacts, ServiceRegistry
from router.process_settings import ProcessSettings
from router.wiring import Wiring
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.metrics import NullMeter
from tandem.link.proof import LinkKeys
from tandem.link.protocol import WorkerLink
from tandem.link.servers import open_server
from tandem.process.settings import load_settings
from tandem.process.system import SystemClock
from tandem.process.tls_settings import TlsSettings

KEYS = {name: Keyring(TicketKey(name, name.encode() * 32)) for name in ("own", "a", "b")}


async def accept(link: WorkerLink) -> None:
    with suppress(TandemError):
        while True:
            await link.tokens.receive()


async def test_without_certificates_the_key_of_the_namespace_proves_a_link() -> None:
    """A worker of each key says that it is where a worker of the tenant b is."""
    settings = load_settings(ProcessSettings, ["--kubernetes", "--ticket_key_file=/unread", "--tenants=a=*,b=*"], {})
    tenants = {name: KEYS[name] for name in ("a", "b")}
    wiring = Wiring(settings, {}, InlineTemplates(SystemClock()), Keys(), KEYS["own"], tenant_keys=tenants)
    services = ServiceRegistry()
    dialer = wiring._dialer(SeededEntropy(1), services)
    for name, keyring in KEYS.items():
        server = open_server("127.0.0.1:0", None, TlsSettings(), 2.0, LinkKeys(keyring.secrets))
        address = await server.start(accept)
        services.tell([ServiceFacts("b/chat", "b/x")], [MemberFacts(address, "b/chat", "all", True)])
        if name == "b":
            (await dialer.dial(address, 5.0)).close("done")
        else:
            with pytest.raises(TandemError, match="does not hold the ticket key"):
                await dialer.dial(address, 5.0)
        services.tell([], [])
        if name == "own":
            (await dialer.dial(address, 5.0)).close("of no tenant")
        await server.stop()


def test_a_models_tickets_are_signed_with_the_key_of_its_namespace() -> None:
    settings = load_settings(ProcessSettings, ["--kubernetes", "--tenants=a=*,b=*"], {})
    tenants = {name: KEYS[name] for name in ("a", "b")}
    wiring = Wiring(settings, {}, InlineTemplates(SystemClock()), Keys(), KEYS["own"], tenant_keys=tenants)
    services = ServiceRegistry()
    services.tell([ServiceFacts("a/chat", "a/x"), ServiceFacts("b/chat", "b/x")], [])
    signing = wiring._signing(services)
    assert [signing(model) for model in ("a/x", "b/x", "nobody")] == [KEYS["a"], KEYS["b"], KEYS["own"]]


async def test_a_tenant_whose_key_cannot_be_read_is_not_served_and_the_others_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for namespace, written in (("a", "11" * 32), ("short", "11"), ("x", "x"), ("three", "11" * 32 + "\n22 33")):
        (tmp_path / namespace).write_text(written)
    settings = load_settings(
        ProcessSettings, ["--kubernetes", f"--tenant_keys={tmp_path}", "--tenants=a=*,short=*,x=*,three=*,none=*"], {}
    )
    with caplog.at_level(logging.ERROR):
        keys = open_tenant_keys(settings)
    assert keys.keys() == {"a"}
    reasons = {each.fields["namespace"]: each.fields["reason"] for each in caplog.records}  # type: ignore[attr-defined]
    assert reasons.keys() == {"short", "x", "three", "none"}
    assert reasons["x"].endswith("must hold hexadecimal keys, one per line")
    wiring = Wiring(settings, {}, InlineTemplates(SystemClock()), Keys(), KEYS["own"], tenant_keys=keys)
    tenants = wiring._fleet(SystemClock(), SeededEntropy(1), NullMeter(), None).services.tenants
    assert tenants.refusal("a", ["m"]) is None
    for namespace in reasons:
        said = tenants.refusal(namespace, ["m"])
        assert said is not None
        assert "cannot be read" in said
