"""Services that the configuration of routers declares: read, refused, and taken away when it is silent about them."""

from typing import Any

import msgspec
import pytest

from tandem.apps.ray.declared import DECLARED, SERVICES, declared_of, no_more, user_config
from tandem.core.errors import TandemError
from tandem.spec.reading import service_of

APP = "tandem"


def plain(name: str, **spec: object) -> dict[str, Any]:
    pools = [{"name": "all", "role": "unified", "replicas": 1, "drainSeconds": 7}]
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name},
        "spec": {"engine": {"type": "simulated"}, "pools": pools, **spec},
    }


def test_what_is_declared_is_read_again_and_marked() -> None:
    told = service_of(plain("chat"))
    (found,) = declared_of(user_config([told]), APP)
    assert found.metadata.annotations == {DECLARED: APP}
    assert found.spec == told.spec
    assert declared_of({SERVICES: []}, APP) == ()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "expected one key `services`"),
        ({SERVICES: [], "model": "x"}, "expected one key `services`"),
        ({SERVICES: [{"kind": "Pod"}]}, r"services\[0\]\."),
        ({SERVICES: [plain("a", store={"dram": "1Gi"})]}, r"services\[0\]\.spec.store is not for Ray"),
        ({SERVICES: [plain("a"), plain("a")]}, "a is listed twice"),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(config: dict[str, Any], why: str) -> None:
    with pytest.raises(TandemError, match=why):
        declared_of(config, APP)


def test_only_an_application_s_own_services_go_with_its_declaration() -> None:
    (mine,) = declared_of({SERVICES: [plain("mine")]}, APP)
    (other,) = declared_of({SERVICES: [plain("other")]}, "default")
    by_hand = service_of(plain("by-hand"))
    there = [msgspec.to_builtins(each) for each in (mine, other, by_hand)]
    assert list(no_more(there, (), APP)) == [("mine", 12.0)]
    assert list(no_more(there, (mine,), APP)) == []
