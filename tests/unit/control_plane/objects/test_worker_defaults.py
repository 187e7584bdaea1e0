"""What an installation gives to every worker pod, under what templates of pools say."""

from typing import Any

import msgspec
import pytest

from control_plane.__main__ import flags
from control_plane.objects.gate import gate_job
from control_plane.objects.installation import Installation
from control_plane.objects.pods import pod_template
from control_plane.objects.revisions import controller_revision, read_revision, rendered
from control_plane.objects.worker_defaults import WorkerDefaults
from control_plane.observe.desired_spec import read_desired_spec
from control_plane.operator.settings import OperatorSettings
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tandem.process.settings import load_settings
from tandem.spec.rollout import Gate
from tandem.spec.service import ModelService

MEMORY = {"limits": {"memory": "64Gi"}, "requests": {"cpu": "8"}}
FULL = WorkerDefaults(
    pod_labels={"team": "serving", "tandem.dev/pool": "other"},
    pod_annotations={"k8s.v1.cni.cncf.io/networks": "rdma", "kubectl.kubernetes.io/default-container": "other"},
    runtime_class_name="nvidia",
    priority_class_name="serving",
    tolerations=({"key": "dedicated", "operator": "Exists"},),
    resources=MEMORY,
    pod_security_context={"runAsUser": 2000, "supplementalGroups": [44]},
    security_context={"seLinuxOptions": {"level": "s0:c1"}},
)
OWNER: Json = {"apiVersion": "v1", "kind": "X", "metadata": {"name": "chat", "namespace": "llm", "uid": "u"}}


def asked(template: Json | None = None, **spec: Any) -> Json:
    pool = {"name": "all", "role": "unified", "accelerator": {"type": "h100-sxm"}, "template": template or {}}
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat", "namespace": "llm"},
        "spec": {"model": {"source": "hf://a/b"}, "pools": [pool], **spec},
    }


def service(template: Json | None, defaults: WorkerDefaults) -> tuple[ModelService, Installation]:
    installation = Installation(worker_defaults=defaults)
    wish = read_desired_spec(asked(template), installation)
    assert wish.problem is None
    assert wish.service is not None
    return wish.service, installation


def pod(defaults: WorkerDefaults, template: Json | None = None) -> Json:
    whole, installation = service(template, defaults)
    return pod_template(whole, whole.spec.pools[0], "abc", installation)


def worker(template: Json) -> Json:
    return next(each for each in template["spec"]["containers"] if each["name"] == "worker")


def test_every_pod_has_them() -> None:
    found, spec = pod(FULL), pod(FULL)["spec"]
    assert found["metadata"]["labels"]["team"] == "serving"
    assert found["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma"
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "serving")
    assert [each["key"] for each in spec["tolerations"]] == ["nvidia.com/gpu", "dedicated"]
    assert worker(found)["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "64Gi"}
    assert worker(found)["resources"]["requests"]["cpu"] == "8"
    assert "memory" not in worker(found)["resources"]["requests"], "it is its limit"
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 2000,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "supplementalGroups": [44],
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    beside: Json = {"spec": {"initContainers": [{"name": "first", "image": "f"}]}}
    for container in (worker(found), pod(FULL, beside)["spec"]["initContainers"][0]):
        assert container["securityContext"]["seLinuxOptions"] == {"level": "s0:c1"}
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_what_others_rely_on_stays() -> None:
    found = pod(FULL)["metadata"]
    assert found["labels"]["tandem.dev/pool"] == "all"
    assert found["annotations"]["kubectl.kubernetes.io/default-container"] == "worker"


def test_a_template_goes_over_them() -> None:
    own: Json = {
        "metadata": {"labels": {"team": "search"}},
        "spec": {
            "priorityClassName": "batch",
            "runtimeClassName": None,
            "tolerations": [{"key": "mine", "operator": "Exists"}],
            "securityContext": {"runAsUser": 3000},
            "containers": [{"name": "worker", "resources": {"limits": {"memory": "8Gi"}}}],
        },
    }
    found = pod(FULL, own)
    assert found["metadata"]["labels"]["team"] == "search"
    assert "runtimeClassName" not in found["spec"]
    assert found["spec"]["priorityClassName"] == "batch"
    assert [each["key"] for each in found["spec"]["tolerations"]] == ["mine"]
    assert found["spec"]["securityContext"]["runAsUser"] == 3000
    assert worker(found)["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "8Gi"}


def test_without_defaults_revisions_are_as_they_were() -> None:
    """Else an upgrade would restart every worker of every fleet."""
    assert read_desired_spec(asked(), Installation()).revision == "af0b354a2a"
    whole, installation = service(None, WorkerDefaults())
    record = rendered(whole, "abc", 1, installation)
    assert "defaults" not in controller_revision(record, OWNER)["data"]


def test_an_assigned_user_is_nobody_in_particular() -> None:
    spec = pod(WorkerDefaults(assigned_user=True))["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    named = pod(WorkerDefaults(assigned_user=True, pod_security_context={"fsGroup": 5}))["spec"]
    assert named["securityContext"]["fsGroup"] == 5
    assert "runAsUser" not in named["securityContext"]


@pytest.mark.parametrize(("assigned", "user"), [(False, 10001), (True, None)])
def test_a_comparison_runs_as_who_workers_run_as(assigned: bool, user: int | None) -> None:
    defaults = WorkerDefaults(assigned_user=assigned)
    job = gate_job(OWNER, Gate(), "m", "old", "new", pod(defaults), Installation(worker_defaults=defaults))
    security = job["spec"]["template"]["spec"]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security.get("runAsUser") == user


def test_other_defaults_make_another_revision_and_records_keep_them() -> None:
    one, other = (
        read_desired_spec(asked(), Installation(worker_defaults=each))
        for each in (FULL, WorkerDefaults(runtime_class_name="nvidia"))
    )
    assert len({one.revision, other.revision, read_desired_spec(asked(), Installation()).revision}) == 3
    whole, installation = service(None, FULL)
    record = rendered(whole, one.revision, 1, installation)
    assert read_revision(controller_revision(record, OWNER)) == record
    assert record.defaults == msgspec.json.decode(msgspec.json.encode(FULL))


def test_an_author_is_not_blamed_for_what_the_installation_gives() -> None:
    defaults = WorkerDefaults(security_context={"privileged": True}, priority_class_name="system-node-critical")
    assert read_desired_spec(asked(), Installation(worker_defaults=defaults)).problem is None
    found = read_desired_spec(asked({"spec": {"priorityClassName": "system-node-critical"}}), Installation())
    assert found.problem is not None


def test_the_operator_takes_them_as_json() -> None:
    text = msgspec.json.encode(FULL).decode()
    told = load_settings(OperatorSettings, flags([f"--worker_defaults={text}"]), {}).installation
    assert told.worker_defaults == FULL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is no JSON"),
        ('{"runtimeClass": "a"}', "unknown field `runtimeClass`"),
        ('{"tolerations": {}}', "tolerations"),
        ("[]", "Expected `object`"),
    ],
)
def test_defaults_that_cannot_be_read_end_the_operator_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(TandemError) as refused:
        load_settings(OperatorSettings, flags([f"--worker_defaults={text}"]), {})
    assert refused.value.code == "bad_setting"
    assert "installation.worker_defaults" in refused.value.message
    assert said in refused.value.message
