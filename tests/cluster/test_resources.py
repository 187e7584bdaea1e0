"""The custom resource definitions on a real API server: accepted, and what they refuse with which words."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.objects.children import scaled_object
from control_plane.objects.installation import Installation
from control_plane.objects.pruning import pruned, served_schema
from tandem.kube.kinds import SCALED_OBJECT
from tandem.spec.pool import Autoscaling, Pool
from tests.cluster import bad_model_services as cases
from tests.cluster.bad_model_services import BAD, BAD_IN_A_CLUSTER, BAD_UPDATES, Bad, BadUpdate
from tests.cluster.good_model_services import GOOD
from tests.cluster.lab.admin import Admin

TEMPLATES = Path("deploy/helm/tandem-crds/templates")
SERVICES = "/apis/tandem.dev/v1alpha1/namespaces/{}/modelservices"


@pytest.fixture(scope="module")
def crds(admin: Admin) -> None:
    """Applied server-side, strictly, and served."""
    admin.establish(yaml.safe_load(path.read_text()) for path in sorted(TEMPLATES.glob("*.yaml")))


def placed(service: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The service in the namespace of the test."""
    return {**service, "metadata": {**service["metadata"], "namespace": namespace}}


@pytest.mark.usefixtures("crds")
class TestModelServices:
    @pytest.mark.parametrize("case", [*BAD, *BAD_IN_A_CLUSTER], ids=lambda case: case.name)
    def test_a_bad_service_is_refused_with_the_intended_sentence(
        self, case: Bad, admin: Admin, namespace: str
    ) -> None:
        answer = admin.create(placed(case.service(), namespace))
        assert answer.status in (400, 422), answer
        assert case.server_says in answer.message
        # Server-side apply finds some of them earlier, with words that are not ours.
        assert admin.apply(placed(case.service(), namespace)).status >= 400

    @pytest.mark.parametrize("case", BAD_UPDATES, ids=lambda case: case.name)
    def test_a_bad_update_is_refused(self, case: BadUpdate, admin: Admin, namespace: str) -> None:
        admin.applied(placed(yaml.safe_load(cases.GOOD), namespace))
        answer = admin.apply(placed(case.service(), namespace))
        assert answer.status == 422, answer
        assert case.said in answer.message

    @pytest.mark.parametrize("name", GOOD)
    def test_a_good_service_is_accepted_and_keeps_what_was_written(
        self, name: str, admin: Admin, namespace: str
    ) -> None:
        service = placed(yaml.safe_load(GOOD[name]), namespace)
        kept = admin.applied(service)
        assert within(service["spec"], kept["spec"])

    def test_a_table_shows_the_printer_columns(self, admin: Admin, namespace: str) -> None:
        admin.applied(placed(yaml.safe_load(cases.GOOD), namespace))
        (row,) = admin.table(SERVICES.format(namespace))
        assert (row["Name"], row["Model"]) == ("chat", "hf://org/model")

    def test_a_person_scales_a_pool_and_reads_the_number_back(self, admin: Admin, namespace: str) -> None:
        pool = {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "EnginePool",
            "metadata": {"name": "chat-decode", "namespace": namespace},
            "spec": {"modelServiceName": "chat", "pool": "decode", "role": "decode"},
        }
        made = admin.applied(pool)
        assert made["spec"]["replicas"] == 1
        path = f"/apis/tandem.dev/v1alpha1/namespaces/{namespace}/enginepools/chat-decode"
        admin.patch(f"{path}/scale", {"spec": {"replicas": 3}})
        assert admin.done("GET", f"{path}/scale")["spec"]["replicas"] == 3
        assert admin.applied(pool)["spec"]["replicas"] == 3


def within(written: Any, kept: Any) -> bool:
    """Whether everything written is there; the API server may add defaults."""
    if isinstance(written, dict):
        return isinstance(kept, dict) and all(
            key in kept and within(value, kept[key]) for key, value in written.items()
        )
    if isinstance(written, list):
        return isinstance(kept, list) and len(written) == len(kept) and all(map(within, written, kept))
    return bool(written == kept)


KEDA = json.loads((Path(__file__).parent / "data" / "keda_scaled_objects.json").read_text())
"""The fields of a ScaledObject in versions of KEDA."""


@pytest.mark.parametrize("version", KEDA)
def test_the_api_server_takes_our_scaled_object_with_the_schema_of_each_keda(
    version: str, admin: Admin, namespace: str
) -> None:
    # A group of its own for each version, so that no operator takes it for KEDA.
    group = f"v{version.replace('.', '-')}.keda.example"
    served = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": KEDA[version]}}
    names = {"kind": "ScaledObject", "plural": "scaledobjects", "singular": "scaledobject"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"scaledobjects.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }
    admin.establish([definition])
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "o", "namespace": namespace, "uid": "u"}}
    pool = Pool("decode", "decode", autoscaling=Autoscaling(max_replicas=4))
    assert pool.autoscaling is not None
    whole = scaled_object("chat", pool, pool.autoscaling, owner, Installation(tls_secret="t", scaler_secure=True))
    whole = {**whole, "apiVersion": f"{group}/v1alpha1"}
    known = admin.done("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/scaledobjects.{group}")
    schema = served_schema(known, SCALED_OBJECT)
    assert schema is not None
    fitted, lost = pruned(whole, schema)
    admin.until(lambda: admin.apply(fitted, namespace).status < 400, f"{version} refuses what fits it", 20.0)
    answer = admin.apply(whole, namespace)
    assert (answer.status >= 400) == bool(lost), answer
    admin.ask("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/scaledobjects.{group}")
