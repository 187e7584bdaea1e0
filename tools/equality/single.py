"""The truth to compare with: one engine in one process, no router, no links, no transfer."""

import asyncio
from dataclasses import dataclass, field

from tandem.core.entropy import SeededEntropy
from tandem.core.kv import pack_tokens
from tandem.core.messages import TokenLogprob
from tandem.core.request import ChildRequest
from tandem.engine.local import LocalEngine
from tandem.engine.protocol import Emitted, EngineRequest, StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings
from tandem.process.system import SystemClock
from tandem.worker.detokenizer import PROMPT_TAIL, Decoder
from tandem.worker.identity import root_name
from tandem.worker.text import TextStream
from tests.worlds.asking import Answer, Ask, Spoken


@dataclass
class _Line:
    """One sequence while it is generated."""

    text: TextStream
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None

    def spoken(self) -> Spoken:
        pieces = "".join(self.pieces)
        return Spoken(tuple(self.tokens), pieces, self.finish, self.stop_reason, tuple(self.logprobs))


@dataclass
class _Asked:
    lines: tuple[_Line, ...]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    failed: str = ""


class SingleEngine:
    """A `LocalEngine` in mode `local`. Use as an async context manager."""

    def __init__(self, torch: TorchSettings, scheduler: SchedulerSettings, decoder: Decoder) -> None:
        self._clock = SystemClock()
        self._engine = LocalEngine(build_runner(torch), scheduler, self._clock, SeededEntropy(1).u64())
        self._decoder = decoder
        self._asked: dict[int, _Asked] = {}
        self._works = 0
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "SingleEngine":
        await self._engine.start()
        self._running = asyncio.get_running_loop().create_task(self._engine.run(self._listen), name="single engine")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()
        if self._running is not None:
            await self._running

    async def ask(self, ask: Ask) -> Answer:
        """One request from start to end."""
        self._works += 1
        work_id, tail = self._works, ask.prompt[-PROMPT_TAIL:]
        lines = tuple(_Line(TextStream(self._decoder, tail, ask.stopping)) for _ in range(ask.n))
        self._asked[work_id] = asked = _Asked(lines)
        self._engine.submit(self._work(work_id, ask))
        async with asyncio.timeout(120):
            await asked.ended.wait()
        del self._asked[work_id]
        return Answer(tuple(line.spoken() for line in lines), asked.failed)

    def _work(self, work_id: int, ask: Ask) -> EngineRequest:
        return EngineRequest(
            work_id=work_id,
            mode="local",
            prompt=pack_tokens(ask.prompt),
            branches=tuple(ChildRequest(number, ask.seed) for number in range(ask.n)),
            sampling=ask.sampling,
            stopping=ask.stopping,
            root=root_name(self._engine.info),
            deadline=self._clock.now() + 120.0,
        )

    def _listen(self, report: StepReport) -> None:
        for one in report.emitted:
            self._emitted(one)
        for failed in report.failed:
            self._asked[failed.work_id].failed = failed.code
        for ended in report.ended:
            self._asked[ended.work_id].ended.set()

    def _emitted(self, one: Emitted) -> None:
        line = self._asked[one.work_id].lines[one.sequence]
        if line.finish is not None:
            return
        if one.finish is None:
            piece = line.text.feed(one.token)
        else:
            piece = line.text.finish(None if one.finish == "stop" else one.token)
        line.tokens.append(one.token)
        line.pieces.append(piece.text)
        line.logprobs += () if one.logprob is None else (one.logprob,)
        line.finish, line.stop_reason = one.finish, one.stop_reason
        if piece.stop is not None:
            line.finish, line.stop_reason = "stop", piece.stop
            if one.finish is None:
                self._engine.cancel(one.work_id, one.sequence)
