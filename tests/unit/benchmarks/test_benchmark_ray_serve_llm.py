"""Whose CPU time is counted as what, when Tandem on Ray is held against Ray Serve LLM."""

import pytest

from benchmarks.ray_serve_llm import DAEMONS, ENGINE, SERVING, kind_of

COMMANDS = {
    "VLLM::EngineCore": ENGINE,
    "python -m tandem.process.lifeline -m decode_worker --events": ENGINE,
    "ray::ServeReplica:llm:Decode:model": SERVING,
    "ray::ServeReplica:model-1:prefill": SERVING,
    "ray::ProxyActor": SERVING,
    "haproxy -f /tmp/x/haproxy.cfg": SERVING,
    "python ray/_private/workers/default_worker.py --raylet-name=/tmp/x/raylet": SERVING,
    "ray/core/src/ray/raylet/raylet --raylet_socket_name=x": DAEMONS,
    "ray/core/src/ray/gcs/gcs_server --log_dir=x": DAEMONS,
    "python ray/_private/log_monitor.py": DAEMONS,
    "ray::DashboardAgent": DAEMONS,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_is_engine_daemon_or_serving(command: str) -> None:
    assert kind_of(command) == COMMANDS[command]
