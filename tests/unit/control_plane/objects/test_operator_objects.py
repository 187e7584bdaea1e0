"""The objects that a service consists of."""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import msgspec
import pytest
import yaml

from control_plane.objects.children import (
    disruption_budget,
    engine_pool,
    headless_service,
    needed,
    scaled_object,
    undeclared,
)
from control_plane.objects.gate import gate_job
from control_plane.objects.installation import Installation, completed
from control_plane.objects.merging import merged
from control_plane.objects.names import POOL, REVISION, ROLE, SERVICE
from control_plane.objects.pods import pod_template
from control_plane.objects.pruning import pruned
from control_plane.objects.revisions import controller_revision, read_revision, rendered
from control_plane.objects.scheduling import unnamed_devices
from control_plane.objects.template_rules import template_problems
from control_plane.objects.worker_flags import settings_map
from control_plane.objects.workload import record_of, workload
from control_plane.observe.desired_spec import read_desired_spec
from tandem.engine.vllm.settings import Nodes
from tandem.kube.kinds import Json
from tandem.process.settings import load_settings
from tandem.spec.model import FETCHED
from tandem.spec.pool import Network, NetworkClaim, Pool
from tandem.spec.reading import service_of
from tandem.spec.revision import revision_of
from tandem.spec.rollout import TOO_DIFFERENT, Gate
from tandem.spec.service import ModelService
from tandem.worker.process_settings import WorkerSettings
from tests.cluster.good_model_services import GOOD
from tests.cluster.kubelet.environment import command

INSTALLATION = Installation(worker_image="worker:1", vllm_image="vllm:1", tls_secret="tandem-tls")
OWNER: Json = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "EnginePool",
    "metadata": {"name": "x-pool", "namespace": "llm", "uid": "u1"},
}
MULTI_NODE = "MoE with experts"
WORKERS: Json = {"spec": {"containers": [{"name": "worker", "image": "image"}]}}


def read(name: str, installation: Installation = INSTALLATION) -> ModelService:
    plain = yaml.safe_load(GOOD[name])
    plain["metadata"]["namespace"] = "llm"
    return completed(service_of(plain), installation)


def template(name: str, pool: int = 0, installation: Installation = INSTALLATION) -> Json:
    service = read(name, installation)
    return pod_template(service, service.spec.pools[pool], "abc", installation)


def worker(pod: Json) -> Json:
    return next(each for each in pod["spec"]["containers"] if each["name"] == "worker")


@pytest.mark.parametrize("name", GOOD)
def test_workers_understand_what_they_are_told(name: str) -> None:
    """What the kubelet hands to the process is what its settings take."""
    service = read(name)
    for index, pool in enumerate(service.spec.pools):
        pod = template(name, index)
        data = settings_map(service, pool, "abc", INSTALLATION)["data"]
        argv = [each.replace("$(POD_IP)", "10.1.2.3") for each in worker(pod)["args"]]
        settings = load_settings(WorkerSettings, argv, {**data, "TANDEM_WORKER_ID": "pod-1"})
        assert (settings.worker_id, settings.role, settings.revision) == ("pod-1", pool.role, "abc")
        assert settings.link.bind == "10.1.2.3:7400"
        assert settings.metrics_bind == "10.1.2.3:7480"
        assert settings.deadlines.drain_s == pool.drain_seconds
        assert settings.model_name == service.model_name
        assert settings.link.tls.certificate is not None
        assert settings.link.tls.server_name == "tandem-worker", "workers pull from each other by address"


