"""Idempotency keys: one at a time, charged once, known for a while, bounded."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc as stubs
from router.api.auth import Keys, load_keys
from router.api.idempotency import Claim, IdempotencyKeys, IdempotencySettings, fingerprint
from router.api.settings import ApiSettings
from router.generation import Generation, Sink
from tandem.core.errors import TandemError
from tests.worlds.front_server import serving
from tests.worlds.front_stage import MODEL, Script, Stage, chat_body, on_stage, silent, two_words, until

ONE, OTHER = fingerprint("chat", b"one"), fingerprint("chat", b"other")


def code(call: Callable[[], object]) -> str:
    with pytest.raises(TandemError) as raised:
        call()
    return raised.value.code


def paid(keys: IdempotencyKeys, key: str = "k", now: float = 0.0) -> Claim:
    claim = keys.claim("t", key, ONE, now)
    claim.admitted = True
    return claim


# ---- decisions ----


def test_a_key_is_held_by_one_request_at_a_time_and_by_each_tenant_on_its_own() -> None:
    keys = IdempotencyKeys(IdempotencySettings())
    first = paid(keys)
    assert code(lambda: keys.claim("t", "k", ONE, 1.0)) == "conflict"
    assert keys.claim("u", "k", OTHER, 1.0) is not first
    keys.release(first, 2.0)
    assert keys.claim("t", "k", ONE, 3.0) is first


def test_a_key_stands_for_one_request_while_it_is_known() -> None:
    keys = IdempotencyKeys(IdempotencySettings(window_s=600.0))
    first = paid(keys)
    assert code(lambda: keys.claim("t", "k", OTHER, 0.0)) == "invalid_request"
    keys.release(first, 100.0)
    assert code(lambda: keys.claim("t", "k", OTHER, 699.0)) == "invalid_request"
    again = keys.claim("t", "k", OTHER, 700.0)
    assert (again.admitted, again.output_tokens) == (False, 0)


def test_output_is_charged_as_far_as_it_was_not_before() -> None:
    claim = paid(IdempotencyKeys(IdempotencySettings()))
    assert [claim.uncharged(tokens) for tokens in (10, 4, 10, 25)] == [10, 0, 0, 15]


def test_nothing_is_remembered_of_a_request_that_was_not_charged() -> None:
    keys = IdempotencyKeys(IdempotencySettings())
    keys.release(keys.claim("t", "k", ONE, 0.0), 1.0)
    assert len(keys) == 0
    keys.release(keys.claim("t", "k", OTHER, 2.0), 3.0)


def test_a_request_may_not_be_repeated_for_free_without_end() -> None:
    keys = IdempotencyKeys(IdempotencySettings(repeats_max=2))
    for now in range(3):
        keys.release(paid(keys, now=now), now + 0.5)
    assert code(lambda: keys.claim("t", "k", ONE, 3.0)) == "conflict"


@pytest.mark.parametrize("key", ["", "with space", "x" * 256, "käse", "line\nfeed"])
def test_keys_are_short_and_printable(key: str) -> None:
    keys = IdempotencyKeys(IdempotencySettings())
    assert code(lambda: keys.claim("t", key, ONE, 0.0)) == "invalid_request"


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 120)), max_size=60))
def test_memory_is_bounded_and_live_keys_are_never_forgotten(moves: list[tuple[int, bool, int]]) -> None:
    keys = IdempotencyKeys(IdempotencySettings(window_s=300.0, keys_max=4))
    live: dict[str, Claim] = {}
    now = 0.0
    for number, ends, passes in moves:
        now += passes
        key = str(number)
        if key in live and ends:
            keys.release(live.pop(key), now)
        elif key in live:
            assert code(lambda key=key, now=now: keys.claim("t", key, ONE, now)) == "conflict"  # type: ignore[misc]
        else:
            live[key] = paid(keys, key, now)
            live[key].repeats = 0
        assert len(keys) <= len(live) + 4


# ---- over REST ----


def two_a_minute(tmp_path: Path) -> Keys:
    path = tmp_path / "keys.json"
    path.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"one": "a"}, "tenants": {"a": {"requests_per_minute": 2}}}'
    )
    return load_keys(path)


def test_nothing_is_billed_twice_under_one_key(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        async def ask(key: str, **more: Any) -> int:
            answer = await stage.post(
                "/v1/chat/completions", chat_body(**more), authorization="Bearer one", idempotency_key=key
            )
            return answer.status

        assert await ask("first") == 200
        assert [await ask("first") for _ in range(3)] == [200, 200, 200]
        assert await ask("second") == 200, "the bucket still held what the repeats did not take"
        assert await ask("third") == 429
        assert await ask("second") == 200
        assert await ask("first", seed=7) == 400

    on_stage(test, Script(two_words), keys=two_a_minute(tmp_path))


def test_a_second_request_with_a_running_ones_key_is_a_conflict() -> None:
    async def test(stage: Stage) -> None:
        first = asyncio.ensure_future(stage.post("/v1/chat/completions", chat_body(), idempotency_key="k"))
        await until(lambda: stage.script.started)
        second = await stage.post("/v1/chat/completions", chat_body(), idempotency_key="k")
        assert (second.status, second.error["code"]) == (409, "conflict")
        assert second.error["param"] == "Idempotency-Key"
        other = await stage.post("/v1/chat/completions", chat_body(max_tokens=3), idempotency_key="k")
        assert (other.status, other.error["code"]) == (400, "invalid_request")
        assert len(stage.script.started) == 1
        two_words(stage.script.only.generation, stage.script.only.sink)
        assert (await first).status == 200
        third = asyncio.ensure_future(stage.post("/v1/chat/completions", chat_body(), idempotency_key="k"))
        await until(lambda: len(stage.script.started) == 2)
        two_words(stage.script.started[1].generation, stage.script.started[1].sink)
        assert (await third).status == 200

    on_stage(test, Script(silent))


def test_a_client_that_leaves_or_is_refused_lets_go_of_its_key() -> None:
    async def test(stage: Stage) -> None:
        stage.script.alive = False
        refused = await stage.post("/v1/chat/completions", chat_body(), idempotency_key="k")
        assert refused.status == 503
        stage.script.alive = True
        client = stage.client()
        body = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}]}'
        leaving = asyncio.ensure_future(client.ask("POST", "/v1/chat/completions", body, {"idempotency-key": "k"}))
        await until(lambda: stage.script.started)
        client.leave()
        await leaving
        stage.script.play = two_words
        again = await stage.client().ask("POST", "/v1/chat/completions", body, {"idempotency-key": "k"})
        assert again.status == 200

    on_stage(test, Script(silent))


def test_without_a_key_nothing_is_kept() -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.chat()).status == 200
        assert len(stage.door._keys) == 0

    on_stage(test)


# ---- over gRPC ----


async def test_the_key_is_metadata_over_grpc() -> None:
    playing: list[tuple[Generation, Sink]] = []
    async with serving(Script(lambda generation, sink: playing.append((generation, sink)))) as served:
        target = f"127.0.0.1:{served.grpc_port}"
        async with grpc.aio.insecure_channel(target) as channel, asyncio.timeout(100.0):
            stub: Any = stubs.InferenceStub(channel)  # type: ignore[no-untyped-call]
            asked = pb.GenerateRequest(model=MODEL, text="hi")
            first = stub.Generate(asked, metadata=(("idempotency-key", "k"),))
            while not playing:  # noqa: ASYNC110  (the other side is another thread's socket)
                await asyncio.sleep(0.005)
            second = stub.Generate(asked, metadata=(("idempotency-key", "k"),))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await second.read()
            assert refused.value.code() == grpc.StatusCode.ABORTED
            two_words(*playing[0])
            assert [chunk.text async for chunk in first if chunk.text] == ["Hello", " 0"]


def test_the_window_is_a_setting() -> None:
    assert ApiSettings().idempotency.window_s == 600.0
