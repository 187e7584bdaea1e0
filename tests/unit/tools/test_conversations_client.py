"""A turn of a conversation: compared with what one engine said, asked again where the platform failed it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tandem.core.request import Sampling, Stopping
from tests.worlds.answer_stub import AnswerStub, refusal, target_of, whole
from tools.conversations import client
from tools.conversations.client import ConversationClient, Result
from tools.conversations.plan import UserTurn
from tools.conversations.truth import ExpectedTurn

TURN = UserTurn((1, 2), Sampling(temperature=0.0), Stopping(3), 7)
TOLD = ExpectedTurn(4, 1, (9, 8, 1, 2), (5, 6, 7), "one two three")


def answer(text: str) -> bytes:
    details = {"cached_tokens": 2, "cached_tokens_by_tier": {"dram": 2}}
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": details}
    choice = {"index": 0, "text": text, "finish_reason": "length"}
    return whole(msgspec.json.encode({"choices": [choice], "usage": usage}))


async def asked(stub: AnswerStub) -> Result:
    """What comes of one turn."""
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    live: Any = SimpleNamespace(platform=SimpleNamespace(target=target_of(server)), model="demo")
    result = Result()
    asker = ConversationClient(live, result)
    try:
        await asker.ask(TURN, TOLD)
    finally:
        await asker.close()
        server.close()
    return result


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_AGAIN_S", 0.001)


async def test_the_right_answer_is_counted_with_where_its_prompt_was_found() -> None:
    stub = AnswerStub([answer("one two three")])
    result = await asked(stub)
    assert (result.turns, result.wrong, result.failed, result.asked_again) == (1, [], [], 0)
    assert (result.prompt_tokens, dict(result.found)) == (4, {"dram": 2})
    assert b'"prompt":[9,8,1,2]' in stub.asked[0]
    assert b"cache_salt" not in stub.asked[0]


async def test_another_answer_is_wrong() -> None:
    result = await asked(AnswerStub([answer("one two four")]))
    (why,) = result.wrong
    assert "conversation 4, turn 1" in why


async def test_a_turn_is_asked_again_after_a_broken_connection_and_a_failure() -> None:
    result = await asked(AnswerStub([b"", refusal("503 Unavailable", "no_workers"), answer("one two three")]))
    assert (result.turns, result.wrong, result.failed, result.asked_again) == (1, [], [], 2)


async def test_what_the_client_did_wrong_is_not_asked_again() -> None:
    result = await asked(AnswerStub([refusal("400 Bad Request", "bad_request")]))
    assert result.asked_again == 0
    assert result.failed == ["conversation 4, turn 1: 400 bad_request: no"]


async def test_a_turn_that_is_never_answered_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TRIES", 3)
    result = await asked(AnswerStub([b""]))
    assert (result.turns, len(result.failed), result.asked_again) == (0, 1, 3)
