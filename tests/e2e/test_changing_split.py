"""A split that changes under running streams: real engines, links and transfers, and a router that decides."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from router.settings import SplitSettings
from router.split.plan import Planner
from router.split.values import Split, WorkerStatus, WorkTimes
from tandem.core.request import Stopping
from tandem.core.slo import Slo
from tests.worlds.asking import Ask
from tests.worlds.platform import ANSWER_S, platform, until
from tools.equality.models import demo
from tools.equality.runs import Setting, truth

SETTING = Setting(demo())
LONG = Ask("long", SETTING.subject.prompt(48, 1), Stopping(max_tokens=400))
SHORT = tuple(
    Ask(f"prompt {number}", SETTING.subject.prompt(120 + 16 * number, 2 + number), Stopping(max_tokens=6))
    for number in range(4)
)


class Turning(Planner):
    """The worker that takes prompts for others is another one at every look."""

    def look(
        self, now: float, standings: Sequence[WorkerStatus], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        yield
        ids = [standing.worker_id for standing in standings]
        before = next(iter(self.split.prefills), ids[-1])
        chosen = ids[(ids.index(before) + 1) % len(ids)] if before in ids else ids[0]
        self.moves += 2
        self.split = Split(frozenset((chosen,)), None, "its turn")


async def test_a_stream_runs_on_while_the_split_changes() -> None:
    settings = replace(SETTING.platform("tcp"), prefill=0, decode=0, auto=3, planner=Turning)
    settings = replace(settings, split=SplitSettings(look_s=0.5))
    (right,) = await truth(SETTING, ((LONG, *SHORT),))
    async with platform(settings) as running:
        changes, under = list[tuple[str, ...]](), set[tuple[str, ...]]()

        def in_force() -> tuple[str, ...]:
            return next((outlook.prefills for outlook in running.dispatcher.outlooks()), ())

        def changed(times: int) -> bool:
            found = in_force()
            if found and (not changes or changes[-1] != found):
                changes.append(found)
            return len(changes) >= times

        def heard(_tokens: int) -> None:
            under.add(in_force())

        await until(lambda: changed(1), ANSWER_S, "no split was decided")
        stream = running.begin(LONG, heard)
        answers = []
        for number, ask in enumerate(SHORT):
            answers.append(await running.ask(ask))
            await until(lambda seen=number: changed(2 + seen), ANSWER_S, "the split did not change")  # type: ignore[misc]
        async with asyncio.timeout(ANSWER_S):
            assert await stream.answer() == right[0]
        # However fast the engine is: at last the split changes under one of them.
        async with asyncio.timeout(ANSWER_S):
            while len(under) < 2:
                under.clear()
                assert await running.begin(LONG, heard).answer() == right[0]
        assert tuple(answers) == right[1:]
        assert running.meter.added["tandem_placements_total", "disaggregated"] >= 1
        (outlook,) = running.dispatcher.outlooks()
        assert outlook.decides_here
        assert outlook.why == "its turn"
        assert outlook.moves >= 4
