"""As much of an API server as Helm's `lookup` asks for: what kinds there are, and Secrets by name."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

Json = dict[str, Any]

_VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
_RESOURCES: Final = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [
        {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get", "list"]}
    ],
}


class SecretServer:
    """`url` is where it listens; `put` stores Secrets as `kubectl apply` would leave them."""

    def __init__(self, port: int, secrets: dict[tuple[str, str], Json]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._secrets = secrets

    def put(self, secret: Json) -> None:
        metadata = secret["metadata"]
        encoded = {
            key: base64.b64encode(value.encode()).decode() for key, value in secret.get("stringData", {}).items()
        }
        self._secrets[metadata["namespace"], metadata["name"]] = {
            **{key: value for key, value in secret.items() if key != "stringData"},
            "data": {**secret.get("data", {}), **encoded},
        }

    @property
    def kubeconfig(self) -> str:
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "stand-in", "cluster": {"server": self.url}}],
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [{"name": "here", "context": {"cluster": "stand-in", "user": "nobody"}}],
                "current-context": "here",
            }
        )


@contextmanager
def serving() -> Iterator[SecretServer]:
    """One on a free port of the loopback interface, ended with the block."""
    secrets: dict[tuple[str, str], Json] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, answer = _answer(self.path.partition("?")[0], secrets)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield SecretServer(server.server_port, secrets)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


def _answer(path: str, secrets: dict[tuple[str, str], Json]) -> tuple[int, Json]:
    match path.strip("/").split("/"):
        case ["version"]:
            return 200, dict(_VERSION)
        case ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": []}
        case ["api", "v1"]:
            return 200, dict(_RESOURCES)
        case ["api", "v1", "namespaces", namespace, "secrets", name] if (namespace, name) in secrets:
            return 200, secrets[namespace, name]
    problem = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
    return 404, {**problem, "message": f"{path} not found"}
