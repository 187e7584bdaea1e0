"""Bad `ModelService`s are refused with their sentences, good ones are not, and CEL says what Python says."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import celpy
import msgspec
import pytest
import yaml

from tandem.core.errors import TandemError
from tandem.spec.checking import broken, changed
from tandem.spec.cluster_rules import CLUSTER_RULES
from tandem.spec.engine_pool import EnginePoolSpec
from tandem.spec.quantity import quantity
from tandem.spec.reading import service_of
from tandem.spec.rules import RULES, Rule
from tandem.spec.service import ModelService
from tests.cluster import bad_model_services as cases
from tests.cluster.good_model_services import GOOD

ENVIRONMENT = celpy.Environment()
ALL_RULES = (*RULES, *CLUSTER_RULES)


@cache
def program(rule: Rule) -> celpy.Runner:
    return ENVIRONMENT.program(ENVIRONMENT.compile(rule.cel))


def as_served(value: Any) -> Any:
    """Plain values as the API server has them: with defaults, without what is absent."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        fields = ((key, as_served(getattr(value, field))) for key, field in pairs)
        return {key: inner for key, inner in fields if inner not in (None, {}, []) or key == "pools"}
    if isinstance(value, list | tuple):
        return [as_served(one) for one in value]
    return value


def cel(rule: Rule, new: msgspec.Struct, old: msgspec.Struct | None = None) -> bool:
    known = {"self": celpy.json_to_cel(as_served(new))}
    if old is not None:
        known["oldSelf"] = celpy.json_to_cel(as_served(old))
    return bool(program(rule).evaluate(known))


def inside(value: Any) -> Iterator[msgspec.Struct]:
    """Every struct in a value, itself included."""
    if isinstance(value, msgspec.Struct):
        yield value
        for field in value.__struct_fields__:
            yield from inside(getattr(value, field))
    elif isinstance(value, tuple):
        for one in value:
            yield from inside(one)


def decoded() -> list[ModelService]:
    """Every service of the tables whose types are right."""
    services = [yaml.safe_load(text) for text in GOOD.values()]
    services += [case.service() for case in (*cases.BAD, *cases.BAD_IN_A_CLUSTER, *cases.BAD_UPDATES)]
    good: list[ModelService] = []
    for plain in services:
        try:
            good.append(msgspec.convert(plain, ModelService))
        except msgspec.ValidationError:
            continue
    return good


@pytest.mark.parametrize("case", cases.BAD, ids=lambda case: case.name)
def test_a_bad_service_is_refused_with_its_sentence(case: cases.Bad) -> None:
    with pytest.raises(TandemError) as caught:
        service_of(case.service())
    assert caught.value.code == "bad_setting"
    assert case.said in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("case", cases.BAD_IN_A_CLUSTER, ids=lambda case: case.name)
def test_a_password_in_a_service_is_for_files_alone(case: cases.Bad) -> None:
    service = service_of(case.service())
    (said,) = broken(service, rules=CLUSTER_RULES)
    assert said.startswith("spec.redis: redis has a user or a password")
    assert case.said in said
    assert str(service.spec.redis) not in said


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_service_is_taken(text: str) -> None:
    assert service_of(yaml.safe_load(text)).spec.pools


def test_what_the_bad_are_made_of_is_good() -> None:
    assert service_of(yaml.safe_load(cases.GOOD))


@pytest.mark.parametrize("case", cases.BAD_UPDATES, ids=lambda case: case.name)
def test_a_bad_update_is_refused_with_its_sentence(case: cases.BadUpdate) -> None:
    old, new = service_of(yaml.safe_load(cases.GOOD)), service_of(case.service())
    (said,) = changed(new, old)
    assert case.said in said
    assert not list(changed(old, old))


def test_pools_are_compared_by_name() -> None:
    old = service_of(yaml.safe_load(cases.GOOD))
    pools = tuple(reversed(old.spec.pools))
    new = msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, pools=pools))
    assert not list(changed(new, old))


def test_cel_says_what_python_says() -> None:
    outcomes: dict[str, set[bool]] = {}
    for service in decoded():
        for value in inside(service):
            for rule in ALL_RULES:
                if isinstance(value, rule.of) and not rule.transition:
                    holds = rule.holds(value)
                    assert cel(rule, value) == holds, (rule.cel, value)
                    outcomes.setdefault(rule.cel, set()).add(holds)
    one_sided = [rule.cel for rule in ALL_RULES if not rule.transition and outcomes[rule.cel] != {True, False}]
    assert one_sided == [], "each rule is kept by one case and broken by another"


def test_cel_says_what_python_says_of_updates() -> None:
    old = service_of(yaml.safe_load(cases.GOOD))
    for new in (old, *(service_of(case.service()) for case in cases.BAD_UPDATES)):
        pairs = [(new.spec.model, old.spec.model), *zip(new.spec.pools, old.spec.pools, strict=True)]
        for value, before in pairs:
            for rule in RULES:
                if rule.transition and isinstance(value, rule.of):
                    assert cel(rule, value, before) == rule.holds(value, before), rule.cel


def test_what_a_pool_belongs_to_stays() -> None:
    old = EnginePoolSpec("chat", "decode", "decode", 1)
    assert not list(changed(msgspec.structs.replace(old, replicas=9), old))
    for field, value in (("model_service_name", "talk"), ("pool", "other"), ("role", "prefill")):
        new = msgspec.structs.replace(old, **{field: value})
        (rule,) = (rule for rule in RULES if isinstance(new, rule.of) and not rule.holds(new, old))
        assert not cel(rule, new, old)
        assert cel(rule, old, old)


def test_sentences_have_paths() -> None:
    case = next(case for case in cases.BAD if case.name == "least above most")
    (said,) = broken(msgspec.convert(case.service(), ModelService))
    assert said == "spec.pools[0].autoscaling.minReplicas: minReplicas must not be above maxReplicas"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 512_000_000),
        ("512Mi", 536_870_912),
        ("1k", 1_000),
        ("1Ki", 1_024),
        ("2G", 2_000_000_000),
        ("2Gi", 2_147_483_648),
        ("1.5T", 1_500_000_000_000),
        ("1Ti", 1_099_511_627_776),
        ("7", 7),
        (7, 7),
        ("1m", None),
        ("", None),
    ],
)
def test_sizes_are_what_kubernetes_takes_them_for(text: str | int, size: int | None) -> None:
    assert quantity(text) == size
