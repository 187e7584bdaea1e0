"""The front door over a scripted generator, asked directly through ASGI on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from router.api.auth import Keys
from router.api.chat_templates.render import Renderer, SimpleRenderer
from router.api.core import ApiCore, ApiDeps
from router.api.rest.app import RestApp
from router.api.settings import ApiSettings
from router.generation import Generation, PinnedPrefixes, RequestStatus, ServedModel, Sink, Usage
from tandem.apps.simulation.loop import LoopClock, VirtualLoop, run
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import Alternative, TokenLogprob
from tandem.process.metrics import PrometheusMeter
from tandem.process.telemetry import RingRecorder
from tests.worlds.outputs import said

MODEL = "tiny"
CONTEXT = 100

T = TypeVar("T")
Play = Callable[[Generation, Sink], None]


class Inline:
    """`router.tokenization.tokenizing.Tokenizing` that does everything at once."""

    async def run(self, work: Callable[[], T], characters: int, within_s: float) -> T:
        return work()


@dataclass
class Started:
    """One generation the front door started."""

    generation: Generation
    sink: Sink
    cancelled: str | None = None

    def cancel(self, reason: str) -> None:
        self.cancelled = reason

    def standing(self) -> RequestStatus:
        return RequestStatus("transfer", "p1", "d1", 0, 1)


def silent(generation: Generation, sink: Sink) -> None:
    """Answers nothing: the test does."""


def two_words(generation: Generation, sink: Sink) -> None:
    """Every sequence says two tokens, `Hello` and its number, and ends with `length`."""
    wanted = generation.sampling.logprobs
    for sequence in range(generation.n):
        sink.output(said(sequence, 1, (72,), "Hello", logprobs(wanted, 72), None))
    for sequence in range(generation.n):
        sink.output(said(sequence, 2, (48 + sequence,), f" {sequence}", logprobs(wanted, 48), "length", offset=5))
    sink.done(Usage(generation.prompt_tokens, 2 * generation.n, 1))


def logprobs(wanted: int | None, token: int) -> tuple[TokenLogprob, ...]:
    """What a worker reports for one token."""
    if wanted is None:
        return ()
    return (TokenLogprob(-0.5, tuple(Alternative(token + rank, -0.5 - rank) for rank in range(wanted))),)


@dataclass
class Script:
    """A `Generator` that plays `play` on the next turn of the loop. `refusal` is raised by `start` instead."""

    play: Play = two_words
    refusal: TandemError | None = None
    alive: bool = True
    started: list[Started] = field(default_factory=list)

    def start(self, generation: Generation, sink: Sink) -> Started:
        if self.refusal is not None:
            raise self.refusal
        started = Started(generation, sink)
        self.started.append(started)
        asyncio.get_running_loop().call_soon(self.play, generation, sink)
        return started

    def models(self) -> tuple[ServedModel, ...]:
        return (ServedModel(MODEL, CONTEXT, (0,)),) if self.alive else ()

    def ready(self) -> str | None:
        return None if self.alive else "no worker is connected"

    @property
    def only(self) -> Started:
        assert len(self.started) == 1
        return self.started[0]


@dataclass
class Answer:
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def events(self) -> list[Any]:
        """The JSON of every server-sent event; `[DONE]` stays text."""
        assert self.body.endswith(b"\n\n"), self.body
        lines = self.body.decode().removesuffix("\n\n").split("\n\n")
        assert all(line.startswith("data: ") for line in lines), lines
        data = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else msgspec.json.decode(text) for text in data]

    def text(self) -> str:
        """What a stream's first sequence says."""
        chosen = [event["choices"][0] for event in self.events() if event != "[DONE]" and event["choices"]]
        return "".join(
            choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in chosen
        )


class Client:
    """One HTTP request over ASGI. It can leave (`leave`) and stop reading (`reads` cleared)."""

    def __init__(self, app: RestApp) -> None:
        self._app = app
        self._left = asyncio.Event()
        self._complete = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.pieces: list[bytes] = []

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, piece: int = 0
    ) -> Answer:
        """The whole response. `piece` sends the body in pieces of that size and without announcing its length."""
        sent = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        if not piece:
            sent.append((b"content-length", str(len(body)).encode()))
        cut = [body[at : at + piece] for at in range(0, len(body), piece)] if piece else [body]
        messages = [
            {"type": "http.request", "body": part, "more_body": number + 1 < len(cut)}
            for number, part in enumerate(cut)
        ]
        self.unread = messages
        place, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": place, "query_string": query.encode(), "headers": sent}
        await self._app(scope, self._receive, self._send)
        return Answer(self.status, self.headers, self.body)

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()
        self.reads.set()

    async def _receive(self) -> dict[str, Any]:
        if self.unread:
            return self.unread.pop(0)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._left, self._complete)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if not self.reads.is_set():
            await self.reads.wait()
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert self.status, "the body came before the head"
        assert not self._complete.is_set(), "more after the end"
        self.body += message["body"]
        self.pieces.append(message["body"])
        if not message["more_body"]:
            self._complete.set()


class Stage:
    """App, door and script of one test."""

    def __init__(
        self,
        loop: VirtualLoop,
        script: Script,
        *,
        keys: Keys | None = None,
        settings: ApiSettings | None = None,
        renderer: Renderer | None = None,
        keeper: PinnedPrefixes | None = None,
    ) -> None:
        self.clock = LoopClock(loop)
        self.script = script
        self.meter = PrometheusMeter()
        self.recorder = RingRecorder()
        self.entropy = SeededEntropy(1)
        self.door = ApiCore(
            ApiDeps(
                generator=script,
                renderers={MODEL: renderer or SimpleRenderer(self.clock)},
                tokenizing=Inline(),
                clock=self.clock,
                entropy=self.entropy,
                meter=self.meter,
                recorder=self.recorder,
                keeper=keeper,
            ),
            settings,
        )
        self.app = RestApp(self.door, keys or Keys(), self.meter.render)

    def client(self) -> Client:
        return Client(self.app)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.client().ask("GET", path, headers=_named(headers))

    async def post(self, path: str, body: Mapping[str, Any] | bytes, **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self.client().ask("POST", path, content, _named(headers))

    async def chat(self, **parameters: Any) -> Answer:
        return await self.post("/v1/chat/completions", chat_body(**parameters))

    async def complete(self, prompt: Any, **parameters: Any) -> Answer:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **parameters})


def chat_body(**parameters: Any) -> dict[str, Any]:
    """A chat request with one short message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **parameters}


def on_stage(test: Callable[[Stage], Coroutine[Any, Any, T]], script: Script | None = None, **options: Any) -> T:
    """Run `test` on virtual time."""

    async def main(loop: VirtualLoop) -> T:
        return await test(Stage(loop, script or Script(), **options))

    return run(main)


async def until(met: Callable[[], object]) -> None:
    """Let other tasks run until `met`; virtual time makes the bound exact."""
    async with asyncio.timeout(100.0):
        while not met():  # noqa: ASYNC110  (any condition, on virtual time)
            await asyncio.sleep(0.001)


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