@pytest.mark.parametrize("name", GOOD)
def test_every_pod_is_restricted_and_can_be_found(name: str) -> None:
    for index, pool in enumerate(read(name).spec.pools):
        pod = template(name, index)
        labels = pod["metadata"]["labels"]
        assert labels[SERVICE] == read(name).metadata.name
        assert (labels[POOL], labels[ROLE], labels[REVISION]) == (pool.name, pool.role, "abc")
        assert pod["metadata"]["annotations"]["tandem.dev/link-port"] == "7400"
        spec, container = pod["spec"], worker(pod)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert spec["terminationGracePeriodSeconds"] == pool.drain_seconds + 30
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/alive"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_accelerators_places_and_patches() -> None:
    pod = template("one node")
    container = worker(pod)
    assert container["image"] == "vllm:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "64Gi"}
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"]["claimName"] == "models"
    assert volumes["dshm"]["emptyDir"]["sizeLimit"] == "8Gi"
    assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}], "a patch replaces such lists"
    spot = template("one node", 1)["spec"]
    assert {"key": "karpenter.sh/capacity-type", "operator": "Equal", "value": "spot"} in spot["tolerations"]
    assert "nodeAffinity" not in spot.get("affinity", {})
    assert "nodeAffinity" in pod["spec"]["affinity"], "who cannot be taken away keeps off such nodes"
    near = template("70B, TP 4, P/D, autoscaled")["spec"]["affinity"]["podAffinity"]
    term = near["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
    assert term["topologyKey"] == "topology.kubernetes.io/zone"
    labelled = template("one node", 0, Installation(accelerator_label="gpu-type"))["spec"]
    assert labelled["nodeSelector"] == {"gpu-type": "l40s"}


def test_pods_that_share_a_gpu_take_their_part() -> None:
    service = read("parts of GPUs")
    shares = []
    for index, pool in enumerate(service.spec.pools):
        data = settings_map(service, pool, "abc", INSTALLATION)["data"]
        argv = [each.replace("$(POD_IP)", "10.1.2.3") for each in worker(template("parts of GPUs", index))["args"]]
        settings = load_settings(WorkerSettings, argv, {**data, "TANDEM_WORKER_ID": "pod-1"})
        shares.append(settings.vllm.gpu_memory_share)
    assert shares == [0.45, 0.4, 0.9], "an even part, the given one, and all of a slice"
    assert worker(template("parts of GPUs", 2))["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}


def test_a_pod_asks_for_one_gpu_per_rank() -> None:
    ranks = {"70B, TP 4, P/D, autoscaled": {"nvidia.com/gpu": "4"}, "AMD, engines per pool": {"amd.com/gpu": "2"}}
    for name, limits in ranks.items():
        assert worker(template(name))["resources"]["limits"] == limits
        environment = {each["name"] for each in worker(template(name))["env"]}
        assert not any("VISIBLE" in variable for variable in environment), "the device plugin says which"


def test_rdma_brings_its_transport_and_its_right() -> None:
    service = read("smallest")
    plain = worker(template("smallest"))
    assert plain["args"][plain["args"].index("--kv.transports") + 1] == "tcp"
    assert "add" not in plain["securityContext"]["capabilities"]
    limits = {"resources": {"limits": {"rdma/ib": 1}}}
    patch = {"spec": {"containers": [{"name": "worker", **limits}]}}
    pool = Pool("all", "unified", image="i", template=patch)
    fast = worker(pod_template(service, pool, "abc", INSTALLATION))
    assert fast["args"][fast["args"].index("--kv.transports") + 1] == "nixl,tcp"
    assert "add" not in fast["securityContext"]["capabilities"], "to a user that is not root it would be no right"
    root = {"runAsUser": 0, "runAsNonRoot": False}
    patch = {"spec": {"containers": [{"name": "worker", **limits, "securityContext": root}]}}
    pool = Pool("all", "unified", image="i", template=patch)
    held = worker(pod_template(service, pool, "abc", INSTALLATION))
    assert held["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert held["command"][0] == "python"


def test_locked_memory_without_a_bound_takes_the_least_rights() -> None:
    service = read("smallest")
    network = Network(resources={"rdma/ib": 1}, locked_memory="unlimited")
    pool = Pool("all", "unified", image="i", network=network)
    on_node = replace(INSTALLATION, cache_host_path="/var/lib/tandem")
    pod = pod_template(service, pool, "abc", on_node)
    security = worker(pod)["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK", "SETUID"]}
    assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert worker(pod)["command"] == [
        "setpriv", "--reuid=10001", "--inh-caps=+ipc_lock", "--ambient-caps=+ipc_lock", "--",
        "python", "-m", "decode_worker",
    ]  # fmt: skip
    assert pod["spec"]["securityContext"]["runAsUser"] == 10001, "all other containers"
    (owner,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "cache-owner")
    assert "10001:10001" in owner["command"], "files are the worker's, which is no root"
    patch = {"spec": {"securityContext": {"runAsUser": 5000}}}
    other = pod_template(service, msgspec.structs.replace(pool, template=patch), "abc", INSTALLATION)
    assert worker(other)["command"][1] == "--reuid=5000"


def test_workers_of_one_node_share_memory_where_the_installation_says_where() -> None:
    service, shared = read("smallest"), replace(INSTALLATION, shared_host_path="/run/tandem")
    pool = Pool("all", "unified", image="i", network=Network(resources={"rdma/ib": 1}))
    pod = pod_template(service, pool, "abc", shared)
    assert transports_of(pod) == "shm,nixl,tcp"
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "shared")
    name = f"{service.metadata.namespace}/{service.metadata.name}"
    assert volume["hostPath"] == {"path": f"/run/tandem/{name}", "type": "DirectoryOrCreate"}
    (owner,) = pod["spec"]["initContainers"]
    assert (owner["name"], owner["command"][-2:]) == ("shared-owner", ["10001:10001", "/var/run/tandem/shared"])
    data = settings_map(service, pool, "abc", shared)["data"]
    named = {"$(POD_IP)": "10.1.2.3", "$(NODE_NAME)": "node-a"}
    argv = list(worker(pod)["args"])
    for variable, value in named.items():
        argv = [each.replace(variable, value) for each in argv]
    assert {each["name"] for each in worker(pod)["env"]} >= {"NODE_NAME", "POD_IP"}
    settings = load_settings(WorkerSettings, argv, {**data, "TANDEM_WORKER_ID": "pod-1", "TANDEM_ROLE": "unified"})
    assert (settings.kv.node, settings.kv.shm_directory) == ("node-a", "/var/run/tandem/shared")
    assert worker(pod)["volumeMounts"][-1] == {"name": "shared", "mountPath": "/var/run/tandem/shared"}
    chosen = Pool("all", "unified", image="i", network=Network(transports=("tcp",)))
    for template in (pod_template(service, chosen, "abc", shared), pod_template(service, pool, "abc", INSTALLATION)):
        assert "shm" not in transports_of(template)
        assert "hostPath" not in str(template)
        assert "NODE_NAME" not in str(template)


def test_locked_memory_without_a_bound_is_for_the_installation_to_allow() -> None:
    service = read("smallest")
    network = Network(resources={"rdma/ib": 1}, locked_memory="unlimited")
    pools = (Pool("all", "unified", image="i", network=network),)
    asking = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, pools=pools))
    (problem,) = template_problems(asking, INSTALLATION)
    assert problem.startswith("spec.pools[0].network.lockedMemory: unlimited is not allowed")
    assert "workers.template.lockedMemory" in problem
    assert not list(template_problems(asking, replace(INSTALLATION, template_locked_memory=True)))


