"""Real HTTP servers for weights: files as a bucket, a hub or a registry serves them, and ways to misbehave."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tandem.weights.s3_signature import Credentials, signed_headers

KEYS = Credentials("AKIATEST", "secret-of-the-test")


def safetensors(fill: int, size: int) -> bytes:
    """One tensor of `size` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes([fill]) * size


def model(shards: int = 3, size: int = 300_000) -> dict[str, bytes]:
    """The files of a sharded model."""
    names = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    files = {name: safetensors(number + 1, size) for number, name in enumerate(names)}
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = b'{"model_type": "llama"}'
    files["pytorch_model.bin"] = b"pickled"
    return files


@dataclass
class Store:
    """What one server has, and what it does wrong. `served` counts body bytes by file name."""

    files: dict[str, bytes]
    cut: dict[str, int] = field(default_factory=dict)
    """Answers for these end after so many bytes, once per entry of `cuts`."""
    cuts: int = 10**9
    broken: dict[str, bytes] = field(default_factory=dict)
    """Sent instead, under the sizes and checksums of the right ones."""
    changed: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """What these are from their first answer that was cut on, and after how many bytes the next is cut."""
    whole_only: bool = False
    """Whether ranges are not understood."""
    status: dict[str, int] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def weights_served(self) -> int:
        """Body bytes of weights."""
        return sum(count for name, count in self.served.items() if name.endswith(".safetensors"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return None

    @property
    def store(self) -> Store:
        found: Store = self.server.store  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), {name: values[0] for name, values in parse_qs(url.query).items()}
        if path.startswith("/bucket"):
            self._bucket(path.removeprefix("/bucket").lstrip("/"), query)
        elif path.startswith("/v2/"):
            self._registry(path.split("/"))
        elif path.startswith("/api/models/"):
            self._hub()
        elif path == "/token":
            self._send(b'{"token": "let-me-in"}')
        else:
            self._file(path.rpartition("/")[2])

    def _bucket(self, key: str, query: dict[str, str]) -> None:
        stamp, host = self.headers["x-amz-date"], self.headers["host"]
        path = urlsplit(self.path).path
        wanted = signed_headers(KEYS, "us-east-1", host, unquote(path), query, stamp)["authorization"]
        if self.headers["authorization"] != wanted:
            self._send(b"<Error/>", 403)
        elif query.get("list-type") == "2":
            self._list(query)
        else:
            self._file(key.rpartition("/")[2])

    def _list(self, query: dict[str, str]) -> None:
        """Two names a page."""
        names = sorted(self.store.files)
        begin = int(query.get("continuation-token", "0"))
        parts = "".join(
            f"<Contents><Key>{query['prefix']}{name}</Key><Size>{len(self.store.files[name])}</Size></Contents>"
            for name in names[begin : begin + 2]
        )
        more = f"<NextContinuationToken>{begin + 2}</NextContinuationToken>" if begin + 2 < len(names) else ""
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        self._send(f'<ListBucketResult xmlns="{space}">{parts}{more}</ListBucketResult>'.encode())

    def _registry(self, parts: list[str]) -> None:
        if self.headers["authorization"] != "Bearer let-me-in":
            realm = f'Bearer realm="{self.store.url}/token",service="test",scope="pull"'
            self._send(b"{}", 401, {"www-authenticate": realm})
        elif parts[-2] == "manifests":
            layers = [
                {
                    "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
                    "size": len(data),
                    "annotations": {"org.opencontainers.image.title": name},
                }
                for name, data in self.store.files.items()
            ]
            self._send(json.dumps({"schemaVersion": 2, "layers": layers}).encode())
        else:
            by_digest = {
                f"sha256:{hashlib.sha256(data).hexdigest()}": name for name, data in self.store.files.items()
            }
            self._file(by_digest[parts[-1]])

    def _hub(self) -> None:
        siblings = [
            {"rfilename": name, "size": len(data)}
            | (
                {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
                if name.endswith(".safetensors")
                else {}
            )
            for name, data in self.store.files.items()
        ]
        self._send(json.dumps({"id": "org/model", "sha": "c0ffee", "siblings": siblings}).encode())

    def _file(self, name: str) -> None:
        store = self.store
        if name not in store.files or name in store.status:
            self._send(b"", store.status.get(name, 404))
            return
        data = store.broken.get(name, store.files[name])
        tag, begin = f'"{hashlib.md5(data).hexdigest()}"', 0
        asked = self.headers["range"]
        if asked and not store.whole_only and self.headers.get("if-range", tag) == tag:
            store.ranges.append(f"{name} {asked}")
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
        body = data[begin:]
        if name in store.cut and store.cuts > 0:
            store.cuts -= 1
            sent = body[: store.cut[name]]
            if name in store.changed:
                store.files[name], store.cut[name] = store.changed.pop(name)
        else:
            sent = body
        self.send_response(206 if begin else 200)
        self.send_header("etag", tag)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        store.served[name] = store.served.get(name, 0) + len(sent)
        self.wfile.write(sent)
        if len(sent) < len(body):
            self.close_connection = True

    def _send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(store: Store) -> Iterator[Store]:
    """A server on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.store = store  # type: ignore[attr-defined]
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
