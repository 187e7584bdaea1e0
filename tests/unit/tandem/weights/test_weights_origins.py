"""What registries and hubs are asked for, and what their answers mean: requests and answers in memory."""

import functools
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tandem.core.errors import TandemError
from tandem.weights import web
from tandem.weights.hub_origin import HubOrigin
from tandem.weights.listing import File
from tandem.weights.oci_origin import OciOrigin
from tandem.weights.web import Web, refuse

Answer = Callable[[httpx.Request], httpx.Response]


class Wire:
    """What is asked for, and answered by `answer`."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []
        self.answer: Answer = lambda request: httpx.Response(200)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answer(request)

    @property
    def urls(self) -> list[str]:
        return [str(request.url) for request in self.asked]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    found = Wire()
    client = functools.partial(httpx.Client, transport=httpx.MockTransport(found))
    monkeypatch.setattr("tandem.weights.web.httpx.Client", client)
    return found


def failure(run: Callable[[], object]) -> TandemError:
    with pytest.raises(TandemError) as caught:
        run()
    return caught.value


def streamed(origin: Any, name: str, offset: int = 0, tag: str = "") -> tuple[int, str, bytes]:
    """Where a stream of an origin begins, its tag and its bytes."""
    with origin.open(name, offset, tag) as stream:
        return stream.offset, stream.tag, b"".join(stream.chunks)


def ranged(data: bytes, tag: str = '"t"') -> Answer:
    """A server that knows ranges of one file, of which `if-range` has to be the tag."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = request.headers.get("range", "")
        if asked and request.headers.get("if-range", tag) == tag:
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(data):
                return httpx.Response(416)
            return httpx.Response(206, headers={"etag": tag}, content=iter((data[begin:],)))
        return httpx.Response(200, headers={"etag": tag}, content=iter((data,)))

    return answer


# ---- HTTP ----


@pytest.mark.parametrize(
    ("offset", "tag", "found"),
    [
        (0, "", (0, '"t"', b"abcdef")),
        (2, '"t"', (2, '"t"', b"cdef")),
        (2, "", (2, '"t"', b"cdef")),
        (2, '"old"', (0, '"t"', b"abcdef")),
        (6, '"t"', (6, '"t"', b"")),
    ],
)
def test_a_file_goes_on_where_it_stopped_if_it_is_still_the_same(
    offset: int, tag: str, found: tuple[int, str, bytes], wire: Wire
) -> None:
    wire.answer = ranged(b"abcdef")
    with Web().stream("f", "http://store/f", offset, tag) as stream:
        assert (stream.offset, stream.tag, b"".join(stream.chunks)) == found
    assert wire.asked[0].headers["accept-encoding"] == "identity", "offsets count bytes of the file itself"


def test_headers_of_the_client_and_of_the_request_are_both_sent(wire: Wire) -> None:
    """A hub's token is one of the client, a registry's one of the request."""
    client = Web({"authorization": "Bearer hub"})
    client.get("http://store/a", {"x-one": "1"})
    with client.stream("b", "http://store/b", 0, "", {"x-two": "2"}):
        pass
    assert [each.headers["authorization"] for each in wire.asked] == ["Bearer hub"] * 2
    assert wire.asked[0].headers["x-one"] == "1"
    assert wire.asked[1].headers["x-two"] == "2"
    Web().get("http://store/c")
    assert "authorization" not in wire.asked[2].headers


def test_a_listing_without_end_is_given_up_and_does_not_fill_the_memory(wire: Wire) -> None:
    sent = list[bytes]()

    def body() -> Iterator[bytes]:
        piece = bytes(1 << 22)
        while len(sent) < 40:
            sent.append(piece)
            yield piece

    wire.answer = lambda request: httpx.Response(200, content=body())
    error = failure(lambda: Web().get("http://store/list"))
    assert (error.code, error.message) == ("bad_model", "http://store/list: more than 67,108,864 bytes")
    assert len(sent) == 17


