"""The example for KubeRay: as its CRD, Serve's own schema and our hub take it. Needs Go, and no cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from tandem.apps.ray.declared import declared_of

KUBERAY: Final = "github.com/ray-project/kuberay/ray-operator@v1.5.0"
CRD: Final = "config/crd/bases/ray.io_rayservices.yaml"
EXAMPLE: Final = Path(__file__).parents[2] / "deploy" / "examples" / "rayservice.yaml"
_DOWNLOAD_S: Final = 120.0


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    text = EXAMPLE.read_text("utf-8")
    assert text.startswith("# "), "says what it is for"
    assert all(len(line) <= 120 for line in text.splitlines())
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def crd() -> Path:
    """KubeRay's definition of a RayService, from the cache of Go's modules or its proxy."""
    argv = ["go", "mod", "download", "-json", KUBERAY]
    told = subprocess.run(argv, capture_output=True, check=False, timeout=_DOWNLOAD_S, cwd="/")
    found = json.loads(told.stdout)
    assert "Dir" in found, found.get("Error", told.stderr)
    return Path(found["Dir"]) / CRD


def test_kuberay_takes_the_example(example: dict[str, Any]) -> None:
    (version,) = [each for each in yaml.safe_load(crd().read_text())["spec"]["versions"] if each["name"] == "v1"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    jsonschema.Draft202012Validator(schema).validate(example)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({**example, "spec": {**example["spec"], "serveConfig": ""}})


def closed(schema: Any) -> Any:
    """An API server prunes fields that the schema does not name; here they are refused."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    free = found.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in found
    if isinstance(found.get("properties"), dict) and found.get("type") == "object" and not free:
        named = found["properties"]
        # Of the object itself an API server adds these.
        more = {} if "spec" not in named or "kind" not in named else {"metadata": {"type": "object"}}
        return {**found, "properties": {**named, **more}, "additionalProperties": False}
    return found


def test_serve_takes_its_configuration(example: dict[str, Any]) -> None:
    from ray.serve.schema import ServeDeploySchema

    from tandem.ray import Args, app

    config = yaml.safe_load(example["spec"]["serveConfigV2"])
    told = ServeDeploySchema.model_validate(config)
    (application,) = told.applications
    assert application.import_path == "tandem.ray:app"
    assert app.__module__ == "tandem.ray"
    assert Args.model_validate(application.args).routers == 2


def test_the_hub_takes_its_services(example: dict[str, Any]) -> None:
    (application,) = yaml.safe_load(example["spec"]["serveConfigV2"])["applications"]
    (deployment,) = application["deployments"]
    assert deployment["name"] == "router"
    (service,) = declared_of(deployment["user_config"], application["name"])
    assert [pool.role for pool in service.spec.pools] == ["prefill", "decode"]


def test_versions_are_those_that_are_pinned(example: dict[str, Any]) -> None:
    import ray

    assert example["spec"]["rayClusterConfig"]["rayVersion"] == ray.__version__
