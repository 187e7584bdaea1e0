"""Real HTTP servers for weights: files as a bucket, a hub or a registry serves them, and ways to misbehave."""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

ACCESS_KEY: Final = "AKIATEST"
SECRET_KEY: Final = "secret-of-the-test"
TOKEN: Final = "token-of-the-test"
SAS: Final = "signature-of-the-test"
REGION: Final = "us-east-1"
_WRITTEN: Final = "Sat, 28 Nov 2026 00:00:00 GMT"
BUCKETS: Final = {"s3": "s3://bucket/llama/v1", "gs": "gs://bucket/llama/v1", "az": "az://container/llama/v1"}
"""A source in a bucket of each cloud, all of which one server is."""


def bucket_environment(url: str) -> dict[str, str]:
    """What lets clients of every cloud in at the server of `url`."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "GOOGLE_BASE_URL": url,
        "GOOGLE_BEARER_TOKEN": TOKEN,
        "AZURE_STORAGE_ENDPOINT": f"{url}/account",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_SAS_TOKEN": f"sv=2023-11-03&sig={SAS}",
    }


def s3_signature(secret_key: str, target: str, headers: Mapping[str, str]) -> str:
    """The AWS Signature Version 4 of a GET without a body, from those headers that the client says it has signed."""
    given = dict(part.split("=", 1) for part in headers["authorization"].partition(" ")[2].split(", "))
    scope, names = given["Credential"].partition("/")[2], given["SignedHeaders"]
    path, _, query = target.partition("?")
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in names.split(";"))
    ordered = "&".join(sorted(query.split("&")))
    request = "\n".join(("GET", path, ordered, lines, names, headers["x-amz-content-sha256"]))
    signed = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    to_sign = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, signed))
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


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
    """Of answers for these; the name of a listing is empty."""
    public: bool = False
    """Whether buckets are read without credentials."""
    listing: bytes | None = None
    """Sent instead of every listing."""
    neighbours: tuple[str, ...] = ()
    """Keys beside the prefix that a listing has, too."""
    silent: set[str] = field(default_factory=set)
    """After a thousand bytes of these nothing comes until the server ends."""
    ended: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """Targets and headers, whose names are in lower case."""
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
        self.store.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        url = urlsplit(self.path)
        path, query = unquote(url.path), {name: values[0] for name, values in parse_qs(url.query).items()}
        if path.startswith("/bucket"):
            self._bucket(path.removeprefix("/bucket").lstrip("/"), query)
        elif path.startswith("/account/container"):
            self._container(path.removeprefix("/account/container").lstrip("/"), query)
        elif path.startswith("/v2/"):
            self._registry(path.split("/"))
        elif path.startswith("/api/models/"):
            self._hub()
        elif path == "/token":
            self._send(b'{"token": "let-me-in"}')
        else:
            self._file(path.rpartition("/")[2])

    def _bucket(self, key: str, query: dict[str, str]) -> None:
        if not self._let_in():
            self._send(b"<Error><Code>AccessDenied</Code></Error>", 403)
        elif query.get("list-type") == "2":
            self._list(query)
        else:
            self._file(key.rpartition("/")[2])

    def _let_in(self) -> bool:
        """Whether the credentials are those of Google or of Amazon."""
        given = self.headers["authorization"]
        if given is None:
            return self.store.public
        if given.startswith("Bearer "):
            return bool(given == f"Bearer {TOKEN}")
        wanted = s3_signature(SECRET_KEY, self.path, self.store.requests[-1][1])
        begin = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/"
        return given.startswith(begin) and f"/{REGION}/s3/" in given and given.endswith(f"Signature={wanted}")

    def _list(self, query: dict[str, str]) -> None:
        """Two names a page, as Amazon and Google list them; the first has what a console makes of a folder."""
        names, more = self._page(query.get("continuation-token", ""))
        prefix = query.get("prefix", "")
        keys = {f"{prefix}{name}": len(self.store.files[name]) for name in names}
        if prefix and "continuation-token" not in query:
            keys |= {prefix: 0, **dict.fromkeys(self.store.neighbours, 1)}
        parts = "".join(
            f"<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-11-28T00:00:00.000Z</LastModified>"
            f'<ETag>"e"</ETag></Contents>'
            for key, size in keys.items()
        )
        next_page = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        self._listed(f'<ListBucketResult xmlns="{space}">{parts}{next_page}</ListBucketResult>')

    def _container(self, key: str, query: dict[str, str]) -> None:
        if query.get("sig") != SAS and not self.store.public:
            self._send(b"<Error><Code>AuthenticationFailed</Code></Error>", 403)
        elif query.get("comp") != "list":
            self._file(key.rpartition("/")[2])
        else:
            names, more = self._page(query.get("marker", ""))
            blobs = "".join(
                f"<Blob><Name>{query['prefix']}{name}</Name><Properties>"
                f"<Last-Modified>{_WRITTEN}</Last-Modified><Etag>0x1</Etag>"
                f"<Content-Length>{len(self.store.files[name])}</Content-Length>"
                f"<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
                for name in names
            )
            next_page = f"<NextMarker>{more}</NextMarker>"
            self._listed(f"<EnumerationResults><Blobs>{blobs}</Blobs>{next_page}</EnumerationResults>")

    def _page(self, token: str) -> tuple[list[str], str]:
        """Names of two files, and the token of the next page."""
        names, begin = sorted(self.store.files), int(token or 0)
        return names[begin : begin + 2], str(begin + 2) if begin + 2 < len(names) else ""

    def _listed(self, listing: str) -> None:
        self._send(
            listing.encode() if self.store.listing is None else self.store.listing, self.store.status.get("", 200)
        )

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
        if self.headers.get("if-match", tag) != tag:
            self._send(b"", 412)
            return
        if asked and not store.whole_only and self.headers.get("if-range", tag) == tag:
            store.ranges.append(f"{name} {asked}")
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(data):
                self._send(b"", 416)
                return
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
        self.send_header("last-modified", _WRITTEN)
        if begin:
            self.send_header("content-range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if name in store.silent:
            self.wfile.write(body[:1000])
            store.ended.wait()
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
        store.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5.0)