@pytest.mark.parametrize(("size", "taken"), [(10, True), (11, False)])
def test_a_listing_of_the_largest_size_is_taken(
    size: int, taken: bool, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_BODY_MAX", 10)
    wire.answer = lambda request: httpx.Response(200, content=bytes(size))
    if taken:
        assert Web().get("http://store/list").content == bytes(size)
    else:
        assert failure(lambda: Web().get("http://store/list")).code == "bad_model"


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (302, "bad_model", "status 302"),
        (400, "bad_model", "status 400"),
        (401, "bad_model", "credentialsSecret"),
        (403, "bad_model", "credentialsSecret"),
        (404, "bad_model", "is missing"),
        (429, "link_lost", "status 429"),
        (499, "bad_model", "status 499"),
        (500, "link_lost", "status 500"),
        (503, "link_lost", "status 503"),
    ],
)
def test_what_may_get_better_is_asked_again_and_what_will_not_is_told(status: int, code: str, says: str) -> None:
    error = failure(lambda: refuse("the file", httpx.Response(status)))
    assert error.code == code
    assert says in error.message
    assert error.message.startswith("the file")
    refuse("the file", httpx.Response(200))
    refuse("the file", httpx.Response(206))


def test_a_server_that_cannot_be_reached_may_be_later(wire: Wire) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    def stream() -> None:
        with Web().stream("f", "http://store/f", 0, ""):
            pass

    wire.answer = answer
    for run in (lambda: Web().get("http://store/f"), stream):
        error = failure(run)
        assert (error.code, error.message.rpartition(": ")[2]) == ("link_lost", "no route")


# ---- registries ----

DIGEST = f"sha256:{'a' * 64}"


def manifest() -> dict[str, Any]:
    title = "org.opencontainers.image.title"
    layers = [{"digest": DIGEST, "size": 6, "annotations": {title: "config.json"}}, {"digest": "sha256:b", "size": 1}]
    return {"layers": layers}


def registry(request: httpx.Request) -> httpx.Response:
    if request.url.path.startswith("/v2/team/model/manifests/"):
        return httpx.Response(200, text=json.dumps(manifest()))
    return ranged(b"abcdef", "")(request)


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("registry.example", "https"),
        ("registry.example:5000", "https"),
        ("localhost.example:5000", "https"),
        ("localhost", "http"),
        ("localhost:5000", "http"),
        ("127.0.0.1:5000", "http"),
        ("[::1]:5000", "http"),
    ],
)
def test_only_registries_on_this_machine_are_spoken_to_without_tls(host: str, scheme: str, wire: Wire) -> None:
    """Elsewhere the password, and weights, would go over the network for all to see."""
    wire.answer = registry
    origin = OciOrigin(f"{host}/team/model", "v1")
    assert origin.files() == (File("config.json", 6, "a" * 64),)
    assert streamed(origin, "config.json") == (0, DIGEST, b"abcdef")
    base = f"{scheme}://{host}/v2/team/model"
    assert wire.urls == [f"{base}/manifests/v1", f"{base}/blobs/{DIGEST}"]
    assert wire.asked[0].headers["accept"] == "application/vnd.oci.image.manifest.v1+json"


@pytest.mark.parametrize(
    ("tag", "found"),
    [("", (4, DIGEST, b"ef")), (DIGEST, (4, DIGEST, b"ef")), ("sha256:old", (0, DIGEST, b"abcdef"))],
)
def test_a_layer_goes_on_if_it_is_still_the_same_and_begins_anew_otherwise(
    tag: str, found: tuple[int, str, bytes], wire: Wire
) -> None:
    wire.answer = registry
    origin = OciOrigin("registry.example/team/model", "v1")
    origin.files()
    assert streamed(origin, "config.json", 4, tag) == found


