"""Workers of several tenants are dialed with what their own namespace has."""

from contextlib import suppress

import pytest

from kv_transfer.tickets import Keyring, TicketKey
from router.api.auth import Keys
from router.api.chat_templates.templates import InlineTemplates
from router.fleet.services import MemberFacts, ServiceFacts, ServiceRegistry
from router.process_settings import ProcessSettings
from router.wiring import Wiring
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
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
