"""Everything that the chart makes is what Kubernetes takes: no unknown field, no wrong type, nothing missing.

Against the types of the Kubernetes client always; against the JSON schemas of three versions where
`kubernetes-validate` is installed, which is too large to ask everybody for.
"""

import re
from typing import Any, Final

import pytest
from kubernetes import client

from tests.helm.charts import VARIANTS, Json, rendered

RENDERED: Final = rendered()
VERSIONS: Final = ("1.29", "1.33", "1.37")
_PLAIN: Final[dict[str, Any]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "bytes": str,
    "datetime": str,
}
OTHERS: Final = {"monitoring.coreos.com", "cert-manager.io"}
"""Kinds that the client has no types of."""


def model_of(obj: Json) -> type[Any]:
    """The client's class of an object."""
    group, _, version = obj["apiVersion"].rpartition("/")
    base = group.removesuffix(".k8s.io").split(".")[0] if group else ""
    prefixes = ["", "Core", base.capitalize(), "".join(part.capitalize() for part in group.split(".")[:1])]
    for prefix in prefixes:
        name = f"{prefix}{version.capitalize()}{obj['kind']}"
        if hasattr(client, name):
            found: type[Any] = getattr(client, name)
            return found
    raise AssertionError(f"the client knows no {obj['apiVersion']} {obj['kind']}")


def problems(value: Any, kind: str, path: str) -> list[str]:
    """What of a value does not fit a type as the client writes types."""
    if many := re.fullmatch(r"List\[(.+)\]", kind):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [each for i, item in enumerate(value) for each in problems(item, many[1], f"{path}[{i}]")]
    if mapping := re.fullmatch(r"Dict\[str, (.+)\]", kind):
        if not isinstance(value, dict):
            return [f"{path} is no mapping"]
        return [each for key, item in value.items() for each in problems(item, mapping[1], f"{path}.{key}")]
    if kind == "object":
        return []
    if kind in _PLAIN:
        # A boolean is an integer to Python.
        fits = isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if fits else [f"{path} is {value!r}, not of type {kind}"]
    return _of_model(value, getattr(client, kind), path)


def _of_model(value: Any, model: type[Any], path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path} is no mapping"]
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    found = [f"{path}.{key} is unknown" for key in value if key not in names]
    fields = model.model_fields.items()
    found += [
        f"{path}.{model.attribute_map[name]} is missing"
        for name, field in fields
        if _lacks(value, model, name, field)
    ]
    for key, inner in value.items():
        if key in names:
            found += problems(inner, model.openapi_types[names[key]], f"{path}.{key}")
    return found


def _lacks(value: Json, model: type[Any], name: str, field: Any) -> bool:
    return field.is_required() and model.attribute_map[name] not in value


def test_the_check_finds_what_is_wrong() -> None:
    bad = {"spec": {"replicas": "2", "template": {"spec": {"containers": [{"image": 1, "securty": {}}]}}}}
    found = problems(bad, "V1Deployment", "")
    container = ".spec.template.spec.containers[0]"
    assert set(found) == {
        ".spec.replicas is '2', not of type int",
        ".spec.selector is missing",
        f"{container}.image is 1, not of type str",
        f"{container}.securty is unknown",
        f"{container}.name is missing",
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_objects_are_of_the_types_of_kubernetes(variant: str) -> None:
    checked = 0
    for obj in RENDERED[variant]:
        if obj["apiVersion"].partition("/")[0] in OTHERS:
            continue
        assert problems(obj, model_of(obj).__name__, obj["metadata"]["name"]) == []
        checked += 1
    assert checked >= 5


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_pass_the_schemas_of_several_versions(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="checks with kubernetes-validate")
    for variant, objects in RENDERED.items():
        for obj in objects:
            if obj["apiVersion"].partition("/")[0] not in OTHERS:
                try:
                    validate.validate(obj, version, strict=True)
                except validate.ValidationError as error:
                    pytest.fail(f"{variant}: {obj['kind']} {obj['metadata']['name']}: {error}")
