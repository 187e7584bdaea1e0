"""Objects of a `KeepingCluster` over HTTP, as much of an API server as an operator's process asks for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import yaml
from aiohttp import web

from benchmarks.operator_cluster import KeepingCluster
from benchmarks.pod_objects import running
from control_plane.crds.definitions import definitions
from tandem.kube.cluster import NotFound, Selector
from tandem.kube.kinds import CUSTOM_RESOURCE, KINDS, POD, Json, Kind, Ref

_EXPIRED: Final = {"kind": "Status", "code": 410, "message": "too old resource version"}


class ObjectServer:
    """`expire` ends every watch with 410, so that everything is listed again. Pods are served with their bookkeeping,
    which nothing here keeps."""

    def __init__(self, cluster: KeepingCluster) -> None:
        self._cluster = cluster
        self._expired = asyncio.Event()
        self._kinds: dict[tuple[str, str], Kind] = {(each.api_version, each.plural): each for each in KINDS.values()}
        self._definitions = {each["metadata"]["name"]: each for each in definitions().values()}
        self.lists = 0
        """Lists of the pods of all namespaces that were given whole."""

    @asynccontextmanager
    async def kubeconfig(self, folder: Path) -> AsyncIterator[str]:
        """Serve, and give the file by which clients find this server."""
        app = web.Application(client_max_size=1 << 22)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        cluster = {"name": "bench", "cluster": {"server": f"http://{host}:{port}"}}
        context = {"name": "bench", "context": {"cluster": "bench", "user": "bench"}}
        file = folder / "kubeconfig"
        whole = {"apiVersion": "v1", "kind": "Config", "current-context": "bench", "clusters": [cluster]}
        file.write_text(yaml.safe_dump(whole | {"contexts": [context], "users": [{"name": "bench", "user": {}}]}))
        try:
            yield str(file)
        finally:
            self.expire()
            await runner.cleanup()

    def expire(self) -> None:
        self._expired.set()
        self._expired = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        kind, namespace, name, part = self._place(request.path)
        if kind is None:
            return _json({"kind": "Status", "code": 404, "message": "no such kind"}, 404)
        try:
            if request.method != "GET":
                return _json(await self._write(request, part))
            if name:
                return _json(await self._one(Ref(kind, namespace, name)))
            selector = Selector(kind, namespace or None, request.query.get("labelSelector", ""))
            if "watch" in request.query:
                response = web.StreamResponse()
                await response.prepare(request)
                with suppress(ConnectionError):  # Its operator has ended.
                    await self._watch(request, selector, response)
                return response
            return await self._list(request, selector)
        except NotFound as error:
            return _json({"kind": "Status", "code": 404, "message": error.message}, 404)

    def _place(self, path: str) -> tuple[Kind | None, str, str, str]:
        parts = path.strip("/").split("/")
        version, rest = (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        plural, name, part = (*rest, "", "", "")[:3]
        return self._kinds.get((version, plural)), namespace, name, part

    async def _one(self, ref: Ref) -> Json:
        if ref.kind == CUSTOM_RESOURCE and ref.name in self._definitions:
            return self._definitions[ref.name]
        return await self._cluster.get(ref)

    async def _write(self, request: web.Request, part: str) -> Json:
        obj: Json = msgspec.json.decode(await request.read(), type=Json)
        return await (self._cluster.apply_status(obj, "") if part == "status" else self._cluster.apply(obj, ""))

    async def _list(self, request: web.Request, selector: Selector) -> web.StreamResponse:
        begin = int(request.query.get("continue") or 0)
        page = await self._cluster.list_page(selector, int(request.query["limit"]), str(begin))
        items = [_whole(selector.kind, obj, begin + number) for number, obj in enumerate(page.items)]
        self.lists += selector.kind == POD and selector.namespace is None and page.token is None
        metadata = {"resourceVersion": page.version, "continue": page.token or ""}
        return _json({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, selector: Selector, response: web.StreamResponse) -> None:
        expired = asyncio.ensure_future(self._expired.wait())
        async with aclosing(self._cluster.watch(selector, request.query["resourceVersion"])) as stream:
            while True:
                following = asyncio.ensure_future(anext(stream))
                await asyncio.wait((following, expired), return_when=asyncio.FIRST_COMPLETED)
                if expired.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    await response.write(_line("ERROR", _EXPIRED))
                    return
                event = await following
                await response.write(_line(event.type.upper(), _whole(selector.kind, event.object, 0)))


def _whole(kind: Kind, obj: Json, number: int) -> Json:
    return running(obj, number) if kind == POD else obj


def _line(type_: str, obj: Json) -> bytes:
    return msgspec.json.encode({"type": type_, "object": obj}) + b"\n"


def _json(body: Json, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
