"""Serve's client of this process, as the cluster is now: Ray's own goes on asking a controller that has ended."""

from typing import Any

import ray
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.context import _disconnect, _get_global_client


def serve_client() -> Any:
    """None where Serve does not run: another command may have ended it since this process asked last."""
    try:
        controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        _disconnect()
        return None
    client = _get_global_client()
    if client._controller._actor_id != controller._actor_id:
        _disconnect()
        client = _get_global_client()
    return client
