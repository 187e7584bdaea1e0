"""Asks a single engine and a platform the same, in the same order, and tallies the differences."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.engine.settings import SchedulerSettings
from tandem.engine.torch.settings import TorchSettings
from tests.worlds.asking import Answer
from tests.worlds.platform import Asked, Platform, PlatformSettings, platform
from tools.equality.compare import ComparisonTally, nudged
from tools.equality.models import Subject
from tools.equality.requests import Wave, with_stops
from tools.equality.single import SingleEngine

BLOCK_TOKENS = 16
CHUNK_TOKENS = 64
Answers = tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True)
class Setting:
    """How both sides are set up. Without the prefix cache every prompt is computed whole, in the same chunks."""

    subject: Subject
    dtype: str = "float32"
    prefix_cache: bool = True
    mode: str = "thread"
    device: str = "cpu"

    @property
    def torch(self) -> TorchSettings:
        return TorchSettings(
            model=str(self.subject.directory),
            dtype=self.dtype,
            block_tokens=BLOCK_TOKENS,
            blocks=1500,
            mode=self.mode,
            device=self.device,
            threads=1,
        )

    @property
    def scheduler(self) -> SchedulerSettings:
        return SchedulerSettings(max_batched_tokens=CHUNK_TOKENS, prefix_cache=self.prefix_cache)

    def platform(self, scheme: str) -> PlatformSettings:
        return PlatformSettings(self.torch, self.subject.decoder, schemes=(scheme,), scheduler=self.scheduler)


async def truth(setting: Setting, waves: Sequence[Wave]) -> Answers:
    """What a single engine answers, one request after the other."""
    async with SingleEngine(setting.torch, setting.scheduler, setting.subject.decoder) as engine:
        return tuple([tuple([await engine.ask(ask) for ask in wave]) for wave in waves])


async def truth_with_stops(setting: Setting, waves: Sequence[Wave]) -> tuple[tuple[Wave, ...], Answers]:
    """As `truth`, with a wave of stop strings taken from the answers added at the end."""
    async with SingleEngine(setting.torch, setting.scheduler, setting.subject.decoder) as engine:
        answers = [tuple([await engine.ask(ask) for ask in wave]) for wave in waves]
        stops = with_stops(waves, answers, every=9)
        stopped = tuple([await engine.ask(ask) for ask in stops])
    return (*waves, stops), (*answers, stopped)


async def compare(
    setting: Setting, scheme: str, waves: Sequence[Wave], truths: Answers, gap_max: float | None = None
) -> ComparisonTally:
    """Ask a fresh platform and tally its answers against the truth."""
    tally = ComparisonTally(f"{setting.subject.name} {setting.dtype} {scheme}")
    async with platform(setting.platform(scheme)) as running:
        began = time.monotonic()
        for wave, right in zip(waves, truths, strict=True):
            await _one_wave(running, wave, right, tally, gap_max)
        tally.seconds = time.monotonic() - began
        await running.idle()
        for reason in ("epoch", "name", "digest"):
            if refused := running.refused(reason):
                tally.failures.append(f"{refused:g} blocks were refused for their {reason}")
    await judge(setting, tally)
    return tally


async def judge(setting: Setting, tally: ComparisonTally) -> None:
    """Settle what is disputed, by asking a single engine again."""
    if tally.disputed:
        async with SingleEngine(setting.torch, setting.scheduler, setting.subject.decoder) as engine:
            for ask, answer, right in tally.disputed:
                tally.judge(ask, answer, right, [await engine.ask(each) for each in nudged(ask)])
        tally.disputed.clear()


async def _one_wave(
    running: Platform, wave: Wave, truths: Sequence[Answer], tally: ComparisonTally, gap_max: float | None
) -> None:
    asked: list[Asked] = [running.begin(ask) for ask in wave]
    answers = await asyncio.gather(*(each.answer() for each in asked))
    for each, ask, answer, right in zip(asked, wave, answers, truths, strict=True):
        tally.answered(ask, answer, right, gap_max)
        tally.handed(ask, answer, await running.reported(each.request_id, "decode"))