def transports_of(pod: Json) -> str:
    arguments: list[str] = worker(pod)["args"]
    return arguments[arguments.index("--kv.transports") + 1]


@pytest.mark.parametrize(
    "resource",
    [
        "rdma/hca_shared_devices_a",
        "vpc.amazonaws.com/efa",
        "nvidia.com/mlnxnics",
        "openshift.io/sriov_rdma",
        "networking.gke.io.networks/rdma-0",
        "example.com/any-name-at-all",
    ],
)
def test_a_device_of_any_name_brings_rdma(resource: str) -> None:
    service = read("smallest")
    pool = Pool(name="all", role="unified", image="i", network=Network(resources={resource: 2}))
    pod = pod_template(service, pool, "abc", INSTALLATION)
    assert transports_of(pod) == "nixl,tcp"
    assert worker(pod)["resources"]["limits"] == {resource: "2"}
    assert {"name": "nixl", "containerPort": 7402} in worker(pod)["ports"]


def test_a_claim_is_made_of_each_pod_and_transports_can_be_chosen() -> None:
    service = read("smallest")
    network = Network(claims=(NetworkClaim("nics", "four-nics"),))
    pod = pod_template(service, Pool("all", "unified", image="i", network=network), "abc", INSTALLATION)
    assert pod["spec"]["resourceClaims"] == [{"name": "nics", "resourceClaimTemplateName": "four-nics"}]
    assert worker(pod)["resources"]["claims"] == [{"name": "nics"}]
    assert transports_of(pod) == "nixl,tcp"
    chosen = msgspec.structs.replace(network, transports=("tcp",))
    pod = pod_template(service, Pool("all", "unified", image="i", network=chosen), "abc", INSTALLATION)
    assert transports_of(pod) == "tcp"


def test_a_device_that_nothing_names_is_said_and_not_guessed() -> None:
    service = read("smallest")
    patch = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"vpc.amazonaws.com/efa": 4}}}]}}
    pool = Pool("all", "unified", image="i", template=patch)
    pod = pod_template(service, pool, "abc", INSTALLATION)
    assert transports_of(pod) == "tcp"
    assert unnamed_devices(pool, pod) == (
        "Pods of pool all get vpc.amazonaws.com/efa, and KV goes over TCP: if that is for RDMA, name it in the "
        "pool's network.resources."
    )
    named = msgspec.structs.replace(pool, network=Network(resources={"vpc.amazonaws.com/efa": 4}))
    assert unnamed_devices(named, pod_template(service, named, "abc", INSTALLATION)) is None
    assert unnamed_devices(pool, template("smallest")) is None
    gpus = template("one node")
    assert unnamed_devices(read("one node").spec.pools[0], gpus) is None, "accelerators are no network"


@pytest.mark.parametrize("name", GOOD)
def test_every_container_asks_for_something_and_every_emptydir_ends(name: str) -> None:
    service = read(name)
    for pool in service.spec.pools:
        spec = pod_template(service, pool, "abc", INSTALLATION)["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            asked = container["resources"]
            assert {"cpu", "memory"} <= {*asked.get("requests", {}), *asked.get("limits", {})}, container["name"]
        assert "ephemeral-storage" in worker({"spec": spec})["resources"]["requests"]
        for volume in spec["volumes"]:
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], volume


def test_what_a_pool_says_of_its_resources_is_not_overruled() -> None:
    service = read("smallest")
    asked = {"requests": {"cpu": "2"}, "limits": {"memory": "256Mi"}}
    pool = Pool(
        "all", "unified", image="i", template={"spec": {"containers": [{"name": "worker", "resources": asked}]}}
    )
    found = worker(pod_template(service, pool, "abc", INSTALLATION))["resources"]
    assert found == {"requests": {"cpu": "2", "ephemeral-storage": "1Gi"}, "limits": {"memory": "256Mi"}}, (
        "the request follows the limit"
    )
    gpus = worker(template("70B, TP 4, P/D, autoscaled"))["resources"]
    assert gpus["requests"] == {"cpu": "5", "memory": "20Gi", "ephemeral-storage": "4Gi"}


def pod_with_tier(directory: str, patch: Json) -> tuple[dict[str, Json], list[Json], str]:
    """(volumes by name, mounts of the worker, its request of disk) with 160Gi of disk tier there."""
    service = with_template(patch)
    tiers = msgspec.structs.replace(service.spec.tiers, nvme="160Gi", nvme_dir=directory)
    service = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, tiers=tiers))
    pod = pod_template(service, service.spec.pools[0], "abc", INSTALLATION)
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    return volumes, worker(pod)["volumeMounts"], worker(pod)["resources"]["requests"]["ephemeral-storage"]