@pytest.mark.parametrize("login", ["", "user:secret"])
@pytest.mark.parametrize("answer", [{"token": "t"}, {"access_token": "t"}, {"token": "t", "access_token": "other"}])
def test_a_registry_that_wants_a_token_gets_one_from_where_it_says(
    answer: dict[str, str], login: str, wire: Wire
) -> None:
    """Nobody's login is no empty one: registries refuse that where they let anybody read."""

    def answered(request: httpx.Request) -> httpx.Response:
        if request.url.host == "auth.example":
            return httpx.Response(200, text=json.dumps(answer))
        if request.headers.get("authorization") != "Bearer t":
            says = 'Bearer realm="https://auth.example/token",service="r",scope="repository:team/model:pull"'
            return httpx.Response(401, headers={"www-authenticate": says})
        return registry(request)

    wire.answer = answered
    origin = OciOrigin("registry.example/team/model", "v1", login)
    assert origin.files() == (File("config.json", 6, "a" * 64),)
    assert streamed(origin, "config.json")[2] == b"abcdef"
    first, token, again, blob = wire.asked
    assert "authorization" not in first.headers
    assert str(token.url) == "https://auth.example/token?service=r&scope=repository%3Ateam%2Fmodel%3Apull"
    basic = f"Basic {b64encode(login.encode()).decode()}" if login else None
    assert token.headers.get("authorization") == basic
    assert [each.headers["authorization"] for each in (again, blob)] == ["Bearer t"] * 2


def test_a_registry_that_cannot_be_used_says_why(wire: Wire) -> None:
    origin = OciOrigin("registry.example/team/model", "v1")
    wire.answer = lambda request: httpx.Response(401)
    assert "does not say where" in failure(origin.files).message
    wire.answer = lambda request: httpx.Response(200, text="<html>")
    assert "team/model:v1 is no artifact" in failure(origin.files).message


# ---- hubs ----


class Hub:
    """What the hub's client library is asked, and says."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.error: Exception | None = None
        self.info = SimpleNamespace(
            sha="c0ffee",
            siblings=[
                SimpleNamespace(rfilename="config.json", size=7, lfs=None),
                SimpleNamespace(rfilename="m.safetensors", size=9, lfs=SimpleNamespace(sha256="a" * 64)),
                SimpleNamespace(rfilename="empty.txt", size=None, lfs=None),
            ],
        )

    def model_info(self, repository: str, **options: Any) -> SimpleNamespace:
        self.asked = {"repository": repository, **options}
        if self.error is not None:
            raise self.error
        return self.info


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: found)
    return found


@pytest.mark.parametrize(("revision", "asked"), [("", "main"), ("v2", "v2")])
def test_a_hub_is_asked_for_the_revision_and_files_are_those_of_its_commit(
    revision: str, asked: str, hub: Hub, wire: Wire
) -> None:
    """A branch that moves while files come would else give some of one commit and some of another."""
    origin = HubOrigin("org/model", revision)
    assert origin.files() == (File("config.json", 7), File("m.safetensors", 9, "a" * 64), File("empty.txt", 0))
    assert hub.asked == {"repository": "org/model", "revision": asked, "files_metadata": True, "timeout": 30.0}
    wire.answer = ranged(b"abcdef")
    assert streamed(origin, "config.json", 2, '"t"') == (2, '"t"', b"cdef")
    assert wire.urls[0].endswith("/org/model/resolve/c0ffee/config.json")
    origin.close()


def test_a_hub_that_names_no_commit_is_read_at_the_revision(hub: Hub, wire: Wire) -> None:
    hub.info.sha, hub.info.siblings = None, None
    wire.answer = ranged(b"abcdef")
    origin = HubOrigin("org/model", "v2")
    assert origin.files() == ()
    streamed(origin, "config.json")
    assert wire.urls[0].endswith("/org/model/resolve/v2/config.json")


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "bad_model"), (404, "bad_model"), (499, "bad_model"), (500, "link_lost"), (0, "link_lost")],
)
def test_a_hub_that_is_down_is_asked_again_and_a_model_that_is_not_there_is_told(
    status: int, code: str, hub: Hub, wire: Wire
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    hub.error = HfHubHTTPError.__new__(HfHubHTTPError)
    hub.error.response = SimpleNamespace(status_code=status) if status else None  # type: ignore[assignment]
    error = failure(HubOrigin("org/model", "v2").files)
    assert error.code == code
    assert "org/model@v2" in error.message
    hub.error = OSError("no route")
    assert failure(HubOrigin("org/model", "v2").files).code == "link_lost"
