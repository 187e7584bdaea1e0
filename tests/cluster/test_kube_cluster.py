"""The cluster contract kept by the API client against a real API server."""

import pytest

from tandem.kube.kube_cluster import KubeCluster
from tests.cluster.lab.lab import Lab
from tests.contract.cluster import ClusterStage, TestApplying, TestReading, TestReplacingAndDeleting

__all__ = ["TestApplying", "TestReading", "TestReplacingAndDeleting"]


@pytest.fixture
def stage(lab: Lab, cluster: KubeCluster, namespace: str) -> ClusterStage:
    return ClusterStage(cluster, namespace, collects_garbage=lab.complete)
