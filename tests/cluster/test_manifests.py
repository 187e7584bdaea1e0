"""The charts, the examples and what the operator makes of them, by kubeconform and Helm's linter. No server runs."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from control_plane.objects.children import config_map, disruption_budget, engine_pool, headless_service
from control_plane.objects.gate import gate_job, gate_prompts
from control_plane.objects.installation import Installation, completed
from control_plane.objects.revisions import controller_revision
from control_plane.objects.revisions import rendered as rendered_revision
from control_plane.objects.worker_defaults import WorkerDefaults
from control_plane.objects.workload import workload
from tandem.spec.reading import read_service
from tandem.spec.rollout import Gate
from tests.cluster.scenario import schemas
from tests.cluster.scenario.helm import CHARTS, Helm
from tests.helm.charts import VARIANTS, rendered
from tests.unit.deploy.test_deploy_examples import EXAMPLES
from tools import cluster_binaries

Json = dict[str, Any]

SKIPPED: Final = {
    "Certificate": "cert-manager's, whose definitions we do not have",
    "Issuer": "cert-manager's",
    "PodMonitor": "the Prometheus operator's, whose definitions we do not have",
    "PrometheusRule": "the Prometheus operator's",
    "ServiceMonitor": "the Prometheus operator's",
}
"""Kinds that are not checked, and why."""
ALLOWED: Final = {
    "CKV_K8S_11": (r"", "processor limits would stop engines and routers between tokens; requests share fairly"),
    "CKV_K8S_15": (r"", "tags are versions, which never move; image.pullPolicy sets another policy"),
    "CKV_K8S_35": (r"", "hubs' and registries' clients, and Redis URLs, take credentials from variables"),
    "CKV_K8S_38": (r"tandem-(operator|router|kv-store)$", "these watch the API server"),
    "CKV_K8S_40": (r"^chart-users-that-the-platform-assigns|tandem-redis$", "the platform's user; the image's user"),
    "CKV_K8S_43": (r"", "digests are for who mirrors images: image.digest of each part"),
}
"""What checkov finds and is as it should be: of which `file:resource`, and why."""
CHECKOV: Final = "TANDEM_CHECKOV"
"""The environment variable that names checkov, which has an environment of its own (make test-checkov)."""
_DEFINITIONS: Final = CHARTS / "tandem-crds" / "templates"
_BOUND_S: Final = 120.0


def program(name: str) -> Path:
    found = cluster_binaries.find(name)
    if found is None:
        pytest.skip(f"{name} is not built: make cluster-binaries")
    return found


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schemas of every kind of Kubernetes and of Tandem's own."""
    program("kubeconform")
    if not cluster_binaries.openapi().exists():
        pytest.skip("the description of Kubernetes' API is not there: make cluster-binaries")
    directory = tmp_path_factory.mktemp("schemas")
    definitions = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(_DEFINITIONS.glob("*.yaml"))]
    schemas.write(directory, json.loads(cluster_binaries.openapi().read_text("utf-8")), definitions)
    return directory


def conform(described: Path, directory: Path) -> tuple[list[Json], int]:
    """What kubeconform finds wrong in the files of a directory, and how many objects it found right."""
    said = subprocess.run(
        [
            *(str(program("kubeconform")), "-strict", "-output", "json", "-summary"),
            *("-schema-location", f"{described}/{schemas.LOCATION}", "-skip", ",".join(SKIPPED), str(directory)),
        ],
        capture_output=True,
        text=True,
        timeout=_BOUND_S,
    )
    found = json.loads(said.stdout)
    return found["resources"] or [], int(found["summary"]["valid"])


def put(directory: Path, name: str, objects: list[Json]) -> None:
    (directory / f"{name}.yaml").write_text(yaml.safe_dump_all(objects), "utf-8")


def put_charts(directory: Path) -> None:
    for name, objects in rendered().items():
        put(directory, f"chart-{name.replace(' ', '-')}", objects)


