"""The CRDs are what an API server takes, and say what the types say."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from control_plane.crds.chart import files
from control_plane.crds.definitions import definitions
from control_plane.crds.schema import schema_of
from tandem.spec.cluster_rules import CLUSTER_RULES
from tandem.spec.reading import service_of
from tandem.spec.rules import RULES
from tests.cluster import bad_model_services as cases
from tests.cluster.good_model_services import GOOD
from tests.worlds.structural import refused
from tools.generate_crds import differences, version

DEFINITIONS = definitions()
DESCRIBED_BY_THEIR_NAMES = re.compile(r"status\..*|spec\.engine$|.*Replicas$|spec\.role$")


def schema(plural: str) -> dict[str, Any]:
    (one,) = DEFINITIONS[plural]["spec"]["versions"]
    return dict(one["schema"]["openAPIV3Schema"])


def parts(one: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside, itself included."""
    yield path, one
    for key, inner in one.get("properties", {}).items():
        yield from parts(inner, f"{path}.{key}".lstrip("."))
    for key in ("items", "additionalProperties"):
        if key in one:
            yield from parts(one[key], f"{path}[]")


EVERY = [(plural, path, one) for plural in DEFINITIONS for path, one in parts(schema(plural))]
OURS = [(plural, path, one) for plural, path, one in EVERY if path.startswith(("spec", "status"))]


def test_the_files_are_up_to_date() -> None:
    assert differences(files(version())) == []


def test_everything_is_structural() -> None:
    for _, path, one in EVERY:
        assert not {"$ref", "anyOf", "oneOf", "allOf", "nullable", "not"} & one.keys(), path
        loose = "x-kubernetes-int-or-string" in one or "x-kubernetes-preserve-unknown-fields" in one
        assert "type" in one or loose, path


def test_everything_has_a_bound() -> None:
    for _, path, one in OURS:
        kind = one.get("type")
        if kind == "string":
            assert "maxLength" in one or "enum" in one, path
        if kind == "array":
            assert "maxItems" in one, path
        if kind == "object":
            assert "properties" in one or "maxProperties" in one, path


def test_patterns_are_known_to_re2() -> None:
    """No look-around and no back-references."""
    for _, path, one in EVERY:
        assert not re.search(r"\(\?[^:]|\\[1-9]", one.get("pattern", "")), path


def test_every_rule_is_in_a_crd() -> None:
    there = {rule["rule"] for _, _, one in EVERY for rule in one.get("x-kubernetes-validations", ())}
    assert there == {rule.cel for rule in (*RULES, *CLUSTER_RULES)}
    for _, path, one in EVERY:
        for rule in one.get("x-kubernetes-validations", ()):
            assert "\n" not in rule["message"]
            assert len(rule["message"]) <= 2048
            if "fieldPath" in rule:
                assert rule["fieldPath"].removeprefix(".") in one["properties"], (path, rule)


def test_fields_are_described() -> None:
    silent = [
        path
        for _, path, one in OURS
        if "description" not in one and not path.endswith("[]") and not DESCRIBED_BY_THEIR_NAMES.fullmatch(path)
    ]
    assert silent == []


def test_a_type_without_a_bound_is_a_mistake() -> None:
    class Loose(msgspec.Struct):
        """Nothing."""

        text: str

    with pytest.raises(TypeError, match=r"Loose\.text has no bound"):
        schema_of(Loose)


def test_pools_can_be_scaled() -> None:
    (one,) = DEFINITIONS["enginepools"]["spec"]["versions"]
    assert one["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    replicas = one["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]
    assert (replicas["default"], replicas["minimum"]) == (1, 0), "without a number nothing can be scaled"


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_each_tells_how_it_is(plural: str) -> None:
    definition = DEFINITIONS[plural]
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "status" in definition["spec"]["versions"][0]["subresources"]
    conditions = schema(plural)["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert set(conditions["items"]["required"]) == {"type", "status", "reason", "message", "lastTransitionTime"}
    columns = [column["name"] for column in definition["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert {"Ready", "Age"} <= set(columns)


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_good_services_fit_the_schema(text: str) -> None:
    plain = yaml.safe_load(text)
    assert list(refused(schema("modelservices"), plain)) == []
    # With every default written out, as an operator or a person may send it back.
    whole = msgspec.to_builtins(service_of(plain))
    assert list(refused(schema("modelservices")["properties"]["spec"], without_nothing(whole["spec"]))) == []


@pytest.mark.parametrize("case", cases.BAD, ids=lambda case: case.name)
def test_bad_services_do_not_unless_a_rule_refuses_them(case: cases.Bad) -> None:
    by_schema = list(refused(schema("modelservices"), case.service()))
    by_rule = any(case.said in rule.sentence for rule in RULES)
    assert bool(by_schema) != by_rule


def without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nothing(inner) for key, inner in value.items() if inner is not None}
    return [without_nothing(one) for one in value] if isinstance(value, list | tuple) else value
