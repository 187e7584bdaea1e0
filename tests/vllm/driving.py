"""Works for one engine, and what comes of them."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from tandem.core.kv import pack_tokens
from tandem.core.messages import Load
from tandem.core.request import ChildRequest, Grammar, Sampling, Stopping
from tandem.engine.protocol import Emitted, EngineRequest, RequestStats, StepReport
from tandem.engine.vllm.engine import VllmEngine
from tandem.process.system import SystemClock
from tandem.worker.tokenizer import FileDecoder
from tests.vllm.lending import DEMO, Running

LIMIT_S = 60.0
GREEDY = Sampling(temperature=0.0)
END = 1
"""The demo model's end token."""
_NUMBERS = count(1_000_000)


def work(
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_tokens: int = 8,
    branches: tuple[ChildRequest, ...] = (ChildRequest(0, 1),),
    grammar: Grammar | None = None,
    stopping: Stopping | None = None,
    root: bytes = bytes(range(16)),
    private: bool = False,
    adapter: str = "",
) -> EngineRequest:
    """A work of mode `local`. Only a grammar's end ends it early, unless `stopping` says otherwise."""
    ends = () if grammar is None else (END,)
    return EngineRequest(
        work_id=next(_NUMBERS),
        mode="local",
        prompt=pack_tokens(prompt),
        branches=branches,
        sampling=sampling,
        stopping=stopping or Stopping(max_tokens, stop_token_ids=ends, ignore_eos=True),
        root=root,
        deadline=SystemClock().now() + LIMIT_S,
        grammar=grammar,
        private=private,
        adapter=adapter,
    )


class Driver:
    """Hears one running engine."""

    def __init__(self, running: Running) -> None:
        self.engine: VllmEngine = running.engine
        self.emitted: list[Emitted] = []
        self.ended: dict[int, RequestStats] = {}
        self.failed: dict[int, str] = {}
        self.names: dict[bytes, None] = dict.fromkeys(running.engine.snapshot())
        self.load: Load | None = None
        self._heard = asyncio.Event()
        running.listener = self._listen

    def _listen(self, report: StepReport) -> None:
        self.emitted += report.emitted
        self.ended.update({ended.work_id: ended.stats for ended in report.ended})
        self.failed.update({failed.work_id: failed.message for failed in report.failed})
        self.names.update(dict.fromkeys(report.kv.stored))
        for name in report.kv.removed:
            del self.names[name]
        self.load = report.load or self.load
        self._heard.set()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._heard.clear()
                await self._heard.wait()

    def submit(self, each: EngineRequest) -> None:
        self.engine.submit(each)

    async def answers(self, works: Sequence[EngineRequest]) -> list[tuple[int, ...]]:
        """The tokens of the first branch of each, once all have ended without a failure."""
        for each in works:
            self.submit(each)
        await self.until(lambda: all(each.work_id in self.ended for each in works))
        assert not self.failed
        return [self.tokens(each.work_id, each.branches[0].sequence) for each in works]

    def tokens(self, work_id: int, sequence: int = 0) -> tuple[int, ...]:
        return tuple(e.token for e in self.emitted if (e.work_id, e.sequence) == (work_id, sequence))

    def last(self, work_id: int) -> Emitted:
        return [each for each in self.emitted if each.work_id == work_id][-1]

    def text(self, tokens: Sequence[int]) -> str:
        """Without the end token."""
        return FileDecoder(DEMO).decode([token for token in tokens if token != END])