def made(path: Path, defaults: WorkerDefaults) -> Iterator[Json]:
    """What the operator makes of an example."""
    installation = Installation(
        worker_image="tandem-worker:0.1.0",
        vllm_image="tandem-worker-vllm:0.1.0",
        tls_secret="tandem-tls",
        worker_defaults=defaults,
    )
    service = completed(read_service(path), installation)
    name = service.metadata.name
    owner = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name, "namespace": "models", "uid": "u"},
    }
    record = rendered_revision(service, "abc", 1, installation)
    yield controller_revision(record, owner)
    for pool in service.spec.pools:
        yield engine_pool(owner, pool)
        yield headless_service(name, pool, owner)
        yield disruption_budget(name, pool, owner)
        yield config_map(name, record.pools[pool.name], "abc", owner)
        if record.pools[pool.name].nodes == 1:
            yield workload(name, record.pools[pool.name], "abc", 2, owner)
    template = record.pools[service.spec.pools[0].name].template
    yield gate_prompts(owner, "abc")
    yield gate_job(owner, Gate(), service.model_name, "old", "abc", template, installation)


def test_charts_conform_in_every_variant(described: Path, tmp_path: Path) -> None:
    put_charts(tmp_path)
    definitions = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(_DEFINITIONS.glob("*.yaml"))]
    put(tmp_path, "definitions", definitions)
    wrong, right = conform(described, tmp_path)
    assert wrong == []
    skipped = sum(obj["kind"] in SKIPPED for objects in rendered().values() for obj in objects)
    assert right == sum(map(len, rendered().values())) + len(definitions) - skipped
    assert skipped, "else the list is of no use"


def test_examples_and_what_is_made_of_them_conform(described: Path, tmp_path: Path) -> None:
    memory = {"limits": {"memory": "64Gi"}}
    defaults = WorkerDefaults(assigned_user=True, resources=memory, runtime_class_name="nvidia")
    count = 0
    for path in EXAMPLES:
        objects = [yaml.safe_load(path.read_text("utf-8")), *made(path, defaults)]
        put(tmp_path, path.stem, objects)
        count += len(objects)
    assert conform(described, tmp_path) == ([], count)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pod: pod.update(nodeSelectors={}), "nodeSelectors"),
        (lambda pod: pod["containers"][0].update(image=1), "image"),
        (lambda pod: pod["containers"][0].pop("name"), "name"),
    ],
)
def test_what_is_wrong_is_found(change: Any, said: str, described: Path, tmp_path: Path) -> None:
    objects = json.loads(json.dumps(rendered()["defaults"]))
    change(next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"]["spec"])
    put(tmp_path, "wrong", objects)
    (wrong,) = conform(described, tmp_path)[0]
    assert (wrong["kind"], wrong["status"]) == ("Deployment", "statusInvalid")
    assert said in wrong["msg"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_lints_the_chart_strictly(variant: str, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps(VARIANTS[variant]), "utf-8")
    helm = Helm(program("helm"), Path("/dev/null"), tmp_path)
    helm("lint", "--strict", "--quiet", "--namespace", "tandem", str(CHARTS / "tandem"), "--values", str(values))


def test_helm_lints_the_definitions_strictly(tmp_path: Path) -> None:
    Helm(program("helm"), Path("/dev/null"), tmp_path)("lint", "--strict", "--quiet", str(CHARTS / "tandem-crds"))


@pytest.mark.long
def test_checkov_finds_nothing_but_what_is_explained(tmp_path: Path) -> None:
    checkov = os.environ.get(CHECKOV)
    if checkov is None:
        pytest.skip("no checkov: make test-checkov")
    put_charts(tmp_path)
    for path in EXAMPLES:
        put(tmp_path, f"example-{path.stem}", list(made(path, WorkerDefaults())))
    said = subprocess.run(
        [checkov, "-d", str(tmp_path), "--framework", "kubernetes", "--skip-download", "--output", "json", "--quiet"],
        capture_output=True,
        text=True,
        timeout=_BOUND_S,
    )
    found = json.loads(said.stdout)
    assert found["summary"]["passed"] > 1000
    assert found["summary"]["parsing_errors"] == 0
    used, unexplained = set(), set()
    for each in found["results"]["failed_checks"]:
        check, where = each["check_id"], f"{each['file_path'].lstrip('/')}:{each['resource']}"
        if check in ALLOWED and re.search(ALLOWED[check][0], where):
            used.add(check)
        else:
            unexplained.add((check, each["check_name"], where))
    assert sorted(unexplained) == []
    assert used == set(ALLOWED), "take out what is no longer found"
