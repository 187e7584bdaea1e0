"""The clients of a soak: what they learn, and that another answer than that one is noticed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing

import msgspec
import pytest

from benchmarks.soak_clients import LEFT, Soak, SoakClients, ending, questions
from tandem.apps.chaos.client import ChaosClient
from tandem.apps.chaos.response import BROKEN, DONE, FAILED, REFUSED, WITHOUT_END, ReceivedAnswer
from tests.worlds.answer_stub import DONE as END_MARK
from tests.worlds.answer_stub import END, HEAD, AnswerStub, chunk, target_of, whole

Connect = Callable[[AnswerStub, Soak], Awaitable[SoakClients]]
QUESTION = questions()[1]


def answer(text: str, *, stream: bool) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": "length"}
    body = msgspec.json.encode({"choices": [choice], "usage": {"completion_tokens": 2}})
    return HEAD + chunk(b"data: " + body + b"\n\n" + END_MARK) + END if stream else whole(body)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def begin(stub: AnswerStub, soak: Soak) -> SoakClients:
            server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            client = await stack.enter_async_context(aclosing(ChaosClient(target_of(server), "demo", "soak", 30.0)))
            return SoakClients(client, soak, lambda: 0.0)

        yield begin


async def test_an_answer_is_learnt_whole_and_streamed(connect: Connect) -> None:
    stub = AnswerStub([answer("a b", stream=False), answer("a b", stream=True)])
    await (await connect(stub, Soak())).learn((QUESTION,))
    assert [b'"stream":true' in asked for asked in stub.asked] == [False, True]


@pytest.mark.parametrize("other", ["a c", "a"])
async def test_two_answers_to_one_question_cannot_be_learnt(connect: Connect, other: str) -> None:
    clients = await connect(AnswerStub([answer("a b", stream=False), answer(other, stream=True)]), Soak())
    with pytest.raises(RuntimeError, match="two answers"):
        await clients.learn((QUESTION,))


async def test_another_answer_than_the_one_learnt_is_wrong(connect: Connect) -> None:
    soak = Soak()
    learnt = [answer("a b", stream=False), answer("a b", stream=True)]
    clients = await connect(AnswerStub([*learnt, answer("a c", stream=True)]), soak)
    await clients.learn((QUESTION,))
    running = asyncio.create_task(clients.run((QUESTION,)))
    async with asyncio.timeout(60.0):
        while not soak.wrong:  # noqa: ASYNC110  (the client notes it)
            await asyncio.sleep(0.01)
    clients.stopping = True
    await running
    assert "{0: 'a c'}, not {0: 'a b'}" in soak.wrong[0]


@pytest.mark.parametrize(
    ("end", "kind", "counted"),
    [
        (DONE, "", "answered"),
        (LEFT, "", "left"),
        (WITHOUT_END, "", "no end"),
        (FAILED, "worker_lost", "worker_lost"),
        (BROKEN, "ConnectionResetError", "broken: ConnectionResetError"),
        (REFUSED, "ConnectionRefusedError", "broken: ConnectionRefusedError"),
    ],
)
def test_every_end_of_a_request_has_a_word(end: str, kind: str, counted: str) -> None:
    heard = ReceivedAnswer(QUESTION, "soak-1", 0.0)
    heard.ended(end, 1.0, "why", kind)
    assert ending(heard) == counted
