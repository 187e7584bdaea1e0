"""Conditions as figures for alerts: whether services are ready and available, anything else only while it holds."""

from control_plane.operator.condition_figures import SERVICES_MAX, condition_figures
from tandem.kube.kinds import Json


def condition(type_: str, holds: bool, reason: str = "x") -> Json:
    return {"type": type_, "status": "True" if holds else "False", "reason": reason}


def service(name: str, *conditions: Json) -> Json:
    return {"metadata": {"name": name, "namespace": "llm"}, "status": {"conditions": list(conditions)}}


def pool(name: str, pool: str, *conditions: Json) -> Json:
    labels = {"tandem.dev/service": name, "tandem.dev/pool": pool}
    metadata = {"name": f"{name}-{pool}", "namespace": "llm", "labels": labels}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def test_a_healthy_service_has_two_figures() -> None:
    healthy = service("a", condition("Ready", True), condition("Available", True), condition("Stalled", False))
    pools = [pool("a", "decode", condition("DoesNotFit", False)), pool("gone", "x", condition("DoesNotFit", True))]
    assert condition_figures([healthy], pools) == {
        ("llm/a", "", "Ready"): 1.0,
        ("llm/a", "", "Available"): 1.0,
    }
    assert condition_figures([{"metadata": {"name": "new", "namespace": "llm"}}], []) == {
        ("llm/new", "", "Ready"): 0.0
    }


def test_what_serves_or_sleeps_is_available_though_it_is_not_ready() -> None:
    services = [
        service("old", condition("Ready", False), condition("Available", True)),
        service("zero", condition("Ready", False), condition("Available", False, "ScaledToZero")),
        service("down", condition("Ready", False), condition("Available", False, "NoRoutableRevision")),
    ]
    found = condition_figures(services, [])
    assert [found[f"llm/{name}", "", "Available"] for name in ("old", "zero", "down")] == [1.0, 1.0, 0.0]


def test_what_is_wrong_is_told_by_service_and_pool() -> None:
    services = [
        service("a", condition("Ready", False), condition("Stalled", True, "RolledBack")),
        service("b", condition("Ready", False), condition("Stalled", True, "NameConflict")),
        service("c", condition("Ready", True), condition("KvOverTcp", True), condition("FieldsIgnored", True)),
    ]
    pools = [pool("a", "decode", condition("WorkersFailing", True), condition("InsufficientCapacity", True))]
    assert condition_figures(services, pools) == {
        ("llm/a", "", "Ready"): 0.0,
        ("llm/a", "", "Stalled"): 1.0,
        ("llm/a", "", "RolledBack"): 1.0,
        ("llm/a", "decode", "WorkersFailing"): 1.0,
        ("llm/a", "decode", "InsufficientCapacity"): 1.0,
        ("llm/b", "", "Ready"): 0.0,
        ("llm/b", "", "Stalled"): 1.0,
        ("llm/b", "", "NameConflict"): 1.0,
        ("llm/c", "", "Ready"): 1.0,
        ("llm/c", "", "KvOverTcp"): 1.0,
    }


def test_there_is_a_bound() -> None:
    many = [service(f"s{number}", condition("Ready", True)) for number in range(SERVICES_MAX + 10)]
    assert len(condition_figures(many, [])) == SERVICES_MAX
