"""Whether Serve runs is asked of the cluster, whatever Ray remembers of a controller that has ended."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve")

from tandem.apps.ray import serve_client
from tandem.apps.ray.cluster import ingress_port
from tandem.apps.ray.ingress import start_serve
from tandem.core.errors import TandemError


class Remembered:
    """What Ray has cached, and the controller that the cluster has by name; None where it has none."""

    def __init__(self) -> None:
        self.controller: Any = SimpleNamespace(_actor_id="first")
        self.cached: Any = None

    def get_actor(self, name: str, namespace: str) -> Any:
        if self.controller is None:
            raise ValueError(f"no actor {name}")
        return self.controller

    def client(self) -> Any:
        if self.cached is None:
            details = {"http_options": {"port": 8000}}
            self.cached = SimpleNamespace(_controller=self.controller, get_serve_details=lambda: details)
        return self.cached

    def disconnect(self) -> None:
        self.cached = None


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Remembered:
    remembered = Remembered()
    monkeypatch.setattr("ray.get_actor", remembered.get_actor)
    for module in ("ray.serve.context", serve_client.__name__):
        monkeypatch.setattr(f"{module}._get_global_client", lambda **_: remembered.client())
        monkeypatch.setattr(f"{module}._disconnect", remembered.disconnect)
    return remembered


def test_a_controller_that_another_command_has_ended_is_forgotten(ray: Remembered) -> None:
    assert serve_client.serve_client() is ray.cached
    ray.controller = None
    assert serve_client.serve_client() is None
    assert ray.cached is None


def test_serve_that_was_ended_and_started_by_others_has_another_client(ray: Remembered) -> None:
    serve_client.serve_client()
    ray.controller = SimpleNamespace(_actor_id="second")
    assert serve_client.serve_client()._controller is ray.controller


def test_serve_is_started_again_although_ray_remembers_one(ray: Remembered, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("ray.serve.start", lambda **options: started.append(options))
    ray.client()
    assert not start_serve(8000, {})
    assert ingress_port() == 8000
    ray.controller = None
    with pytest.raises(TandemError, match="Ray Serve does not run"):
        ingress_port()
    ray.client()
    assert start_serve(8000, {})
    assert len(started) == 1
