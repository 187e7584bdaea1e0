"""Sending a workload, on time or from clients that wait for their answers, and collecting what came of it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial

from tandem.apps.bench.completion import Style, complete, request_body
from tandem.apps.bench.content import TokenRange, prompt_text, prompt_tokens
from tandem.apps.bench.outcome import UNFINISHED, Outcome
from tandem.apps.bench.workload import Item, Workload
from tandem.apps.client.http import Client, Target


@dataclass(frozen=True)
class ClosedLoop:
    """`clients` that each ask, wait for the answer, think for `think_s` and ask again.

    The load follows the server: there are never more open requests than clients. The clients begin evenly spread over
    one think time, so that they do not ask in one volley.
    """

    clients: int
    think_s: float = 0.0


@dataclass(frozen=True)
class Settings:
    """`in_flight_max` bounds the open loop's open requests; at the bound the schedule waits, and the wait counts as
    latency. With `closed` the workload's times are not used."""

    style: Style
    vocabulary: TokenRange
    tokens_per_word: float = 1.0
    seed: int = 0
    timeout_s: float = 600.0
    in_flight_max: int = 1024
    closed: ClosedLoop | None = None


Progress = Callable[[Outcome], None]


async def replay(target: Target, workload: Workload, settings: Settings, progress: Progress) -> list[Outcome]:
    """Replay a workload and give every item's outcome, in order of the workload. Ends at most `timeout_s` after the
    last item was sent.

    `progress` receives every outcome once. When the call is cancelled, it cancels the open requests, and `progress`
    also receives each request that was due and has not ended, with the error `unfinished`.
    """
    async with aclosing(Client(target)) as client:
        sender = _Sender(client, workload.items, settings, progress)
        try:
            await sender.send()
        except asyncio.CancelledError:
            sender.cut_short()
            raise
    return [sender.outcomes[index] for index in range(len(workload.items))]


class _Sender:
    """The items of one replay with what came of them, by index; those before `_next` have been offered."""

    def __init__(self, client: Client, items: Sequence[Item], settings: Settings, progress: Progress) -> None:
        self._client = client
        self._items = items
        self._settings = settings
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._next = 0
        self._due_s: dict[int, float] = {}
        self._all_offered = asyncio.Event()
        self.outcomes: dict[int, Outcome] = {}

    async def send(self) -> None:
        """Ask everything, and wait for the answers."""
        closed = self._settings.closed
        if closed is None:
            await self._send_on_time()
            return
        async with asyncio.TaskGroup() as group:
            for number in range(closed.clients):
                group.create_task(self._client_of(closed, number))

    async def _send_on_time(self) -> None:
        gate = asyncio.Semaphore(self._settings.in_flight_max)
        async with asyncio.TaskGroup() as group:
            for item in self._items:
                body = self._body(item)
                await asyncio.sleep(max(0.0, self._begin + item.arrival_s - self._loop.time()))
                await gate.acquire()
                task = group.create_task(self._ask(self._offer(item.arrival_s), body))
                task.add_done_callback(lambda _task: gate.release())

    async def _client_of(self, closed: ClosedLoop, number: int) -> None:
        await self._think(closed.think_s * number / closed.clients)
        while self._next < len(self._items):
            body = self._body(self._items[self._next])
            await self._ask(self._offer(self._now_s()), body)
            await self._think(closed.think_s)

    async def _think(self, think_s: float) -> None:
        """Wait, but not when there is nothing left to ask."""
        with suppress(TimeoutError):
            async with asyncio.timeout(think_s):
                await self._all_offered.wait()

    def _offer(self, due_s: float) -> int:
        """Take the next item as due; gives its index."""
        index = self._next
        self._due_s[index] = due_s
        self._next += 1
        if self._next == len(self._items):
            self._all_offered.set()
        return index

    async def _ask(self, index: int, body: bytes) -> None:
        style, timeout_s = self._settings.style, self._settings.timeout_s
        keep = partial(self._keep, index)
        keep(await complete(self._client, style, body, self._due_s[index], self._begin, timeout_s, keep))

    def cut_short(self) -> None:
        """Keep every request that is due by now and has no outcome as unfinished."""
        now_s = self._now_s()
        while self._settings.closed is None and self._next < len(self._items):
            if self._items[self._next].arrival_s > now_s:
                break
            self._offer(self._items[self._next].arrival_s)
        for index in self._due_s.keys() - self.outcomes.keys():
            self._keep(index, Outcome(self._due_s[index], now_s, now_s, error=UNFINISHED))

    def _keep(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self._progress(outcome)

    def _body(self, item: Item) -> bytes:
        return request_body(self._settings.style, prompt(item, self._settings), item.output_tokens)

    def _now_s(self) -> float:
        return self._loop.time() - self._begin


def prompt(item: Item, settings: Settings) -> str | list[int]:
    """The prompt in the form this server takes."""
    if settings.style.token_ids:
        return prompt_tokens(item.pieces, settings.vocabulary, settings.seed)
    return prompt_text(item.pieces, settings.tokens_per_word, settings.seed)
