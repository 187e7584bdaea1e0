"""The platform on a real control plane: installed, asked, scaled, updated, and what happens to it meanwhile."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.lab.http import ask
from tests.cluster.lab.nodes import log_of
from tests.cluster.scenario.load import Load
from tests.cluster.scenario.platform import Platform, condition, is_ready, simulated
from tests.cluster.scenario.spans import Spans

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def chat(platform: Platform) -> Iterator[Platform]:
    """The platform with a service `chat`."""
    platform.apply(simulated("chat"))
    platform.until_ready("chat")
    yield platform
    platform.delete("chat")


def models_of(router: str) -> list[str]:
    return [model["id"] for model in ask("GET", f"{router}/v1/models").body["data"]]


def test_a_service_that_is_applied_answers_with_tokens(chat: Platform) -> None:
    for router in chat.routers():
        assert "chat" in models_of(router)
    answer = chat.ask("chat", tokens=16)
    assert answer.status == 200, answer
    assert answer.body["usage"]["completion_tokens"] == 16
    assert answer.body["choices"][0]["message"]["content"].strip()


def test_blocks_and_the_questions_of_operators_travel_encrypted(chat: Platform) -> None:
    for _ in range(4):
        assert chat.ask("chat", tokens=4).status == 200
    workers = chat.workers("chat")
    assert {worker["kv_path"] for worker in workers} == {"tcp/tls"}
    for worker in workers:
        assert "kv_tls_refused" not in log_of(chat.lab, worker["id"])

    def load_is_known() -> bool:
        path = f"/apis/tandem.dev/v1alpha1/namespaces/{chat.namespace}/enginepools/chat-decode"
        return bool((chat.admin.done("GET", path).get("status") or {}).get("load"))

    # Operators have it from routers alone, whom they ask on the port that wants a certificate.
    assert all(
        pod["spec"]["containers"][0]["args"].count("--peer_port=8443") for pod in chat.pods(component="router")
    )
    with Load(chat.routers(), "chat") as load:
        load.several()
        chat.until(load_is_known, "operators do not hear from routers")
    assert load.failures == []


def test_one_router_serves_several_services(chat: Platform) -> None:
    chat.apply(simulated("talk"))
    try:
        chat.until_ready("talk")
        for model in ("chat", "talk"):
            answer = chat.ask(model)
            assert answer.status == 200, answer
        assert chat.ask("nobody").status == 404
        assert not {worker["id"] for worker in chat.workers("chat")} & {
            worker["id"] for worker in chat.workers("talk")
        }
    finally:
        chat.delete("talk")


def test_a_scaled_pool_has_as_many_workers_and_no_request_fails(chat: Platform) -> None:
    def decoders() -> int:
        ready = [worker for worker in chat.workers("chat") if worker["state"] == "ready"]
        return sum(worker["role"] == "decode" for worker in ready)

    with Load(chat.routers(), "chat") as load:
        load.several()
        chat.scale("chat-decode", 3)
        chat.until(lambda: decoders() == 3, "not three decode workers")
        load.several()
        chat.scale("chat-decode", 1)
        chat.until(lambda: len(chat.pods(service="chat", role="decode")) == 1, "more than one decode worker is left")
        load.several()
    assert load.failures == []
    chat.until_ready("chat")


def test_an_update_under_load_fails_no_request_and_pairs_no_two_revisions(chat: Platform, spans: Spans) -> None:
    old, told, known = current(chat), spans.attempts("chat"), len(spans.pairs("chat"))
    # Short prompts are not worth a transfer: the decode worker computes them alone.
    with Load(chat.routers(), "chat", prompt="Tell me more about all of this. " * 60) as load:
        load.several()
        chat.apply(simulated("chat", {"engine": {"kvMemory": "96Mi"}}))
        chat.until(lambda: current(chat) != old, "the new revision does not serve alone")
        chat.until_ready("chat")
        load.several()
    assert load.failures == []
    # Exporters send in batches; nine in ten is more than what came before and after the update.
    chat.until(lambda: spans.attempts("chat") - told >= 0.9 * len(load.heard), "spans are missing", 60.0)
    pairs = set(spans.pairs("chat")[known:])
    assert pairs == {(old, old), (current(chat), current(chat))}
    chat.until(lambda: ready_revisions(chat) == {current(chat)}, "pods of the old revision are left")


def ready_revisions(chat: Platform) -> set[str]:
    """Those of pods that are ready, draining ones among them."""
    return {pod["metadata"]["labels"]["tandem.dev/revision"] for pod in chat.pods(service="chat") if is_ready(pod)}


def current(chat: Platform) -> str:
    """The revision that serves."""
    return str(chat.get("chat")["status"]["currentRevision"])


def test_the_service_goes_on_while_the_api_server_is_away(chat: Platform) -> None:
    routers = chat.routers()
    with Load(routers, "chat") as load:
        load.several()
        chat.lab.api.stop(9)
        load.several(30)
        chat.lab.start_api()
        load.several()
    assert load.failures == []
    chat.until_ready("chat")


def test_a_service_that_is_ready_is_known_to_every_router(chat: Platform) -> None:
    """Also when the API server was away a moment before: routers ask it again within seconds."""
    chat.lab.api.stop(9)
    chat.lab.start_api()
    chat.apply(simulated("known"))
    said = chat.until_ready("known")["status"]["conditions"]
    assert all("known" in models_of(router) for router in chat.routers())
    assert not [each for each in said if "Routers that do not know" in each["message"]]
    chat.delete("known")


def nothing_left(chat: Platform, collection: str) -> bool:
    return not chat.admin.items(collection, {"tandem.dev/service": "brief"})


def test_deleting_a_service_removes_all_that_was_made_for_it(chat: Platform) -> None:
    chat.apply(simulated("brief"))
    chat.until_ready("brief")
    chat.delete("brief")
    for path in ("apps/v1/{}/deployments", "policy/v1/{}/poddisruptionbudgets", "tandem.dev/v1alpha1/{}/enginepools"):
        collection = "/apis/" + path.format(f"namespaces/{chat.namespace}")
        chat.until(partial(nothing_left, chat, collection), f"{collection} has some of it left")
    assert condition(chat.get("chat"), "Ready") == "True"


def test_torch_workers_answer_as_one_engine_would(platform: Platform) -> None:
    """Real computing: KV blocks go over mutual TLS from a prefill pod to a decode pod, and change no token."""
    pools = [{"name": role, "role": role, "drainSeconds": 10} for role in ("prefill", "decode")]
    apart = {"model": {"source": "demo"}, "engine": {"type": "torch"}, "pools": pools}
    whole = {**apart, "pools": [{"name": "all", "role": "unified", "drainSeconds": 10}]}
    try:
        for name, spec in (("apart", apart), ("whole", whole)):
            platform.apply(simulated(name, spec))
        for name in ("apart", "whole"):
            platform.until_ready(name, 240.0)
        said = [platform.ask(name, tokens=24) for name in ("apart", "whole")]
        assert [answer.status for answer in said] == [200, 200]
        first, second = (answer.body["choices"][0]["message"]["content"] for answer in said)
        assert first == second
        assert first
    finally:
        for name in ("apart", "whole"):
            platform.delete(name)
