"""Services as the scaler reads them: those that are scaled by their load, from the mirror."""

from collections.abc import Iterator

from control_plane.objects.names import POOL, SERVICE, labels_of
from control_plane.observe.pods import read_pod
from control_plane.operator.controller import Controller
from control_plane.operator.mirror import Mirror
from control_plane.reports.service import PoolObserved, ServiceObserved, WorkerPod
from tandem.kube.kinds import ENGINE_POOL, POD
from tandem.kube.store import key_of
from tandem.spec.service import Spec


def scaled_services(mirror: Mirror, controller: Controller) -> Iterator[ServiceObserved]:
    """The services with a sound specification in which at least one pool has autoscaling."""
    for obj in mirror.services():
        key = key_of(obj)
        wish = controller.wish(key, obj)
        if wish.service is None or wish.problem is not None:
            continue
        if any(pool.autoscaling is not None for pool in wish.service.spec.pools):
            yield ServiceObserved(*key, wish.service.spec, _pools(mirror, key, wish.service.spec))


def _pools(mirror: Mirror, key: tuple[str, str], spec: Spec) -> dict[str, PoolObserved]:
    namespace, name = key
    stores = mirror.stores(namespace)
    wanted = {
        labels_of(obj).get(POOL, ""): int(obj["spec"].get("replicas", 1))
        for obj in stores[ENGINE_POOL].labelled(SERVICE, name, namespace)
    }
    pods: dict[str, dict[str, WorkerPod]] = {}
    for obj in stores[POD].labelled(SERVICE, name, namespace):
        pod = read_pod(obj, {})
        if pod is not None and not pod.leaving:
            pods.setdefault(pod.pool, {})[pod.name] = WorkerPod(pod.created_s, pod.ready_s)
    return {
        pool.name: PoolObserved(wanted.get(pool.name, pool.first_replicas), pods.get(pool.name, {}))
        for pool in spec.pools
    }
