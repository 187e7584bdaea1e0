"""Pinning prefixes through the REST interface: what clients see, quotas, tenants, failures, clients that leave."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.api.auth import Keys, load_keys
from router.api.chat_templates.render import SimpleRenderer
from router.api.prefixes.pinned import PrefixSettings
from router.api.prefixes.text import chat_prefix
from router.api.settings import ApiSettings
from router.generation import BlockShape, Generation, PrefixReplica, Sink, Usage
from tandem.core.errors import TandemError
from tandem.core.kv import chain_names, tenant_root, unpack_tokens
from tests.worlds.front_stage import MODEL, Inline, Script, Stage, on_stage, until
from tests.worlds.outputs import said
from tests.worlds.rendered import chat, done

PATH = "/v1/cache/prefixes"
BLOCK = 4
BLOCK_BYTES = 1000
TEXT = "0123456789ab"
"""Twelve tokens of the simple tokenizer: three blocks."""


class Keeping:
    """A `Keeper` whose holders have what they were told to keep."""

    def __init__(self) -> None:
        self.unpinned: list[tuple[PrefixReplica, bytes, str]] = []
        self.gone: list[str] = []
        self.keeps = True

    def shape(self, model: str) -> BlockShape | None:
        return BlockShape(BLOCK, BLOCK_BYTES, self.keeps)

    def names(self, holder: PrefixReplica, generation: Generation) -> bytes:
        root = tenant_root(b"r" * 16, generation.tenant_salt)
        return b"".join(chain_names(root, generation.prompt, BLOCK)[: holder.blocks])

    def still(self, holders: Sequence[PrefixReplica], names: bytes) -> tuple[PrefixReplica, ...]:
        return tuple(holder for holder in holders if holder.worker_id not in self.gone)

    def unpin(self, holder: PrefixReplica, names: bytes, tenant_salt: str) -> None:
        self.unpinned.append((holder, names, tenant_salt))


def kept_by(*workers: str) -> Callable[[Generation, Sink], None]:
    """Prefills whose prompt ends up with the first of `workers` that the request does not avoid."""

    def play(generation: Generation, sink: Sink) -> None:
        sink.output(said(0, 1, (65,), "A", (), "length"))
        free = [worker for worker in workers if (worker, 1) not in generation.avoid]
        kept = PrefixReplica((free or list(workers))[0], 1, generation.prompt_tokens // BLOCK)
        sink.done(Usage(generation.prompt_tokens, 1, 4, {"hbm": 4}, (kept,)))

    return play


def pinning(*workers: str) -> dict[str, Any]:
    return {"script": Script(kept_by(*workers)), "keeper": Keeping()}


def body(prompt: Any = TEXT, **parameters: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, **parameters}


def two_tenants(folder: Path, kv_bytes_max: int | None = None) -> Keys:
    """Keys `a` and `b` of tenants of the same names."""
    content = {"salt_key": "x" * 16, "keys": {"a": "a", "b": "b"}, "tenants": {"a": {"kv_bytes_max": kv_bytes_max}}}
    (folder / "keys").write_bytes(msgspec.json.encode(content))
    return load_keys(folder / "keys")


def test_a_pinned_prefix_is_computed_listed_and_let_go() -> None:
    keeper = Keeping()

    async def test(stage: Stage) -> None:
        made = await stage.post(PATH, body(TEXT + "x", priority=7, ttl_s=60))
        assert made.status == 200
        prefix = made.json()
        assert made.headers["x-request-id"].startswith("prefix-")
        known = {name: prefix[name] for name in ("object", "model", "tokens", "blocks", "bytes", "priority", "ttl_s")}
        assert known == {
            "object": "cache.prefix",
            "model": MODEL,
            "tokens": 12,
            "blocks": 3,
            "bytes": 3000,
            "priority": 7,
            "ttl_s": 60.0,
        }
        assert prefix["holders"] == [{"worker": "p1", "blocks": 3}]
        assert prefix["expires_at"] - prefix["created"] == 60
        assert prefix["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]["hbm"] == 4
        generation = stage.script.only.generation
        assert generation.pin is not None
        assert (generation.pin.priority, generation.pin.ttl_s) == (7, 60.0)
        assert (generation.stopping.max_tokens, generation.prompt_tokens) == (1, 12)
        (listed,) = (await stage.get(PATH)).json()["data"]
        assert listed == {name: value for name, value in prefix.items() if name != "usage"}
        assert (await stage.get(f"{PATH}/{prefix['id']}")).json() == listed
        keeper.gone.append("p1")
        assert (await stage.get(f"{PATH}/{prefix['id']}")).json()["holders"] == []
        ended = await stage.client().ask("DELETE", f"{PATH}/{prefix['id']}")
        assert ended.json() == {"id": prefix["id"], "object": "cache.prefix.deleted", "deleted": True}
        ((holder, names, salt),) = keeper.unpinned
        assert (holder.worker_id, len(names), salt) == ("p1", 48, "")
        assert (await stage.get(f"{PATH}/{prefix['id']}")).status == 404
        assert (await stage.get(PATH)).json()["data"] == []

    on_stage(test, Script(kept_by("p1")), keeper=keeper)


def test_a_prefix_that_is_pinned_again_keeps_its_id_and_costs_nothing_twice(tmp_path: Path) -> None:
    keeper = Keeping()

    async def test(stage: Stage) -> None:
        first = (await stage.post(PATH, body(ttl_s=60), authorization="Bearer a")).json()
        await asyncio.sleep(30)
        stage.script.play = kept_by("p2")
        second = (await stage.post(PATH, body(ttl_s=60), authorization="Bearer a")).json()
        assert second["id"] == first["id"]
        assert second["expires_at"] == first["expires_at"] + 30
        assert [holder.worker_id for holder, _, _ in keeper.unpinned] == ["p1"]
        await asyncio.sleep(59)
        assert len((await stage.get(PATH, authorization="Bearer a")).json()["data"]) == 1
        await asyncio.sleep(2)
        assert (await stage.get(PATH, authorization="Bearer a")).json()["data"] == []

    on_stage(test, Script(kept_by("p1")), keeper=keeper, keys=two_tenants(tmp_path, 3000))


def test_replicas_are_computed_one_by_one_on_workers_that_do_not_have_it() -> None:
    async def test(stage: Stage) -> None:
        prefix = (await stage.post(PATH, body(replicas=3))).json()
        assert [holder["worker"] for holder in prefix["holders"]] == ["p1", "p2"]
        assert prefix["bytes"] == 6000
        assert "2 of 3" in prefix["problems"][0]
        avoided = [started.generation.avoid for started in stage.script.started]
        assert avoided == [(), (("p1", 1),), (("p1", 1), ("p2", 1))]
        ids = [started.generation.request_id for started in stage.script.started]
        assert len({*ids}) == 3
        assert stage.door.open_requests == 0

    on_stage(test, **pinning("p1", "p2"))


def test_over_the_quota_nothing_is_computed_and_the_refusal_has_the_numbers(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.post(PATH, body(ttl_s=60), authorization="Bearer a")).status == 200
        over = await stage.post(PATH, body("another text", ttl_s=60), authorization="Bearer a")
        assert (over.status, over.error["code"]) == (429, "over_quota")
        assert over.headers["retry-after"] == "60"
        for number in ("3000 bytes", "5000 bytes", "kv_bytes_max"):
            assert number in over.error["message"]
        assert len(stage.script.started) == 1
        assert (await stage.post(PATH, body("another text"), authorization="Bearer b")).status == 200
        await asyncio.sleep(61)
        assert (await stage.post(PATH, body("another text"), authorization="Bearer a")).status == 200

    on_stage(test, **pinning("p1"), keys=two_tenants(tmp_path, 5000))


def test_two_at_once_do_not_both_get_the_last_of_the_quota(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        asked = (stage.post(PATH, body(text), authorization="Bearer a") for text in ("first text..", "second text."))
        assert sorted(answer.status for answer in await asyncio.gather(*asked)) == [200, 429]

    on_stage(test, **pinning("p1"), keys=two_tenants(tmp_path, 5000))


def test_another_tenants_prefix_is_not_there(tmp_path: Path) -> None:
    keeper = Keeping()

    async def test(stage: Stage) -> None:
        path = f"{PATH}/{(await stage.post(PATH, body(), authorization='Bearer a')).json()['id']}"
        for method in ("GET", "DELETE"):
            answer = await stage.client().ask(method, path, headers={"authorization": "Bearer b"})
            assert (answer.status, answer.error["code"]) == (404, "not_found")
        assert (await stage.get(PATH, authorization="Bearer b")).json()["data"] == []
        assert (await stage.get(path)).status == 401
        assert keeper.unpinned == []

    on_stage(test, Script(kept_by("p1")), keeper=keeper, keys=two_tenants(tmp_path))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "prompt"),
        ({"prompt": "abc"}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "x" * 100}, "prompt"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 1e9}, "ttl_s"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 99}, "replicas"),
        ({"priority": "high"}, "priority"),
        ({"colour": "red"}, "colour"),
        ({"semantic_cache": True}, "semantic_cache"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"model": ""}, "model"),
    ],
)
def test_what_cannot_be_pinned_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.post(PATH, {**body(), **changes})
        assert (answer.status, answer.error["param"]) == (400, param)
        assert not stage.script.started

    on_stage(test, **pinning("p1"))


def test_wrong_methods_and_paths_are_told_apart() -> None:
    async def test(stage: Stage) -> None:
        wrong = await stage.client().ask("PUT", PATH)
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST, GET, HEAD")
        wrong = await stage.client().ask("POST", f"{PATH}/prefix-1")
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, DELETE")
        assert (await stage.get(f"{PATH}es")).status == 404

    on_stage(test, **pinning("p1"))


def test_a_prefix_nobody_keeps_is_an_error_and_takes_nothing_of_the_quota(tmp_path: Path) -> None:
    def unkept(generation: Generation, sink: Sink) -> None:
        sink.done(Usage(generation.prompt_tokens, 1, 0, {}))

    async def test(stage: Stage) -> None:
        answer = await stage.post(PATH, body(), authorization="Bearer a")
        assert (answer.status, answer.error["code"]) == (503, "no_workers")
        stage.script.play = kept_by("p1")
        assert (await stage.post(PATH, body(), authorization="Bearer a")).status == 200

    on_stage(test, Script(unkept), keeper=Keeping(), keys=two_tenants(tmp_path, 3000))


def test_a_request_that_fails_is_answered_with_its_error_and_counted_once() -> None:
    def failing(generation: Generation, sink: Sink) -> None:
        sink.failed(TandemError("worker_lost", "p1 is gone"))

    async def test(stage: Stage) -> None:
        answer = await stage.post(PATH, body())
        assert (answer.status, answer.error["code"]) == (503, "worker_lost")
        assert 'tandem_requests_total{model="tiny",outcome="worker_lost"} 1.0' in stage.meter.render().decode()
        stage.door.drain()
        assert (await stage.post(PATH, body())).error["code"] == "draining"

    on_stage(test, Script(failing), keeper=Keeping())


def test_a_client_that_leaves_takes_its_request_with_it(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        content = msgspec.json.encode(body())
        asking = asyncio.create_task(client.ask("POST", PATH, content, {"authorization": "Bearer a"}))
        await until(lambda: stage.script.started)
        client.leave()
        await asking
        assert stage.script.only.cancelled is not None
        assert stage.door.open_requests == 0
        stage.script.play = kept_by("p1")
        assert (await stage.post(PATH, body(), authorization="Bearer a")).status == 200

    silent = Script(lambda _generation, _sink: None)
    on_stage(test, silent, keeper=Keeping(), keys=two_tenants(tmp_path, 3000))


def test_letting_go_spares_what_another_prefix_begins_with() -> None:
    keeper = Keeping()

    async def test(stage: Stage) -> None:
        short = (await stage.post(PATH, body(TEXT))).json()
        long = (await stage.post(PATH, body(TEXT + "more"))).json()
        await stage.client().ask("DELETE", f"{PATH}/{short['id']}")
        assert keeper.unpinned == []
        await stage.client().ask("DELETE", f"{PATH}/{long['id']}")
        ((_, names, _),) = keeper.unpinned
        assert len(names) == 4 * 16

    on_stage(test, Script(kept_by("p1")), keeper=keeper)


def test_the_bound_of_one_router_holds_for_all_tenants_together() -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.post(PATH, body("first text.."))).status == 200
        assert (await stage.post(PATH, body("second text."))).status == 429
        assert (await stage.post(PATH, body("first text.."))).status == 200

    settings = ApiSettings(prefixes=PrefixSettings(prefixes_max=1))
    on_stage(test, **pinning("p1"), settings=settings)


def test_the_prefix_of_a_conversation_is_what_every_continuation_begins_with() -> None:
    async def test(stage: Stage) -> None:
        renderer = SimpleRenderer(stage.clock)
        system = [{"role": "system", "content": "Be brief."}]
        packed = done(chat_prefix(renderer, system, Inline()))
        assert bytes(unpack_tokens(packed)) == b"system: Be brief.\nuser: "
        for text in ("A", "b", "Anything else"):
            assert chat(renderer, [*system, {"role": "user", "content": text}]).startswith(packed)
        asked = [*system, {"role": "user", "content": "hi"}]
        assert done(chat_prefix(renderer, asked, Inline())) == chat(renderer, asked)
        answer = await stage.post(PATH, {"model": MODEL, "messages": system})
        assert answer.json()["tokens"] == len(packed) // 4 // BLOCK * BLOCK

    on_stage(test, **pinning("p1"))


def test_where_no_worker_has_tiers_nothing_is_computed_in_vain() -> None:
    keeper = Keeping()
    keeper.keeps = False

    async def test(stage: Stage) -> None:
        answer = await stage.post(PATH, body())
        assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
        assert "tiers.dram_bytes" in answer.error["message"]
        assert not stage.script.started

    on_stage(test, Script(kept_by("p1")), keeper=keeper)
