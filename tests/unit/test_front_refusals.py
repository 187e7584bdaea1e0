"""Every bad input is answered at once with OpenAI's error object, naming what is wrong (DESIGN §11)."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.front.auth import Keys, load_keys
from tandem.core.errors import TandemError
from tests.unit.front_stage import Script, Stage, chat_body, on_stage

CHAT = "/v1/chat/completions"


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