def test_a_disk_tier_has_room_where_it_lies() -> None:
    room = 160 + 10 + 1
    for directory in ("/tmp/kv", "/tmp"):
        volumes, mounts, disk = pod_with_tier(directory, {})
        assert volumes["tmp"]["emptyDir"] == {"sizeLimit": f"{(16 + room) << 10}Mi"}
        assert disk == f"{(1 + room) << 10}Mi"
        assert [each["mountPath"] for each in mounts].count("/tmp") == 1
    volumes, mounts, disk = pod_with_tier("/kv", {})
    assert volumes["kv-tier"]["emptyDir"] == {"sizeLimit": f"{room << 10}Mi"}
    assert {"name": "kv-tier", "mountPath": "/kv"} in mounts
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "16Gi"}
    assert disk == f"{(1 + room) << 10}Mi"


def test_a_disk_tier_on_a_volume_of_the_template_is_left_alone() -> None:
    claim = {"name": "kv", "persistentVolumeClaim": {"claimName": "kv"}}
    patch = in_worker(volumeMounts=[{"name": "kv", "mountPath": "/tmp/kv"}])
    patch["spec"]["volumes"] = [claim]
    larger: Json = {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Ti"}}]}}
    for asked, bound in ((patch, "16Gi"), (larger, "1Ti")):
        volumes, _, disk = pod_with_tier("/tmp/kv", asked)
        assert volumes["tmp"]["emptyDir"] == {"sizeLimit": bound}
        assert "kv-tier" not in volumes
        assert disk == "1Gi"


def test_spare_workers_are_spread_over_nodes() -> None:
    prefill, decode = (template("70B, TP 4, P/D, autoscaled", index)["spec"] for index in range(2))
    assert "topologySpreadConstraints" not in prefill
    (constraint,) = decode["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    labels = template("70B, TP 4, P/D, autoscaled", 1)["metadata"]["labels"]
    assert constraint["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_template_cannot_take_away_what_others_rely_on() -> None:
    service = read("smallest")
    patch: Json = {"metadata": {"labels": {POOL: "other", "team": "a"}}, "spec": {"priorityClassName": "high"}}
    pool = Pool("all", "unified", image="i", template=patch)
    pod = pod_template(service, pool, "abc", INSTALLATION)
    assert pod["metadata"]["labels"][POOL] == "all"
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["spec"]["priorityClassName"] == "high"


def with_template(patch: Json, credentials: str | None = None) -> ModelService:
    service = read("smallest")
    pool = Pool("all", "unified", image="i", template=patch)
    model = msgspec.structs.replace(service.spec.model, credentials_secret=credentials)
    return msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, pools=(pool,), model=model))


def in_worker(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


def secured(**fields: Any) -> Json:
    return in_worker(securityContext=fields)


ROOT: Json = {"securityContext": {"runAsUser": 0}}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def secret_of(name: str) -> Json:
    return {"name": "X", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"spec": {"serviceAccountName": "tandem-operator"}}, "spec.serviceAccountName: tandem-operator has rights"),
        (
            {"spec": {"automountServiceAccountToken": True}},
            "spec.automountServiceAccountToken: a template can",
        ),
        (
            {"spec": {"automountServiceAccountToken": None}},
            "spec.automountServiceAccountToken: a template can",
        ),
        ({"spec": {"hostPID": True}}, "spec.hostPID: a template can only say false"),
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork: a template can only say false"),
        ({"spec": {"nodeName": "control-plane-0"}}, "spec.nodeName is not allowed"),
        ({"spec": {"$patch": "replace"}}, "spec.$patch: what Tandem sets there"),
        ({"spec": {"securityContext": None}}, "spec.securityContext: what Tandem sets there cannot be taken away"),
        ({"spec": {"securityContext": {"sysctls": []}}}, "spec.securityContext.sysctls is not allowed"),
        ({"spec": {"securityContext": {"runAsNonRoot": None}}}, "spec.securityContext.runAsNonRoot: it cannot be"),
        (
            {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}},
            "spec.volumes[0].hostPath: hostPath / is not allowed; take a claim or an emptyDir, or have / added",
        ),
        ({"spec": {"volumes": [{"name": "n", "nfs": {}}]}}, "spec.volumes[0].nfs: a volume of kind nfs is not"),
        (
            {"spec": {"volumes": [{"name": "ca", "secret": {"secretName": "tandem-ca"}}]}},
            "spec.volumes[0].secret.secretName: tandem-ca is not this service's Secret",
        ),
        (
            {"spec": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {}}]}}]}},
            "spec.volumes[0].projected.sources[0].serviceAccountToken is not allowed",
        ),
        ({"spec": {"imagePullSecrets": [{"name": "x"}]}}, "spec.imagePullSecrets[0].name: x is not this service's"),
        (secured(privileged=True), "spec.containers[0].securityContext.privileged: a template can only say false"),
        (secured(allowPrivilegeEscalation=None), "securityContext.allowPrivilegeEscalation: it cannot be taken away"),
        (secured(allowPrivilegeEscalation=True), "securityContext.allowPrivilegeEscalation: true is not allowed"),
        (secured(runAsUser=0), "containers[0].securityContext.runAsUser: 0 is not allowed; take it out, or have"),
        (secured(readOnlyRootFilesystem=False), "securityContext.readOnlyRootFilesystem: false is not allowed"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.securityContext.runAsNonRoot: false is not"),
        ({"spec": {"initContainers": [{"name": "x", **ROOT}]}}, "initContainers[0].securityContext.runAsUser: 0 is"),
        ({"spec": {"priorityClassName": "system-node-critical"}}, "priorityClassName: system-node-critical is for"),
        ({"metadata": {"annotations": {f"{APPARMOR}worker": "unconfined"}}}, f"annotations.{APPARMOR}worker: a"),
        (secured(capabilities={"add": ["SYS_ADMIN"]}), "capabilities.add: SYS_ADMIN is not allowed; take it out, or"),
        (
            secured(capabilities={"drop": []}),
            "containers[0].securityContext.capabilities.drop: it must have ALL",
        ),
        (secured(capabilities=None), "spec.containers[0].securityContext.capabilities: it cannot be taken away"),
        (secured(seccompProfile={"type": "Unconfined"}), "securityContext.seccompProfile: a profile of Unconfined"),
        (in_worker(env=[secret_of("tandem-tls")]), "env[0].valueFrom.secretKeyRef.name: tandem-tls is not this"),
        (in_worker(envFrom=[{"secretRef": {"name": "x"}}]), "containers[0].envFrom[0].secretRef.name: x is not this"),
        (in_worker(ports=[{"containerPort": 1, "hostPort": 22}]), "containers[0].ports[0].hostPort: ports of nodes"),
        (in_worker(**{"$patch": "replace"}), "spec.containers[0].$patch: what Tandem sets there"),
    ],
)
def test_a_template_takes_no_rights(patch: Json, said: str) -> None:
    obj = msgspec.to_builtins(with_template(patch))
    problem = read_desired_spec(obj, INSTALLATION).problem
    assert problem is not None, "it is a condition of the service"
    assert problem.startswith("spec.pools[0].template.")
    assert said in problem


