"""An artifact in a container registry: one layer per file, with the file's name as its title."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from tandem.core.errors import TandemError
from tandem.weights.listing import File
from tandem.weights.origin import Stream
from tandem.weights.web import Web, refuse

_TITLE: Final = "org.opencontainers.image.title"
_ACCEPT: Final = {"accept": "application/vnd.oci.image.manifest.v1+json"}
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_PLAIN_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")


class _Layer(msgspec.Struct):
    digest: str
    size: int
    annotations: dict[str, str] = {}


class _Manifest(msgspec.Struct):
    layers: tuple[_Layer, ...]


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class OciOrigin:
    """`tandem.weights.origin.Origin` of `registry/repository` at a tag or digest. `login` is `USER:PASSWORD`, by
    default empty for none. Registries on this machine are spoken to without TLS."""

    def __init__(self, location: str, reference: str, login: str = "") -> None:
        registry, _, self._repository = location.partition("/")
        scheme = "http" if registry.rpartition(":")[0] in _PLAIN_HOSTS or registry in _PLAIN_HOSTS else "https"
        self._base = f"{scheme}://{registry}/v2/{self._repository}"
        self._reference = reference
        self._login = login
        self._web = Web()
        self._token = ""
        self._layers: dict[str, str] = {}

    def files(self) -> tuple[File, ...]:
        url = f"{self._base}/manifests/{self._reference}"
        response = self._web.get(url, _ACCEPT | self._bearer())
        if response.status_code == 401:
            self._log_in(response.headers.get("www-authenticate", ""))
            response = self._web.get(url, _ACCEPT | self._bearer())
        refuse(f"{self._repository}:{self._reference}", response)
        try:
            manifest = msgspec.json.decode(response.content, type=_Manifest)
        except msgspec.DecodeError as error:
            raise TandemError("bad_model", f"{self._repository}:{self._reference} is no artifact: {error}") from error
        named = [(layer.annotations.get(_TITLE, ""), layer) for layer in manifest.layers]
        self._layers = {name: layer.digest for name, layer in named if name}
        return tuple(File(name, layer.size, layer.digest.removeprefix("sha256:")) for name, layer in named if name)

    @contextmanager
    def open(self, name: str, offset: int, tag: str) -> Iterator[Stream]:
        digest = self._layers[name]
        # A blob is its digest: what begins with the same name and digest is the same.
        begin = offset if not tag or tag == digest else 0
        with self._web.stream(name, f"{self._base}/blobs/{digest}", begin, "", self._bearer()) as stream:
            yield Stream(stream.offset, digest, stream.chunks)

    def close(self) -> None:
        self._web.close()

    def _bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    def _log_in(self, challenge: str) -> None:
        """Get a token from the address that the registry names. Raises `bad_model`."""
        from base64 import b64encode
        from urllib.parse import urlencode

        asked = dict(_CHALLENGE.findall(challenge))
        realm = asked.pop("realm", "")
        if not realm:
            raise TandemError("bad_model", f"{self._repository}: the registry wants a login and does not say where")
        basic = {"authorization": f"Basic {b64encode(self._login.encode()).decode()}"} if self._login else {}
        response = self._web.get(f"{realm}?{urlencode(asked)}", basic)
        refuse(f"a token for {self._repository}", response)
        try:
            found = msgspec.json.decode(response.content, type=_Token)
        except msgspec.DecodeError as error:
            raise TandemError("bad_model", f"a token for {self._repository}: {error}") from error
        self._token = found.token or found.access_token
