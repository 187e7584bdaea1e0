"""HAProxy is moved away from what all clusters of a machine would share."""

from pathlib import Path

import pytest

from tandem.apps.ray.ingress import IngressPorts, ingress_environment
from tandem.core.deadlines import Deadlines

PORTS = IngressPorts(http=8000, statistics=18404, metrics=19101, fallback=18500)


def test_every_path_is_in_the_folder_and_every_port_is_ours() -> None:
    environment = ingress_environment(Path("/tmp/th-1"), PORTS)
    paths = {key: value for key, value in environment.items() if value.startswith("/")}
    assert len(paths) == 5
    assert all(value.startswith("/tmp/th-1") for value in paths.values())
    ports = {int(value) for key, value in environment.items() if key.endswith("_PORT")}
    assert ports == {PORTS.statistics, PORTS.metrics, PORTS.fallback}
    assert environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"


def test_streams_outlive_a_haproxy_that_is_followed_by_another_one() -> None:
    """As long as a request may take."""
    assert (
        int(ingress_environment(Path("/tmp/th-1"), PORTS)["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"])
        > Deadlines().total_s
    )


def test_a_folder_that_is_too_long_for_its_sockets_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="too long"):
        ingress_environment(Path("/tmp") / ("x" * 40), PORTS)