def test_a_template_takes_what_the_installation_allows_by_name() -> None:
    allowing = replace(
        INSTALLATION,
        template_secrets=("tokens",),
        template_volumes=("nfs", "/mnt/weights"),
        template_capabilities=("SYS_ADMIN",),
        template_service_accounts=("reader",),
        template_root=True,
    )
    patch: Json = {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "fast"}},
        "spec": {
            "serviceAccountName": "reader",
            "automountServiceAccountToken": False,
            "volumes": [
                {"name": "a", "nfs": {"server": "s", "path": "/"}},
                {"name": "b", "hostPath": {"path": "/mnt/weights"}},
                {"name": "c", "image": {"reference": "weights:1"}},
            ],
            "containers": [
                {
                    "name": "worker",
                    "env": [secret_of("tokens"), secret_of("hub")],
                    "securityContext": {
                        "runAsUser": 0,
                        "runAsNonRoot": False,
                        "readOnlyRootFilesystem": False,
                        "allowPrivilegeEscalation": True,
                        "seLinuxOptions": {"type": "spc_t"},
                        "capabilities": {"add": ["SYS_ADMIN"]},
                    },
                }
            ],
        },
    }
    assert list(template_problems(with_template(patch, "hub"), allowing)) == []
    assert len(list(template_problems(with_template(patch), INSTALLATION))) == 10


def test_containers_that_a_template_adds_are_confined_as_the_worker_is() -> None:
    beside: Json = {"name": "beside", "image": "b", "securityContext": {"capabilities": {"add": ["SYS_NICE"]}}}
    patch: Json = {"spec": {"initContainers": [{"name": "first", "image": "f"}], "containers": [beside]}}
    service = with_template(patch)
    assert list(template_problems(service, INSTALLATION)) == []
    spec = pod_template(service, service.spec.pools[0], "abc", INSTALLATION)["spec"]
    added = [*spec["initContainers"], *(each for each in spec["containers"] if each["name"] == "beside")]
    assert [each["name"] for each in added] == ["first", "beside"]
    for container, more in zip(added, ({}, {"add": ["SYS_NICE"]}), strict=True):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], **more},
        }
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 10001)


def test_the_url_of_redis_is_a_secrets_and_in_no_other_object() -> None:
    service = read("Redis in a Secret", replace(INSTALLATION, redis_secret="tandem-redis/url"))
    (variable,) = redis_variables(service)
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "redis-of-llm", "key": "uri"}}
    told = settings_map(service, service.spec.pools[0], "abc", INSTALLATION)["data"]
    assert {key for key in told if "INDEX" in key} == {"TANDEM_INDEX__SERVICE"}
    assert read("Redis in a Secret", replace(INSTALLATION, redis_url="redis://cache")).spec.redis is None


def redis_variables(service: ModelService) -> list[Json]:
    pod = pod_template(service, service.spec.pools[0], "abc", replace(INSTALLATION, redis_secret="tandem-redis/url"))
    return [each for each in worker(pod)["env"] if each["name"] == "TANDEM_INDEX__REDIS_URL"]


def test_a_redis_of_the_service_goes_before_the_installations() -> None:
    (variable,) = redis_variables(read("smallest"))
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "tandem-redis", "key": "url"}}
    assert redis_variables(read("one node")) == [], "its URL has no password and is in the ConfigMap"


def test_the_secret_of_a_redis_is_not_tandems_own() -> None:
    service = read("Redis in a Secret")
    own = replace(INSTALLATION, key_secret="redis-of-llm")
    (said,) = template_problems(service, own)
    assert said == (
        "spec.redisSecretRef.name: redis-of-llm is Tandem's own; leave it out, or name one with a Redis URL"
    )


def test_credentials_of_a_model_are_not_tandems_own() -> None:
    (said,) = template_problems(with_template({}, "tandem-ca"), INSTALLATION)
    assert said == ("spec.model.credentialsSecret: tandem-ca is Tandem's own; name one with the model's credentials")


