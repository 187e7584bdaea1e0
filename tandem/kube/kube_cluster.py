"""The cluster seam over a real API server, with the connections and credentials of the `kubernetes` package."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

import aiohttp
import msgspec
from kubernetes.aio import client, config

from tandem.core.errors import TandemError
from tandem.kube.cluster import Page, Selector, WatchEvent
from tandem.kube.kinds import Json, Kind, Ref, ref_of
from tandem.kube.paths import (
    collection_path,
    list_query,
    object_path,
    query,
    refusal,
    watch_event,
    watch_query,
)

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"
_LINE_MAX: Final = 1 << 24
"""Bytes of one watch event; objects are at most 3 MiB in etcd."""


@dataclass(frozen=True)
class KubeSettings:
    """Seconds: for one call, for the length of a watch, and without a byte on one."""

    call_s: float = 30.0
    connect_s: float = 5.0
    watch_s: int = 300
    silence_s: float = 90.0


async def connect(kubeconfig: str | None = None, settings: KubeSettings | None = None) -> "KubeCluster":
    """Connect to a cluster with a kubeconfig file, or (None) as a pod with its service account. Raises `TandemError`
    when neither is there."""
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        return KubeCluster(client.ApiClient(configuration), settings)
    except (config.ConfigException, OSError) as error:
        where = kubeconfig or "the service account of this pod"
        raise TandemError("bad_setting", f"no access to a cluster by {where}: {error}") from error


class KubeCluster:
    """Implements `tandem.kube.cluster.Cluster` over HTTPS. Owns the API client it is given."""

    def __init__(self, api: client.ApiClient, settings: KubeSettings | None = None) -> None:
        self._api = api
        self._settings = settings or KubeSettings()

    async def list_page(self, selector: Selector, limit: int, token: str | None = None) -> Page:
        path = collection_path(selector.kind, selector.namespace) + list_query(selector, limit, token)
        what = f"list {selector.kind.plural}"
        answer = _decoded(await self._read("GET", path, what), _Listed, what)
        items = _Items(answer.items or [], selector.kind, what)
        return Page(items, answer.metadata["resourceVersion"], answer.metadata.get("continue") or None)

    async def watch(self, selector: Selector, version: str) -> AsyncGenerator[WatchEvent, None]:
        settings, what = self._settings, f"watch {selector.kind.plural}"
        path = collection_path(selector.kind, selector.namespace) + watch_query(selector, version, settings.watch_s)
        bounds = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s, sock_read=settings.silence_s)
        response = await self._request("GET", path, what, bounds=bounds)
        try:
            if response.status >= 400:
                raise await _refused(response, what)
            async for line in _lines(response, what):
                yield watch_event(line, what)
        finally:
            response.close()

    async def get(self, ref: Ref) -> Json:
        return await self._call("GET", object_path(ref), f"get {ref}")

    async def apply(self, obj: Json, manager: str, *, force: bool = True) -> Json:
        return await self._apply(obj, manager, "", force)

    async def apply_status(self, obj: Json, manager: str) -> Json:
        return await self._apply(obj, manager, "status", True)

    async def create(self, obj: Json) -> Json:
        ref = ref_of(obj)
        return await self._call("POST", collection_path(ref.kind, ref.namespace), f"create {ref}", obj)

    async def update(self, obj: Json) -> Json:
        ref = ref_of(obj)
        return await self._call("PUT", object_path(ref), f"update {ref}", obj)

    async def scale(self, ref: Ref, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        await self._call("PATCH", object_path(ref, "scale"), f"scale {ref}", body, _MERGE)

    async def delete(self, ref: Ref, *, uid: str | None = None, version: str | None = None) -> None:
        given = {"uid": uid, "resourceVersion": version}
        preconditions = {key: value for key, value in given.items() if value is not None}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        options = {**body, "preconditions": preconditions} if preconditions else body
        await self._call("DELETE", object_path(ref), f"delete {ref}", options)

    async def close(self) -> None:
        await self._api.close()

    async def _apply(self, obj: Json, manager: str, part: str, force: bool) -> Json:
        ref = ref_of(obj)
        path = object_path(ref, part) + query({"fieldManager": manager, "force": "true" if force else "false"})
        return await self._call("PATCH", path, f"apply {ref}{' status' if part else ''}", obj, _APPLY)

    async def _call(self, method: str, path: str, what: str, body: Json | None = None, content: str = _JSON) -> Json:
        return _decoded(await self._read(method, path, what, body, content), Json, what)

    async def _read(self, method: str, path: str, what: str, body: Json | None = None, content: str = _JSON) -> bytes:
        bounds = aiohttp.ClientTimeout(total=self._settings.call_s, sock_connect=self._settings.connect_s)
        response = await self._request(method, path, what, body, content, bounds)
        try:
            if response.status >= 400:
                raise await _refused(response, what)
            answer: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _lost(what, error) from error
        finally:
            response.release()
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        what: str,
        body: Json | None = None,
        content: str = _JSON,
        bounds: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": _JSON, "Content-Type": content, "User-Agent": "tandem-operator"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._api.configuration.host + path
        try:
            answer: Any = await self._api.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=bounds
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(what, error) from error
        response: aiohttp.ClientResponse = answer.response
        return response


class _Listed(msgspec.Struct):
    """A list as the API server gives it, with items that are not decoded yet."""

    metadata: Json
    items: list[msgspec.Raw] | None = None


class _Items(Sequence[Json]):
    """Items of a list, each decoded when it is read: as Python objects a page takes seven times its bytes."""

    def __init__(self, items: list[msgspec.Raw], kind: Kind, what: str) -> None:
        self._items = items
        # Items of a list leave out what kind they are.
        self._kind: Json = {"apiVersion": kind.api_version, "kind": kind.kind}
        self._what = what

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Json: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Json]: ...

    def __getitem__(self, index: int | slice) -> Json | Sequence[Json]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return {**self._kind, **_decoded(self._items[index], Json, self._what)}


T = TypeVar("T")


def _decoded(answer: bytes | msgspec.Raw, as_: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(answer, type=as_)
    except msgspec.DecodeError as error:
        raise _lost(what, error) from error


async def _lines(response: aiohttp.ClientResponse, what: str) -> AsyncGenerator[Json, None]:
    """The JSON lines of a stream until it ends."""
    rest = b""
    try:
        async for piece in response.content.iter_any():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                if line.strip():
                    yield msgspec.json.decode(line, type=Json)
            if len(rest) > _LINE_MAX:
                raise TandemError("protocol_mismatch", f"{what}: an event of more than {_LINE_MAX} bytes")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise _lost(what, error) from error


async def _refused(response: aiohttp.ClientResponse, what: str) -> TandemError:
    """The error for a request that the server refuses, with what the server says about it. The response body of the
    server is a `Status`, but that of a proxy need not be."""
    try:
        async with asyncio.timeout(5.0):
            body = json.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, ValueError):
        body = None
    after = response.headers.get("Retry-After", "")
    wait_s = float(after) if after.isdigit() else None
    return refusal(response.status, body if isinstance(body, dict) else None, what, wait_s)


def _lost(what: str, error: Exception) -> TandemError:
    slow = isinstance(error, TimeoutError)
    said = "no answer in time" if slow else f"{type(error).__name__}: {error}"
    return TandemError("deadline_exceeded" if slow else "link_lost", f"{what}: {said}")
