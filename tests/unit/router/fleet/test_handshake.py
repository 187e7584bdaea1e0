"""Which workers a router works with: of the service that their pods belong to, and of no other."""

from dataclasses import replace

import msgspec
import pytest

from router.fleet.handshake import check_hello
from router.fleet.services import MemberFacts, ServiceFacts, ServiceRegistry
from tandem.core.errors import TandemError
from tandem.core.messages import Adapter, Hello, RouterMessage
from tandem.spec.tenants import read_tenants
from tests.worlds.redis_stage import hello as any_hello

OF_A, OF_B, ALWAYS = "tcp://10.0.0.1:7400", "tcp://10.0.0.2:7400", "tcp://10.0.0.3:7400"


def registry() -> ServiceRegistry:
    services = ServiceRegistry()
    services.tenants = read_tenants(["aaa=a/*", "bbb=b/*"])
    members = [MemberFacts(OF_A, "aaa/chat", "all", True), MemberFacts(OF_B, "bbb/chat", "all", True)]
    services.tell([ServiceFacts("aaa/chat", "a/x"), ServiceFacts("bbb/chat", "b/x")], members)
    return services


def hello(model: str, *adapters: str) -> Hello:
    return msgspec.structs.replace(
        any_hello("w0"), model=model, adapters=tuple(Adapter(name, "0" * 64) for name in adapters)
    )


def refused(address: str, first: RouterMessage) -> str:
    with pytest.raises(TandemError) as caught:
        check_hello(address, first, registry())
    assert caught.value.code == "bad_setting"
    return caught.value.message


def test_workers_of_a_service_are_taken_as_what_they_are() -> None:
    for address, model in ((OF_A, "a/x"), (OF_B, "b/x"), (ALWAYS, "anything")):
        assert check_hello(address, hello(model), registry()).model == model


def test_a_pod_of_one_service_is_no_worker_of_another() -> None:
    assert refused(OF_A, hello("b/x")) == (
        f"worker w0 at {OF_A} is a pod of the service aaa/chat and says that it serves 'b/x'"
    )
    assert "says that it serves 'nobody'" in refused(OF_A, hello("nobody"))


def test_a_pods_worker_has_its_name_and_no_other() -> None:
    """Whoever comes first under the id of another's worker would keep that one out."""
    services = ServiceRegistry()
    services.tell([ServiceFacts("aaa/chat", "a/x")], [MemberFacts(OF_A, "aaa/chat", "all", True, "chat-all-0")])
    named = msgspec.structs.replace(hello("a/x"), worker_id="chat-all-0")
    assert check_hello(OF_A, named, services) == named
    for worker_id in ("chat-all-1", "", "chat-all-0 "):
        with pytest.raises(TandemError, match="called chat-all-0: a pod's worker has its name") as caught:
            check_hello(OF_A, msgspec.structs.replace(named, worker_id=worker_id), services)
        assert caught.value.code == "bad_setting"


@pytest.mark.parametrize("tokens", [0, -16])
def test_blocks_without_tokens_are_no_blocks(tokens: int) -> None:
    first = hello("a/x")
    wrong = msgspec.structs.replace(first, layout=replace(first.layout, block_tokens=tokens))
    for address in (OF_A, ALWAYS):
        with pytest.raises(TandemError, match=f"blocks of {tokens} tokens"):
            check_hello(address, wrong, registry())


def test_an_adapter_takes_no_name_of_another_tenant() -> None:
    assert check_hello(OF_A, hello("a/x", "a/sql"), registry()).adapters
    assert "its adapters cannot be served: namespace aaa may" in refused(OF_A, hello("a/x", "a/sql", "b/sql"))