@pytest.mark.parametrize("name", GOOD)
def test_good_services_keep_the_rules_of_templates(name: str) -> None:
    assert list(template_problems(read(name), INSTALLATION)) == []


def test_a_worker_that_spans_nodes_is_a_group() -> None:
    service = read(MULTI_NODE)
    pool = msgspec.structs.replace(service.spec.pools[1], role="unified")
    service = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, pools=(pool,)))
    record = rendered(service, "abc", 1, INSTALLATION)
    group = workload(service.metadata.name, record.pools["decode"], "abc", 2, OWNER)
    assert group["kind"] == "LeaderWorkerSet"
    inner = group["spec"]["leaderWorkerTemplate"]
    assert inner["size"] == 4
    leader, follower = inner["leaderTemplate"], inner["workerTemplate"]
    assert worker(leader)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    of_group = {"POD_IP": "10.1.2.3", "LWS_LEADER_ADDRESS": "first.set.llm", "LWS_WORKER_INDEX": "3"}
    data = {**settings_map(service, pool, "abc", INSTALLATION)["data"], "TANDEM_WORKER_ID": "pod-1"}
    for template, rank in ((leader, 0), (follower, 3)):
        settings = load_settings(WorkerSettings, command(worker(template), of_group)[3:], data)
        assert settings.vllm.nodes == Nodes(4, rank, "first.set.llm", Nodes.port, "10.1.2.3")
        assert settings.follows == (rank > 0)
    assert ROLE not in follower["metadata"]["labels"], "routers take only the first pod for a worker"
    assert "tandem.dev/link-port" not in follower["metadata"]["annotations"]
    assert worker(follower)["readinessProbe"] == worker(leader)["readinessProbe"]
    assert [port["name"] for port in worker(follower)["ports"]] == ["health"]
    packed = group["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"]
    assert packed == "topology.kubernetes.io/rack"


def test_a_group_whose_record_is_gone_stays_as_it_is() -> None:
    service = read(MULTI_NODE)
    record = rendered(service, "abc", 1, INSTALLATION).pools["decode"]
    group = workload(service.metadata.name, record, "abc", 2, OWNER)
    assert workload(service.metadata.name, record_of(group), "abc", 2, OWNER) == group


@pytest.mark.parametrize("name", GOOD)
def test_a_record_is_read_as_it_was_written(name: str) -> None:
    service = read(name)
    revision = revision_of(service.spec)
    record = rendered(service, revision, 3, INSTALLATION)
    obj = controller_revision(record, {**OWNER, "metadata": {**OWNER["metadata"], "name": service.metadata.name}})
    assert read_revision(obj) == record


def test_images_make_revisions() -> None:
    one, other = read("smallest"), read("smallest", Installation(worker_image="worker:2"))
    assert revision_of(one.spec) != revision_of(other.spec)


DIGEST = f"sha256:{'5' * 64}"


def of_model(installation: Installation = INSTALLATION, **model: str) -> Json:
    """The first pool's pods, of a service with another model."""
    name = next(iter(GOOD))
    service = read(name, installation)
    spec = msgspec.structs.replace(service.spec, model=msgspec.structs.replace(service.spec.model, **model))
    service = msgspec.structs.replace(service, spec=spec)
    return pod_template(service, service.spec.pools[0], revision_of(service), installation)["spec"]


@pytest.mark.parametrize("scheme", FETCHED)
def test_weights_of_a_bucket_are_brought_before_the_worker_starts(scheme: str) -> None:
    installation = replace(INSTALLATION, cache_host_path="/var/lib/models")
    pod = of_model(installation, source=f"{scheme}bucket/llama", digest=DIGEST, credentials_secret="keys")
    _, fetch = pod["initContainers"]
    assert fetch["command"] == ["python", "-m", "tandem.apps.cli", "fetch"]
    assert fetch["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert fetch["args"][0] == f"{scheme}bucket/llama"
    assert fetch["args"][-2:] == ["--digest", DIGEST]
    link = fetch["args"][fetch["args"].index("--link") + 1]
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts[str(PurePath(link).parent)] in {volume["name"] for volume in pod["volumes"]}
    assert {"name": "cache", "hostPath": {"path": "/var/lib/models", "type": "DirectoryOrCreate"}} in pod["volumes"]
    cache = fetch["args"][fetch["args"].index("--cache") + 1]
    assert any(cache.startswith(path) for path in mounts), "the link leads to where the worker sees it"


def test_a_directory_of_the_node_is_given_to_whoever_the_worker_runs_as() -> None:
    installation = replace(INSTALLATION, cache_host_path="/var/lib/models")
    service = read("smallest", installation)
    patch: Json = {"spec": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}}
    for pool, user in ((service.spec.pools[0], 10001), (Pool("all", "unified", image="i", template=patch), 0)):
        first = pod_template(service, pool, "abc", installation)["spec"]["initContainers"][0]
        assert first["command"][-2:] == [f"{user}:{user}", "/var/cache/tandem"]
        assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert first["volumeMounts"] == [{"name": "cache", "mountPath": "/var/cache/tandem"}]
    assert "initContainers" not in template("smallest")["spec"], "an emptyDir is the pod's own"


def test_a_pod_whose_worker_is_guaranteed_is_so_as_a_whole() -> None:
    installation = replace(INSTALLATION, cache_host_path="/var/lib/models")
    containers = of_model(installation, source="s3://bucket/llama")["initContainers"]
    assert [each["name"] for each in containers] == ["cache-owner", "fetch"]
    for each in containers:
        asked = each["resources"]
        assert {"cpu", "memory"} <= asked["limits"].keys()
        assert asked["limits"] == asked["requests"]


