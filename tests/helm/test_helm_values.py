"""The schema of the chart's values: strict, described, and in step with values.yaml and the documentation."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.helm.charts import CHART, NAMESPACE, RELEASE, VARIANTS, Json, helm, render
from tools.chart_values import PAGE, renewed, rows

SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text("utf-8"))
DEFAULTS: Final = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))


def resolved(schema: Json) -> Json:
    target = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**SCHEMA["$defs"][target], **schema} if target else schema


def parts(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema inside with its dotted path."""
    found = resolved(schema)
    yield path, found
    for name, inner in found.get("properties", {}).items():
        yield from parts(inner, f"{path}.{name}".lstrip("."))
    if isinstance(found.get("items"), dict):
        yield from parts(found["items"], f"{path}[]")


def leaves(values: Json, path: str = "") -> Iterator[str]:
    """Dotted paths of all values that are no mappings, or empty ones."""
    for name, value in values.items():
        here = f"{path}.{name}".lstrip(".")
        if isinstance(value, dict) and value:
            yield from leaves(value, here)
        else:
            yield here


_OPEN: Final = re.compile(r"\.(resources|podSecurityContext|securityContext)\.")
"""Parts of a pod as Kubernetes has them, of which values.yaml need not name each."""
PARTS: Final = dict(parts(SCHEMA))


def refused(values: Json) -> str:
    """What Helm says when it refuses the values."""
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError) as caught:
        chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return str(caught.value)


def test_everything_is_described_and_nothing_else_is_taken() -> None:
    for path, schema in PARTS.items():
        if path and not path.endswith("[]"):
            assert schema["description"].endswith("."), path
        if "properties" in schema:
            assert schema["additionalProperties"] is False, path


def test_defaults_and_schema_name_the_same_values() -> None:
    known = {path for path in PARTS if path and "[]" not in path} - {"global"}
    named = set(leaves(DEFAULTS))
    inner = re.compile(r"\.(resources|labels|monitoring|keda|dns)\.")
    assert {path for path in named if path not in known and not inner.search(path)} == set()
    single = {path for path in known if "properties" not in resolved(PARTS[path])}
    above = {path.rpartition(".")[0] for path in leaves(DEFAULTS)}
    assert {path for path in single - named - above if not _OPEN.search(path)} == set()


def wrong(schema: Json) -> Any:
    """A value of another type."""
    return ["no", "such", "thing"] if schema.get("type") != "array" else "no such thing"


def nested(path: str, value: Any) -> Json:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


@pytest.mark.parametrize("path", [path for path in PARTS if path and "[]" not in path and path != "global"])
def test_wrong_types_and_unknown_keys_are_refused_by_name(path: str) -> None:
    schema = resolved(PARTS[path])
    said = refused(nested(path, wrong(schema)))
    assert path.replace(".", "/") in said or path in said, said
    if "properties" in schema:
        said = refused(nested(path, {"noSuchKey": 1}))
        assert "noSuchKey" in said
        assert path.replace(".", "/") in said or path in said, said


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"nope": 1}, "nope"),
        ({"operator": {"replicas": 0}}, "replicas"),
        ({"operator": {"replicas": "two"}}, "replicas"),
        ({"router": {"service": {"port": 70000}}}, "port"),
        ({"router": {"service": {"type": "Fancy"}}}, "type"),
        ({"router": {"image": {"digest": "sha1:00"}}}, "digest"),
        ({"namespaces": ["Not_a_name"]}, "namespaces"),
        ({"namespaces": ["twice", "twice"]}, "namespaces"),
        ({"redis": {"url": "http://cache"}}, "url"),
        ({"redis": {"existingSecretKey": "a key"}}, "existingSecretKey"),
        ({"kvStore": {"dram": "much"}}, "dram"),
        ({"log": {"format": "xml"}}, "format"),
        ({"tls": {"source": "nobody"}}, "source"),
        ({"networkPolicy": {"modelSources": {"ports": [0]}}}, "ports"),
        ({"router": {"resources": {"limits": {"memory": "many"}}}}, "memory"),
        ({"workers": {"resources": {"limits": {"memory": "many"}}}}, "memory"),
        ({"workers": {"podSecurityContext": {"runAsUser": -1}}}, "runAsUser"),
        ({"workers": {"podSecurityContext": {"privileged": True}}}, "privileged"),
        ({"workers": {"securityContext": {"fsGroup": 1}}}, "fsGroup"),
        ({"operator": {"rollout": {"inPlaceAfterSeconds": 1}}}, "inPlaceAfterSeconds"),
    ],
)
def test_values_out_of_bounds_are_refused(values: Json, word: str) -> None:
    assert word in refused(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tls": {"source": "existing"}}, "name the Secret in tls.existingSecret"),
        ({"kvStore": {"enabled": True}}, "name the ModelService whose blocks are kept in kvStore.modelService"),
        (
            {"assignedUser": True, "workers": {"cacheHostPath": "/var/lib/tandem"}},
            "nobody knows whom the directory workers.cacheHostPath is to belong to",
        ),
        (
            {"assignedUser": True, "workers": {"sharedHostPath": "/run/tandem"}},
            "nobody knows whom the directory workers.sharedHostPath is to belong to",
        ),
        (
            {"assignedUser": True, "workers": {"template": {"lockedMemory": True}}},
            "leave workers.template.lockedMemory false",
        ),
        (
            {"namespaces": ["llm", "search"], "tls": {"source": "certManager"}},
            "name a ClusterIssuer in tls.certManager.issuerRef",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused_with_a_sentence(values: Json, sentence: str) -> None:
    assert sentence in refused(values)


@pytest.mark.parametrize(
    "url",
    ["redis://:word@cache", "redis://user@cache", "redis://cache,rediss://a:word@b:1", "redis://c?password=word"],
)
def test_a_password_is_refused_in_values_and_not_repeated(url: str) -> None:
    said = refused({"namespaces": ["llm"], "redis": {"url": url}})
    sentence = f"make a Secret with the URL under `url` in each namespace ({NAMESPACE}, llm), and name it in redis."
    assert sentence in said
    assert "word" not in said.replace("password", "")


def test_every_variant_passes_the_schema() -> None:
    for values in VARIANTS.values():
        with helm.Chart.load(CHART) as chart:
            chart.validate_schema(chart.merge_values(values))


def test_quantities_of_the_store_become_bytes() -> None:
    for quantity, size in (("8Gi", 8 << 30), ("500M", 500_000_000), ("4096", 4096), ("2Ti", 2 << 40)):
        objects = render({"kvStore": {"enabled": True, "modelService": "demo", "dram": quantity}})
        (store,) = (one for one in objects if one["kind"] == "DaemonSet")
        flags = store["spec"]["template"]["spec"]["containers"][0]["args"]
        assert f"--tiers.dram_bytes={size}" in flags


def test_the_documentation_lists_every_value() -> None:
    page = PAGE.read_text("utf-8")
    assert renewed(page) == page, "run `python -m tools.chart_values`"
    listed = [value for value, _, _ in rows(SCHEMA, DEFAULTS)]
    assert "{operator,router,redis,kvStore}.nodeSelector" in listed
    assert len(listed) == len(set(listed))
