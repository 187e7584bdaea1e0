"""The charts over their life: upgraded under load with new certificates, and removed."""

from collections.abc import Iterator

import pytest

from tests.cluster.lab.admin import Admin
from tests.cluster.lab.lab import Lab
from tests.cluster.scenario.helm import CHARTS, Helm
from tests.cluster.scenario.load import Load
from tests.cluster.scenario.platform import Platform, is_ready, simulated

pytestmark = pytest.mark.timeout(600)
NAMESPACE = "second"
RELEASE = ("tandem", str(CHARTS / "tandem"), "--namespace", NAMESPACE, "--wait", "--timeout", "150s")


@pytest.fixture(scope="module")
def second(platform: Platform, complete_lab: Lab, admin: Admin, helm: Helm) -> Iterator[Platform]:
    """A release of its own beside the one of the other tests, with a service."""
    helm("install", *RELEASE, "--create-namespace", "--set", "operator.replicas=1")
    own = Platform(complete_lab, admin, NAMESPACE)
    own.apply(simulated("kept"))
    own.until_ready("kept")
    yield own
    own.delete("kept")


def uids(platform: Platform, **labels: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in platform.pods(**labels)}


def test_an_upgrade_with_new_certificates_fails_no_request(second: Platform, helm: Helm) -> None:
    workers, old = uids(second, service="kept"), uids(second, component="router")
    with Load(second.routers, "kept") as load:
        load.several()
        helm(
            "upgrade",
            *RELEASE,
            "--reuse-values",
            "--set",
            "tls.rotation=again",
            "--set",
            "commonAnnotations.note=new",
        )
        second.until(lambda: not old & uids(second, component="router"), "old routers are left")
        load.several()
    assert load.failures == []
    assert uids(second, service="kept") == workers, "workers had no reason to go"
    second.until_ready("kept")


def test_what_is_served_outlives_the_release(second: Platform, helm: Helm) -> None:
    said = helm("uninstall", "tandem", "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
    assert "uninstalled" in said
    second.until(lambda: not second.pods(component="router"), "routers are left")
    assert second.get("kept")["spec"]["pools"]
    assert [is_ready(pod) for pod in second.pods(service="kept")] == [True, True]
    helm("install", *RELEASE, "--set", "operator.replicas=1", "--set", "router.replicas=1")
    second.until(lambda: second.answers("kept"), "the new release does not serve what the old one did")
