"""Every bad input is answered at once with OpenAI's error object, naming what is wrong."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.api.auth import Keys, load_keys
from router.api.openai.schema import ChatRequest
from router.api.openai.unsupported import UNSUPPORTED
from router.api.settings import ApiSettings
from tandem.core.errors import TandemError
from tests.worlds.front_stage import MODEL, Script, Stage, chat_body, on_stage

CHAT = "/v1/chat/completions"
_KEPT = [
    json.loads(line) for line in (Path(__file__).parents[3] / "corpus" / "bodies.jsonl").read_text().splitlines()
]


def refusal(body: Any, path: str = CHAT, script: Script | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    """Status and error object of a refused request, which must have started nothing."""
    script = script or Script()

    async def test(stage: Stage) -> tuple[int, dict[str, Any]]:
        answer = await stage.post(path, body, **headers)
        assert answer.headers["content-type"] == "application/json"
        assert not script.started
        assert stage.door.open_requests == 0
        metrics = stage.meter.render().decode()
        assert f'tandem_refusals_total{{code="{answer.error["code"]}"}} 1.0' in metrics
        return answer.status, answer.error

    return on_stage(test, script)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"model": "\xff"}', b"[" * 100_000, b"[1]", b"1"]
)
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    status, error = refusal(body)
    assert (status, error["code"], error["type"], error["param"]) == (
        400,
        "invalid_request",
        "invalid_request_error",
        None,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 1000),
        ("n", 1.5),
        ("max_tokens", 0),
        ("max_tokens", "9"),
        ("max_completion_tokens", -1),
        ("min_tokens", -1),
        ("top_logprobs", 21),
        ("top_logprobs", 1),
        ("logprobs", 3),
        ("seed", 1 << 70),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop_token_ids", [-1]),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"32000": 1}),
        ("timeout", 0),
        ("priority", 5000),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("user", 5),
        ("model", 5),
        ("messages", []),
        ("messages", "hi"),
        ("min_tokens", 99),
    ],
)
def test_a_value_that_is_wrong_is_refused_by_name(name: str, value: object) -> None:
    status, error = refusal(chat_body(**{name: value}))
    assert (status, error["code"], error["type"]) == (400, "invalid_request", "invalid_request_error")
    assert error["param"].startswith(name)
    assert name in error["message"]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400])
def test_a_number_no_machine_holds_is_refused_by_name(number: str) -> None:
    body = msgspec.json.encode(chat_body())[:-1] + f',"temperature":{number}}}'.encode()
    status, error = refusal(body)
    assert (status, error["param"]) == (400, "temperature")


def test_an_unknown_parameter_is_refused_by_name() -> None:
    status, error = refusal(chat_body(temprature=1))
    assert (status, error["code"], error["param"]) == (400, "invalid_request", "temprature")
    assert "'temprature'" in error["message"]


def test_a_missing_parameter_is_named() -> None:
    assert refusal({"model": MODEL})[1]["param"] == "messages"
    assert refusal({"messages": [{"role": "user", "content": "x"}]})[1]["param"] == "model"
    assert refusal({"model": MODEL}, "/v1/completions")[1]["param"] == "prompt"


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_supported_is_refused_by_name_and_its_idle_values_are_not(name: str) -> None:
    path, body = "/v1/chat/completions", chat_body()
    if name in ChatRequest.__struct_fields__:
        path, body = "/v1/completions", {"model": MODEL, "prompt": "x"}
    status, error = refusal({**body, name: {"asked": "for"}}, path)
    assert (status, error["code"], error["param"]) == (400, "unsupported_parameter", name)
    assert repr(name) in error["message"]

    async def test(stage: Stage) -> None:
        for idle in (None, *UNSUPPORTED[name]):
            assert (await stage.post(path, {**body, name: idle})).status == 200, idle

    on_stage(test)


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "tool", "content": "x"}, "invalid_request", "messages[0].tool_call_id"),
        ({"role": "oracle", "content": "x"}, "invalid_request", "messages[0].role"),
        ({"role": 5, "content": "x"}, "invalid_request", "messages[0].role"),
        ({"role": "user"}, "invalid_request", "messages[0].content"),
        ({"content": "x"}, "invalid_request", "messages[0]"),
        ({"role": "user", "content": "x", "mood": "bad"}, "invalid_request", "messages[0]"),
        (
            {"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]},
            "invalid_request",
            "messages[0].tool_calls",
        ),
        (
            {"role": "assistant", "content": "x", "function_call": {"name": "f"}},
            "unsupported_parameter",
            "messages[0].function_call",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "unsupported_parameter",
            "messages[0].content[0].image_url",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]},
            "unsupported_parameter",
            "messages[0].content[0].type",
        ),
    ],
)
def test_a_message_that_cannot_be_used_is_named(message: dict[str, Any], code: str, param: str) -> None:
    status, error = refusal({"model": MODEL, "messages": [message]})
    assert (status, error["code"], error["param"]) == (400, code, param)


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [1, "a"], [1, [2]], [32_000], [-1], [1 << 40], {"a": 1}, None, [None]]
)
def test_a_prompt_that_is_none_is_refused(prompt: object) -> None:
    status, error = refusal({"model": MODEL, "prompt": prompt}, "/v1/completions")
    assert (status, error["code"]) == (400, "invalid_request")
    assert error["param"].startswith("prompt")


def test_too_many_sequences_are_refused() -> None:
    status, error = refusal({"model": MODEL, "prompt": ["a"] * 3, "n": 100}, "/v1/completions")
    assert (status, error["param"]) == (400, "n")
    assert "300" in error["message"]
    assert "128" in error["message"]


def test_two_ways_to_say_max_tokens_must_agree() -> None:
    assert refusal(chat_body(max_tokens=3, max_completion_tokens=4))[1]["param"] == "max_tokens"


def test_a_model_nobody_knows_is_404() -> None:
    status, error = refusal(chat_body(model="other"))
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")


def test_a_known_model_without_a_worker_is_503_with_retry_after() -> None:
    async def test(stage: Stage) -> None:
        stage.script.alive = False
        answer = await stage.chat()
        assert (answer.status, answer.error["code"]) == (503, "no_workers")
        assert int(answer.headers["retry-after"]) >= 1

    on_stage(test)


@pytest.mark.parametrize(
    ("prompt", "asked", "param"),
    [("x" * 60, 41, "max_tokens"), ("x" * 100, None, "prompt"), ("x" * 200, 5, "prompt")],
)
def test_what_exceeds_the_context_is_refused_with_both_numbers(prompt: str, asked: int | None, param: str) -> None:
    status, error = refusal({"model": MODEL, "prompt": prompt, "max_tokens": asked}, "/v1/completions")
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "100 tokens" in error["message"]
    assert str(len(prompt) + (asked or 1)) in error["message"]


def test_a_prompt_that_just_fits_is_served() -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.complete("x" * 60, max_tokens=40)).status == 200
        assert (await stage.complete("x" * 99)).status == 200

    on_stage(test)


@pytest.mark.parametrize("piece", [0, 64])
def test_a_body_over_the_limit_is_413_and_not_read_to_its_end(piece: int) -> None:
    settings = ApiSettings(body_bytes_max=1000, linger_bytes_max=2000)

    async def test(stage: Stage) -> None:
        client = stage.client()
        answer = await client.ask("POST", CHAT, b"x" * 100_000, piece=piece)
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert "1000" in answer.error["message"]
        assert answer.headers["connection"] == "close"
        if piece:
            assert len(client.unread) > 1000, "it went on reading"
        exact = msgspec.json.encode(chat_body())
        assert (await stage.post(CHAT, exact + b" " * (1000 - len(exact)))).status == 200

    on_stage(test, settings=settings)


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async def test(stage: Stage) -> None:
        client = stage.client()
        body = msgspec.json.encode(chat_body())
        parts = [{"type": "http.request", "body": body, "more_body": True}]

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else await client._receive()

        client.unread = []
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": []}
        await stage.app(scope, receive, client._send)
        assert client.status == 504
        assert stage.clock.now() == pytest.approx(30.0)

    on_stage(test)


def test_paths_and_methods_that_do_not_exist() -> None:
    async def test(stage: Stage) -> None:
        lost = await stage.get("/v1/engines")
        assert (lost.status, lost.error["code"]) == (404, "not_found")
        for path in ("/v1/embeddings", "/v1/responses", "/v2/models"):
            assert (await stage.post(path, {})).status == 404, "what is not there takes no method at all"
        wrong = await stage.get(CHAT)
        assert (wrong.status, wrong.error["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        wrong = await stage.post("/v1/models", {})
        assert (wrong.status, wrong.error["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"].startswith("GET")

    on_stage(test)


@pytest.mark.parametrize("code", ["queue_full", "draining", "no_workers"])
def test_what_the_dispatcher_refuses_is_503_with_its_retry_after(code: str) -> None:
    script = Script(refusal=TandemError(code, "not now", retry_after_s=2.2))

    async def test(stage: Stage) -> None:
        for stream in (False, True):
            answer = await stage.chat(stream=stream)
            assert (answer.status, answer.error["code"], answer.error["type"]) == (503, code, "server_error")
            assert answer.headers["retry-after"] == "3"

    on_stage(test, script)


def test_over_quota_is_429_with_retry_after() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat()
        assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
        assert answer.headers["retry-after"] == "1"

    on_stage(test, Script(refusal=TandemError("over_quota", "too much")))


def test_codes_between_services_never_reach_a_client() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat()
        assert (answer.status, answer.error["code"]) == (503, "worker_lost")

    on_stage(test, Script(refusal=TandemError("kv_corrupt", "digest")))


# ---- keys ----


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys.json"
    path.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a", "sk-b": {"tenant": "b", "models": ["tiny"]},'
        ' "sk-c": {"tenant": "c", "models": ["other"]}, "sk-d": {"tenant": "d", "disabled": "unpaid"}}}'
    )
    return load_keys(path)


@pytest.mark.parametrize(
    ("authorization", "status", "code"),
    [
        (None, 401, "invalid_api_key"),
        ("Bearer", 401, "invalid_api_key"),
        ("Bearer wrong", 401, "invalid_api_key"),
        ("Basic sk-a", 401, "invalid_api_key"),
        ("Bearer sk-c", 403, "not_allowed"),
        ("Bearer sk-d", 403, "not_allowed"),
    ],
)
def test_missing_and_wrong_keys_are_401_and_forbidden_things_403(
    keys: Keys, authorization: str | None, status: int, code: str
) -> None:
    headers = {"authorization": authorization} if authorization else {}

    async def test(stage: Stage) -> None:
        answer = await stage.post(CHAT, chat_body(), **headers)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert ("www-authenticate" in answer.headers) == (status == 401)
        if status == 401:
            assert (await stage.get("/v1/models", **headers)).status == 401
            assert (await stage.get("/v1/requests/x", **headers)).status == 401
        assert (await stage.get("/health")).status == 200

    on_stage(test, keys=keys)


def test_a_tenant_over_its_quota_is_refused_until_the_bucket_refills(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a", "sk-a2": "a", "sk-b": "b"},'
        ' "tenants": {"a": {"requests_per_minute": 1}}}'
    )

    async def test(stage: Stage) -> None:
        assert (await stage.post(CHAT, chat_body(), authorization="Bearer sk-a")).status == 200
        answer = await stage.post(CHAT, chat_body(), authorization="Bearer sk-a2")
        assert (answer.status, answer.error["code"]) == (429, "over_quota")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert (await stage.post(CHAT, chat_body(), authorization="Bearer sk-b")).status == 200

    on_stage(test, keys=load_keys(path))


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00b", "\\ud800\\ud800", "\\ud83d\\ude00\\udfff", "\\\\\\ud9ff"])
def test_half_of_a_surrogate_pair_is_named(escape: str) -> None:
    status, error = refusal(b'{"model":"tiny","messages":[{"role":"user","content":"a%b"}]}' % escape.encode())
    assert (status, error["code"]) == (400, "invalid_request")
    assert "half of a surrogate pair (\\ud" in error["message"]


def test_what_only_looks_like_half_of_a_pair_is_not_blamed() -> None:
    _, error = refusal(b'{"model":"tiny","messages":[{"role":"user","content":"\\\\ud800 \\ud83d\\ude00"')
    assert error["message"].startswith("the body is not JSON")


def test_a_body_that_ends_early_is_refused_also_where_what_came_is_wrong() -> None:
    status, error = refusal(b'{"model":"tiny","messages":[]')
    assert (status, error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("path", [CHAT, "/v1/cache/prefixes"])
@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
def test_a_compressed_body_is_refused_by_name(path: str, encoding: str) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.post(path, gzip.compress(b"{}"), content_encoding=encoding)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_encoding")
        assert repr(encoding) in answer.error["message"]

    on_stage(test)


def test_a_byte_order_mark_and_the_identity_encoding_are_read() -> None:
    async def test(stage: Stage) -> None:
        body = b"\xef\xbb\xbf" + msgspec.json.encode(chat_body())
        assert (await stage.post(CHAT, body, content_encoding="identity")).status == 200

    on_stage(test)


REFUSED = (
    b"[" * 2000,
    b'{"model":"tiny","messages":[]' + b" " * 2000,
    b'{"model":"no","prompt":"' + b"a" * 2000 + b'"}',
)


@pytest.mark.parametrize("body", REFUSED)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_what_is_refused_for_its_body_is_paid_by_its_length(body: bytes, path: str, tmp_path: Path) -> None:
    """Reading it takes the router as long as what it serves; the next body of such a tenant is not even read."""
    keys = tmp_path / "keys.json"
    keys.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a", "sk-b": "b"},'
        ' "tenants": {"a": {"tokens_per_minute": 400}}}'
    )

    async def test(stage: Stage) -> None:
        async def ask(content: bytes, key: str) -> int:
            return (await stage.post(path, content, authorization=f"Bearer {key}")).status

        assert await ask(body, "sk-a") in (400, 404)
        unread = stage.client()
        headers = {"authorization": "Bearer sk-a"}
        answer = await unread.ask("POST", path, body, headers)
        assert (answer.status, answer.error["code"]) == (429, "over_quota")
        assert 14 <= int(answer.headers["retry-after"]) <= 22, "2,000 bytes count as 500 tokens, and 400 were there"
        assert unread.unread, "nobody has read it"
        assert await ask(body, "sk-b") in (400, 404), "who has no quota goes on"
        await asyncio.sleep(22.0)
        assert await ask(body, "sk-a") in (400, 404)

    on_stage(test, keys=load_keys(keys))


def test_a_wrong_key_and_a_router_without_room_cost_nobody_anything(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a"}, "tenants": {"a": {"requests_per_minute": 1}}}'
    )

    async def test(stage: Stage) -> None:
        stage.script.alive = False
        for _ in range(3):
            assert (await stage.post(CHAT, chat_body(), authorization="Bearer sk-a")).status == 503
        stage.script.alive = True
        assert (await stage.post(CHAT, chat_body(), authorization="Bearer sk-a")).status == 200

    on_stage(test, keys=load_keys(keys))


def test_tenants_have_their_own_salt_and_see_only_their_own_requests(keys: Keys) -> None:
    async def test(stage: Stage) -> None:
        ids = {}
        for tenant in "ab":
            answer = await stage.post(CHAT, chat_body(), authorization=f"Bearer sk-{tenant}")
            assert answer.status == 200
            ids[tenant] = answer.headers["x-request-id"]
        first, second = (started.generation for started in stage.script.started)
        assert (first.tenant, second.tenant) == ("a", "b")
        assert first.tenant_salt != second.tenant_salt
        assert len(first.tenant_salt) == 32
        assert (await stage.get(f"/v1/requests/{ids['a']}", authorization="Bearer sk-a")).status == 200
        assert (await stage.get(f"/v1/requests/{ids['a']}", authorization="Bearer sk-b")).status == 404

    on_stage(test, keys=keys)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "truncated"),
        ('{"keys": {}}', "salt_key"),
        ('{"salt_key": "short", "keys": {}}', "16"),
        ('{"salt_key": "0123456789abcdef", "keys": {"a": {"tenant": "t", "modles": []}}}', "modles"),
        ('{"salt_key": "0123456789abcdef", "keys": {"a": "t"}, "tenants": {"u": {}}}', "tenants.u"),
    ],
)
def test_a_bad_key_file_stops_the_start_and_names_itself(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(TandemError, match=word) as failed:
        load_keys(path)
    assert failed.value.code == "bad_setting"
    assert str(path) in failed.value.message


def test_a_priority_is_bounded_by_what_the_key_file_grants(tmp_path: Path) -> None:
    path = tmp_path / "granted.json"
    granted = {"b": {"priority_max": 2}}
    known = {"sk-a": "a", "sk-b": "b", "sk-ops": {"tenant": "ops", "operator": True}}
    path.write_bytes(msgspec.json.encode({"salt_key": "0123456789abcdef", "keys": known, "tenants": granted}))
    asked = [("a", None, 200), ("a", -3, 200), ("a", 1, 403), ("b", 2, 200), ("b", 3, 403), ("ops", 1000, 200)]

    async def test(stage: Stage) -> None:
        for caller, priority, status in asked:
            answer = await stage.post(CHAT, chat_body(priority=priority), authorization=f"Bearer sk-{caller}")
            assert answer.status == status, (caller, priority)
            if status == 403:
                assert (answer.error["code"], answer.error["param"]) == ("not_allowed", "priority")
        assert [started.generation.priority for started in stage.script.started] == [0, -3, 2, 1000]

    on_stage(test, keys=load_keys(path))


def _sent(kept: dict[str, Any]) -> bytes:
    """The bytes of a body of the corpus: `@` stands for an item so many times, or for bytes that are no text."""
    raw: str = kept["body"]
    fill = kept.get("fill", {})
    if "times" in fill:
        item, count = fill["times"]
        return raw.replace("@", item * count).encode()
    return raw.encode().replace(b"@", fill["latin1"].encode("latin-1")) if fill else raw.encode()


def test_bodies_that_were_found_are_answered_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    """Those that reviewers and drawn requests found: faults of the router, a worker lost, or memory held for ever."""

    async def test(stage: Stage) -> None:
        for kept in _KEPT:
            answer = await stage.post(kept["path"], _sent(kept))
            assert answer.status == kept["status"], (kept["why"], answer.body[:300])
            if answer.status >= 400:
                assert answer.error["code"] == kept["code"], kept["why"]
                assert (answer.error["param"] or "").startswith(kept["param"] or ""), kept["why"]
                assert len(answer.body) < 4096, f"{kept['why']}: a refusal tells it all back"
                spans = stage.recorder.spans(answer.headers["x-request-id"])
                assert len(repr(spans)) < 8192, f"{kept['why']}: the story keeps it all"
        assert stage.door.open_requests == 0
        assert stage.door.bodies.held == 0

    on_stage(test)
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_path_of_kilobytes_is_not_told_back_and_says_what_it_takes() -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.post(f"/v1/models/{'a' * 5000}", b"{}")
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"]
        assert len(answer.body) < 1024

    on_stage(test)
