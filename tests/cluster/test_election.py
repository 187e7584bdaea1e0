"""Leader election of two candidates over a Lease on a real API server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tandem.kube.election import Election
from tandem.kube.kube_cluster import KubeCluster, connect
from tandem.kube.lease import LeaseSettings
from tandem.process.system import SystemClock, SystemEntropy
from tests.cluster.lab.admin import Admin
from tests.cluster.lab.lab import Lab

BOUND_S = 60.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def pair(lab: Lab, namespace: str) -> AsyncIterator[tuple[Election, Election]]:
    """Two candidates for one Lease, each with connections of its own."""
    settings = LeaseSettings("operator", namespace, duration_s=4.0, renew_within_s=3.0, retry_s=0.5, call_s=2.0)
    clusters: list[KubeCluster] = [await connect(str(lab.kubeconfig())) for _ in range(2)]
    clock, entropy = SystemClock(), SystemEntropy()
    first, second = (
        Election(cluster, settings, name, clock, entropy)
        for cluster, name in zip(clusters, ("one", "two"), strict=True)
    )
    yield first, second
    for cluster in clusters:
        await cluster.close()


async def test_only_one_leads_and_a_release_hands_over_at_once(
    pair: tuple[Election, Election], admin: Admin, namespace: str
) -> None:
    first, second = pair
    async with asyncio.timeout(BOUND_S):
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        # Longer than the lease: only renewing keeps the second one out.
        for _ in range(60):
            assert first.leading
            assert not second.leading
            await asyncio.sleep(0.1)
        holding.cancel()
        await first.release()
        await waiting
    assert second.leading
    assert not first.leading
    lease = admin.done("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/operator")
    assert lease["spec"]["holderIdentity"] == "two"
    assert lease["spec"]["leaseTransitions"] == 1


async def test_the_lease_of_one_that_vanished_is_taken_when_it_has_run_out(pair: tuple[Election, Election]) -> None:
    first, second = pair
    async with asyncio.timeout(BOUND_S):
        await first.acquire()
        begun = asyncio.get_running_loop().time()
        await second.acquire()
    assert not first.leading, "two would lead"
    assert asyncio.get_running_loop().time() - begun >= 3.0


async def test_a_leader_that_cannot_renew_says_so_before_another_can_lead(
    pair: tuple[Election, Election], lab: Lab
) -> None:
    first, second = pair
    async with asyncio.timeout(BOUND_S):
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        lab.api.stop(9)
        said = await holding
        assert "could not be renewed within 3 s" in said
        assert not first.leading
        await asyncio.to_thread(lab.start_api)
        await second.acquire()
    assert second.leading
