"""The real cluster client against a small server on the loopback: what it sends, and what answers mean."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio import client

from tandem.core.errors import TandemError
from tandem.kube.cluster import Conflict, Expired, NotFound, Selector
from tandem.kube.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, MODEL_SERVICE, NODE, Json, Ref
from tandem.kube.kube_cluster import KubeCluster, KubeSettings, connect
from tandem.kube.paths import collection_path, object_path, refusal

ITEM: Json = {"metadata": {"name": "a", "namespace": "n", "resourceVersion": "7"}}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """Answers every request by `answer`, and keeps what was asked."""

    asked: list[tuple[str, str, dict[str, str], str, str]] = field(default_factory=list)
    answer: Answer | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        headers = request.headers.get("Content-Type", ""), body
        self.asked.append((request.method, request.path, dict(request.query), *headers))
        return await self.answer(request) if self.answer else web.json_response(ITEM)


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, KubeCluster]]:
    stage = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stage.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    configuration = client.Configuration(host=f"http://{host}:{port}")
    cluster = KubeCluster(client.ApiClient(configuration), KubeSettings(call_s=0.5, silence_s=0.3))
    yield stage, cluster
    await cluster.close()
    await runner.cleanup()


def replying(status: int, body: Json, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return answer


def streaming(*lines: bytes, hang: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if hang:
            await asyncio.sleep(1.0)
        return response

    return answer


def test_paths() -> None:
    assert collection_path(CONFIG_MAP, "n") == "/api/v1/namespaces/n/configmaps"
    assert collection_path(MODEL_SERVICE, None) == "/apis/tandem.dev/v1alpha1/modelservices"
    assert object_path(Ref(NODE, "", "x")) == "/api/v1/nodes/x"
    assert object_path(Ref(DEPLOYMENT, "n", "a b"), "scale") == "/apis/apps/v1/namespaces/n/deployments/a%20b/scale"
    assert collection_path(EVENT, "n") == "/apis/events.k8s.io/v1/namespaces/n/events"


def test_answers_become_errors_of_their_kind() -> None:
    kinds = {404: NotFound, 409: Conflict, 410: Expired}
    for status, kind in kinds.items():
        assert isinstance(refusal(status, {"message": "m"}, "get x"), kind)
    assert refusal(403, {"message": "no"}, "list pods").code == "not_allowed"
    assert refusal(422, {"message": "spec.pools: too many"}, "apply x").message == "apply x: spec.pools: too many"
    assert refusal(503, None, "get x").retryable


async def test_lists_say_what_their_items_are(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    stage.answer = replying(200, {"metadata": {"resourceVersion": "9", "continue": "t"}, "items": [ITEM]})
    page = await cluster.list_page(Selector(CONFIG_MAP, "n", "a=b"), 500)
    assert (page.version, page.token) == ("9", "t")
    assert page.items[0]["kind"] == "ConfigMap"
    assert stage.asked[0][:3] == ("GET", "/api/v1/namespaces/n/configmaps", {"limit": "500", "labelSelector": "a=b"})


async def test_items_of_a_list_are_decoded_when_they_are_read(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    items = [{**ITEM, "data": {"number": str(number)}} for number in range(3)]
    stage.answer = replying(200, {"metadata": {"resourceVersion": "9"}, "items": items})
    page = await cluster.list_page(Selector(CONFIG_MAP, "n"), 500)
    assert page.items[1] == {"apiVersion": "v1", "kind": "ConfigMap", **items[1]}
    assert page.items[1] is not page.items[1]
    assert [each["data"]["number"] for each in page.items[1:]] == ["1", "2"]
    assert len(page.items) == 3
    stage.answer = replying(200, {"metadata": {"resourceVersion": "9"}, "items": None})
    assert list((await cluster.list_page(Selector(CONFIG_MAP, "n"), 500)).items) == []


async def test_an_answer_that_is_no_object_is_a_lost_one(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server

    async def page_of_a_proxy(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>", status=200)

    stage.answer = page_of_a_proxy
    for asked in (cluster.list_page(Selector(CONFIG_MAP, "n"), 500), cluster.get(Ref(CONFIG_MAP, "n", "a"))):
        with pytest.raises(TandemError) as lost:
            await asked
        assert lost.value.code == "link_lost"


async def test_apply_names_its_manager_and_status_goes_to_its_subresource(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    obj = {"apiVersion": "tandem.dev/v1alpha1", "kind": "ModelService", "metadata": ITEM["metadata"]}
    await cluster.apply(obj, "tandem-operator")
    await cluster.apply_status(obj, "tandem-status")
    (_, path, query, content, body), (_, status_path, *_) = stage.asked
    assert path == "/apis/tandem.dev/v1alpha1/namespaces/n/modelservices/a"
    assert query == {"fieldManager": "tandem-operator", "force": "true"}
    assert content == "application/apply-patch+yaml"
    assert json.loads(body) == obj
    assert status_path == f"{path}/status"


async def test_delete_sends_preconditions_and_scale_a_merge_patch(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    await cluster.delete(Ref(DEPLOYMENT, "n", "a"), uid="u", version="7")
    await cluster.scale(Ref(DEPLOYMENT, "n", "a"), 3)
    assert json.loads(stage.asked[0][4])["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert stage.asked[1][1].endswith("/deployments/a/scale")
    assert stage.asked[1][3] == "application/merge-patch+json"


async def test_a_watch_takes_lines_apart_wherever_they_are_cut(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    line = json.dumps({"type": "ADDED", "object": ITEM}).encode() + b"\n"
    mark = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}).encode() + b"\n"
    stage.answer = streaming(line[:10], line[10:] + mark[:3], mark[3:])
    async with aclosing(cluster.watch(Selector(CONFIG_MAP), "7")) as stream:
        events = [event async for event in stream]
    assert [event.type for event in events] == ["added", "bookmark"]
    assert stage.asked[0][2]["allowWatchBookmarks"] == "true"
    assert stage.asked[0][2]["resourceVersion"] == "7"


@pytest.mark.parametrize("within", [True, False])
async def test_a_watch_that_is_too_old_has_expired(server: tuple[Server, KubeCluster], within: bool) -> None:
    stage, cluster = server
    said = {"kind": "Status", "code": 410, "message": "too old resource version"}
    line = json.dumps({"type": "ERROR", "object": said}).encode() + b"\n"
    stage.answer = streaming(line) if within else replying(410, said)
    async with aclosing(cluster.watch(Selector(CONFIG_MAP), "7")) as stream:
        with pytest.raises(Expired):
            await anext(stream)


async def test_a_silent_watch_and_a_slow_call_end_in_time(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    stage.answer = streaming(b"\n", hang=True)
    async with aclosing(cluster.watch(Selector(CONFIG_MAP), "7")) as stream:
        with pytest.raises(TandemError) as silent:
            await anext(stream)
    assert silent.value.code == "deadline_exceeded"
    stage.answer = streaming(b"{", hang=True)
    with pytest.raises(TandemError) as slow:
        await cluster.get(Ref(CONFIG_MAP, "n", "a"))
    assert slow.value.code == "deadline_exceeded"


async def test_an_answer_cut_short_is_a_lost_link(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    stage.answer = streaming(b'{"metadata":')
    with pytest.raises(TandemError) as lost:
        await cluster.get(Ref(CONFIG_MAP, "n", "a"))
    assert lost.value.code == "link_lost"


async def test_too_many_requests_say_when_to_come_back(server: tuple[Server, KubeCluster]) -> None:
    stage, cluster = server
    stage.answer = replying(429, {"message": "slow down"}, **{"Retry-After": "3"})
    with pytest.raises(TandemError) as refused:
        await cluster.get(Ref(CONFIG_MAP, "n", "a"))
    assert (refused.value.code, refused.value.retry_after_s) == ("over_quota", 3.0)


async def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match=r"no access to a cluster by .*nowhere"):
        await connect(str(tmp_path / "nowhere"))