def test_a_pool_may_ask_for_more_to_fetch_with() -> None:
    service = with_template(
        {"spec": {"initContainers": [{"name": "fetch", "resources": {"requests": {"cpu": "9"}}}]}}
    )
    model = msgspec.structs.replace(service.spec.model, source="s3://bucket/llama")
    service = msgspec.structs.replace(service, spec=msgspec.structs.replace(service.spec, model=model))
    (fetch,) = pod_template(service, service.spec.pools[0], "abc", INSTALLATION)["spec"]["initContainers"]
    assert fetch["resources"] == {part: {"cpu": "9", "memory": "1Gi"} for part in ("requests", "limits")}


@pytest.mark.parametrize(("owner", "changed"), [(os.getuid(), False), (os.getuid() + 1, True)])
def test_a_directory_that_is_the_workers_already_is_left_alone(tmp_path: Path, owner: int, changed: bool) -> None:
    """As where root may change nothing: on NFS that squashes it."""
    cache, programs, called = tmp_path / "cache", tmp_path / "bin", tmp_path / "called"
    cache.mkdir()
    programs.mkdir()
    (programs / "chown").write_text(f'#!/bin/sh\necho "$@" > {called}\nexit 1\n')
    (programs / "chown").chmod(0o755)
    patch: Json = {"spec": {"securityContext": {"runAsUser": owner}}}
    pool = Pool("all", "unified", image="i", template=patch)
    installation = replace(INSTALLATION, cache_host_path=str(cache))
    first = pod_template(read("smallest", installation), pool, "abc", installation)["spec"]["initContainers"][0]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run([*first["command"][:-1], str(cache)], env=environment)
    assert (done.returncode, called.exists()) == (int(changed), changed)
    assert not changed or called.read_text() == f"{owner}:{owner} {cache}\n"


_FETCH_AS = """
import os, sys
import tandem.apps.cli.fetch, tandem.weights.bucket_origin
os.setgroups([]); os.setgid(10001); os.setuid(10001)
from tandem.apps.cli.main import main
sys.exit(main(["fetch", "s3://bucket/m", "--cache", sys.argv[1]]))
"""
as_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="becomes another user, which takes root and setpriv"
)


def fetched_as_worker(cache: Path) -> tuple[int, str]:
    """What `tandem fetch` of a bucket that nobody serves ends with as the workers' user: it never gets as far as the
    bucket where it may not write."""
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "HOME": str(cache), "AWS_REGION": "here"}
    done = subprocess.run(
        [sys.executable, "-c", _FETCH_AS, str(cache / "weights")], env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stderr


@as_root
def test_a_directory_of_the_node_is_refused_with_a_sentence_until_it_is_given_to_the_workers_user(
    tmp_path: Path,
) -> None:
    # The way to it is this user's alone.
    for place in (tmp_path, *tmp_path.parents):
        if place == Path(tempfile.gettempdir()):
            break
        place.chmod(0o755)
    cache = tmp_path / "node"
    cache.mkdir(mode=0o755)
    status, said = fetched_as_worker(cache)
    assert status == 2, said
    assert said == (
        f"tandem fetch: {cache}/weights cannot be written by user 10001: Permission denied; let that user own "
        f"{cache}/weights/models, or name another directory\n"
    )
    installation = replace(INSTALLATION, cache_host_path=str(cache))
    owner = template("smallest", installation=installation)["spec"]["initContainers"][0]
    added = owner["securityContext"]["capabilities"]["add"]
    for _ in range(2):
        # As the runtime runs it: root without any capability but those that are added.
        bounded = ["setpriv", "--bounding-set=-all" + "".join(f",+{each.lower()}" for each in added)]
        subprocess.run([*bounded, *owner["command"][:-1], str(cache)], check=True)
    status, said = fetched_as_worker(cache)
    assert (cache / "weights" / "models").is_dir(), said
    assert (cache / "weights" / "models").stat().st_uid == 10001


def test_a_claim_that_is_pinned_is_checked_and_a_hub_model_is_fetched_by_its_worker() -> None:
    (check,) = of_model(source="pvc://claim/llama", digest=DIGEST)["initContainers"]
    assert check["args"] == ["/models/llama", "--digest", DIGEST]
    assert "initContainers" not in of_model(source="pvc://claim/llama")
    assert "initContainers" not in of_model(source="hf://org/llama")
    assert of_model(source="hf://org/llama", digest=DIGEST)["initContainers"][0]["args"][0] == "hf://org/llama"


def test_replicas_are_said_only_where_the_service_says_them() -> None:
    service, scaled = read("one node"), read("70B, TP 4, P/D, autoscaled")
    assert engine_pool(OWNER, service.spec.pools[0])["spec"]["replicas"] == 2
    assert "replicas" not in engine_pool(OWNER, scaled.spec.pools[0])["spec"]


def test_what_scales_names_the_pool_and_leaves_decisions_to_the_scaler() -> None:
    service = read("70B, TP 4, P/D, autoscaled")
    pool = service.spec.pools[1]
    assert pool.autoscaling is not None
    spec = scaled_object("llama-70b", pool, pool.autoscaling, OWNER, INSTALLATION)["spec"]
    assert spec["scaleTargetRef"]["name"] == "llama-70b-decode"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 16)
    assert spec["triggers"][0]["metadata"]["pool"] == "decode"
    for direction in spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"].values():
        assert direction == {"stabilizationWindowSeconds": 0, "tolerance": "0"}


