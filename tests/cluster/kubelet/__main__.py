"""`python -m tests.cluster.kubelet`: one node, until a signal ends it and all that it runs."""

import argparse
import asyncio
import logging
import signal
from pathlib import Path
from urllib.parse import urlsplit

from kubernetes.aio import client, config

from tandem.kube.kube_cluster import KubeCluster
from tests.cluster.kubelet.image import Image
from tests.cluster.kubelet.kubelet import Identity, Kubelet
from tests.cluster.kubelet.objects import ApiObjects
from tests.cluster.kubelet.pod import Means
from tests.cluster.lab.network import BRIDGE, PREFIX_BITS, ip


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--subnet", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--capacity", default="", help="nvidia.com/gpu=8,...")
    parser.add_argument("--labels", default="")
    parser.add_argument(
        "--backoff-s", type=float, default=1.0, help="first wait before a restart (Kubernetes has 10)"
    )
    given = parser.parse_args()
    address = f"10.77.{given.subnet}.1"
    ip("addr", "replace", f"{address}/{PREFIX_BITS}", "dev", BRIDGE)
    configuration = client.Configuration()
    await config.load_kube_config(config_file=given.kubeconfig, client_configuration=configuration)
    api = client.ApiClient(configuration)
    cluster = KubeCluster(api)
    server = urlsplit(configuration.host)
    services = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
    means = Means(
        given.node, address, cluster, ApiObjects(api, cluster), Image(), given.directory, services, given.backoff_s
    )
    kubelet = Kubelet(means, Identity(_pairs(given.labels), _pairs(given.capacity), given.subnet))
    running = asyncio.create_task(kubelet.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        await cluster.close()


def _pairs(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if part)


if __name__ == "__main__":
    asyncio.run(main())
