"""Which names the models of a namespace may have."""

from typing import Any

import pytest

from tandem.core.errors import TandemError
from tandem.spec.tenants import EVERYBODY, names_of, read_tenants

TENANTS = read_tenants(["a=a/*", "a=common", "b=*-b-*"])


def service(namespace: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "chat", "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize(
    ("namespace", "name", "allowed"),
    [
        ("a", "a/x", True),
        ("a", "a/x/y", True),
        ("a", "a/", True),
        ("a", "common", True),
        ("a", "b/x", False),
        ("a", "xa/x", False),
        ("a", "a", False),
        ("a", "common-too", False),
        ("a", "a/x\nb", True),
        ("b", "the-b-model", True),
        ("b", "a/x", False),
        ("b", "theXbXmodel", False),
        ("c", "a/x", False),
    ],
)
def test_a_name_is_allowed_where_a_pattern_of_the_namespace_matches_all_of_it(
    namespace: str, name: str, allowed: bool
) -> None:
    assert (TENANTS.refusal(namespace, [name]) is None) is allowed
    assert EVERYBODY.refusal(namespace, [name]) is None


def test_characters_of_patterns_stand_for_themselves() -> None:
    tenants = read_tenants(["a=a.b/[x]?*"])
    assert tenants.refusal("a", ["a.b/[x]?1"]) is None
    for name in ("a-b/[x]?1", "a.b/xy1"):
        assert tenants.refusal("a", [name]) is not None


def test_a_refusal_says_what_may_be_and_what_to_do() -> None:
    assert TENANTS.refusal("a", ["a/x", "b/x"]) == (
        "namespace a may call its models a/* or common, and not 'b/x': take such a name, or have its pattern added "
        "to tenants in the chart's values"
    )
    assert TENANTS.refusal("c", []) == "namespace c is no tenant's: add it to tenants in the chart's values"


def test_every_name_that_clients_may_ask_for_counts() -> None:
    pools = [{"name": "p", "engine": {"adapters": ["/weights/sums", "sql=/weights/other"]}}, {"name": "d"}]
    obj = service("a", model={"name": "m", "aliases": ["n", "m"]}, engine={"adapters": ["sql=/x=y/z"]}, pools=pools)
    assert names_of(obj) == ("m", "n", "sql=/x", "sums", "sql")
    assert names_of(service("a")) == ("chat",), "without a name it is the service's"
    assert TENANTS.refused(service("a", model={"name": "a/x", "aliases": ["b/x"]})) is not None
    assert TENANTS.refused(service("a", model={"name": "a/x"}, engine={"adapters": ["b/x=/weights"]})) is not None
    assert EVERYBODY.refused(obj) is None


@pytest.mark.parametrize(
    "spec", [None, [], {"model": 1}, {"model": {"aliases": 7}, "pools": {"a": 1}, "engine": "x"}]
)
def test_what_cannot_be_read_has_no_names_but_the_services(spec: Any) -> None:
    assert names_of({"metadata": {"name": "chat"}, "spec": spec}) == ("chat",)


def test_aliases_and_adapters_that_are_no_text_name_nothing() -> None:
    """Whoever may write a service may write anything there: routers and operator go on."""
    odd = [{"name": "b/x"}, 7, None, ["b/x"], "a/y"]
    pools = [{"engine": {"adapters": odd}}, "pool", None]
    obj = service("a", model={"name": "a/x", "aliases": odd}, engine={"adapters": odd}, pools=pools)
    assert names_of(obj) == ("a/x", "a/y", "y")
    assert TENANTS.refused(obj) is not None


@pytest.mark.parametrize("entry", ["a", "=x", "a="])
def test_an_entry_without_a_pattern_is_refused(entry: str) -> None:
    with pytest.raises(TandemError, match="expected NAMESPACE=PATTERN"):
        read_tenants([entry])