KEDA = json.loads((Path(__file__).parents[3] / "cluster" / "data" / "keda_scaled_objects.json").read_text())
"""Which fields a ScaledObject has in versions of KEDA."""
TOLERANCES = tuple(
    f"spec.advanced.horizontalPodAutoscalerConfig.behavior.{way}.tolerance" for way in ("scaleDown", "scaleUp")
)


@pytest.mark.parametrize(
    ("version", "lost"),
    [
        ("2.15.1", (*TOLERANCES, "spec.fallback.behavior")),
        ("2.17.2", TOLERANCES),
        ("2.18.3", ()),
        ("2.20.2", ()),
    ],
)
def test_a_scaled_object_has_what_this_version_of_keda_declares(version: str, lost: tuple[str, ...]) -> None:
    pool = read("70B, TP 4, P/D, autoscaled").spec.pools[1]
    assert pool.autoscaling is not None
    whole = scaled_object("llama-70b", pool, pool.autoscaling, OWNER, INSTALLATION)
    fitted, found = pruned(whole, KEDA[version])
    assert found == lost == undeclared(KEDA[version])
    assert needed(found) == (), "it scales all the same"
    assert pruned(fitted, KEDA[version]) == (fitted, ())
    assert fitted["metadata"] == whole["metadata"]
    assert (fitted == whole) == (not lost)


def test_what_scaling_cannot_do_without_is_missed() -> None:
    old = copy.deepcopy(KEDA["2.20.2"])
    del old["properties"]["spec"]["properties"]["triggers"]["items"]["properties"]["metricType"]
    assert needed(undeclared(old)) == ("spec.triggers[].metricType",)
    assert undeclared(None) == ()


def test_services_are_headless_and_budgets_let_nodes_drain() -> None:
    pool = read("smallest").spec.pools[0]
    assert headless_service("demo", pool, OWNER)["spec"]["clusterIP"] == "None"
    assert disruption_budget("demo", pool, OWNER)["spec"]["maxUnavailable"] == 1


def test_a_gate_asks_both_revisions_and_reports_in_its_last_words() -> None:
    job = gate_job(OWNER, Gate(agreement=0.9, kl=0.2), "m", "old", "new", WORKERS, INSTALLATION)
    container = job["spec"]["template"]["spec"]["containers"][0]
    line = " ".join([*container["command"], *container["args"]])
    assert "verify http://tandem-router:8000 http://tandem-router:8000 --model-a m@old --model-b m@new" in line
    assert "--threshold agreement=0.9,kl=0.2 --json /dev/termination-log" in line
    assert container["env"] == []


def test_a_gate_asks_with_a_key_where_routers_want_one() -> None:
    keyed = replace(INSTALLATION, gate_key_secret="api-keys/operator")
    job = gate_job(OWNER, Gate(), "m", "old", "new", WORKERS, keyed)
    (variable,) = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "api-keys", "key": "operator"}}
    # `tandem verify` sends what it finds there.
    assert variable["name"] == "OPENAI_API_KEY"


def test_a_gate_is_pulled_as_its_pool_is_and_takes_little() -> None:
    private = replace(INSTALLATION, image_pull_secrets=("pull",), image_pull_policy="Always", service_account="w")
    pool = template("smallest", installation=private)
    pool["spec"]["containers"].insert(0, {"name": "beside", "image": "beside:1"})
    pool["spec"] |= {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"gpu": "yes"}, "runtimeClassName": "r"}
    pod = gate_job(OWNER, Gate(), "m", "old", "new", pool, private)["spec"]["template"]["spec"]
    for key in ("imagePullSecrets", "serviceAccountName", "tolerations", "nodeSelector"):
        assert pod[key] == pool["spec"][key]
    (container,) = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == (worker(pool)["image"], "Always")
    assert container["resources"].keys() == {"requests", "limits"}
    assert "runtimeClassName" not in pod, "it computes nothing"


def test_a_gate_is_asked_again_only_where_nothing_was_compared() -> None:
    spec = gate_job(OWNER, Gate(), "m", "old", "new", WORKERS, INSTALLATION)["spec"]
    made, evicted = spec["podFailurePolicy"]["rules"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "what a policy for failures needs"
    assert made["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [TOO_DIFFERENT]}
    assert (made["action"], evicted["action"], spec["backoffLimit"]) == ("FailJob", "Ignore", 2)


@pytest.mark.parametrize(
    ("base", "patch", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": None, "c": {"d": None, "e": 1}}, {"a": 1, "c": {"e": 1}}),
        ({"args": [1, 2]}, {"args": [3]}, {"args": [3]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "value": "3"},
                    {"name": "C", "value": "4"},
                ]
            },
        ),
        (
            {"env": [{"name": "A"}, {"name": "B"}]},
            {"env": [{"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "B"}]},
        ),
        ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
        ({"env": [{"name": "A"}]}, {"env": [{"$patch": "replace"}, {"name": "Z"}]}, {"env": [{"name": "Z"}]}),
    ],
)
def test_patches_merge_as_kubectl_merges_them(base: Any, patch: Any, expected: Any) -> None:
    assert merged(base, patch) == expected
