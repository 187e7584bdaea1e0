"""Schedules that are what they were when it was written down: every step's rows, tables and draws, and all reports.

Works of every kind come, get on, are cancelled, wait for blocks and lose them, on pools that are too small. The
harness looks at every token, slot and lease on the way. Beyond that a client who was served in a step yesterday is
served in that step today: nobody's first token comes a step later because code was moved.
"""

from contextlib import suppress

import pytest

from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.errors import TandemError
from tandem.core.request import ChildRequest, Sampling
from tandem.engine.protocol import StepReport
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.scheduler_harness import Harness

TURNS = 160
SAMPLINGS = (
    Sampling(),
    Sampling(),
    Sampling(temperature=0.0),
    Sampling(frequency_penalty=0.5),
    Sampling(logprobs=2),
    Sampling(logit_bias=((700, 2.0),)),
)
SETTINGS = {
    "roomy": (200, SchedulerSettings(max_batched_tokens=48, min_prefill_tokens=4, itl_target_s=0.02)),
    "small pool": (28, SchedulerSettings(max_batched_tokens=16, min_prefill_tokens=1, watermark=0.1, max_waiting=12)),
    "few sequences": (60, SchedulerSettings(max_batched_tokens=64, max_sequences=3, queue_s=0.5, kv_wait_s=0.4)),
    "idle fetches": (40, SchedulerSettings(max_batched_tokens=8, fetch_idle_s=0.05, fetch_ahead=1, export_share=0.3)),
    "no cache": (60, SchedulerSettings(max_batched_tokens=32, prefix_cache=False, load_every_s=0.02)),
}
SEEDS = range(8)


class ToldHarness(Harness):
    """Takes its own time for each step, and writes down all that the scheduler says."""

    def __init__(self, model: SimulatedModel, settings: SchedulerSettings, entropy: SeededEntropy) -> None:
        super().__init__(model, settings)
        self.said: list[str] = []
        self._entropy = entropy

    def _read(self, report: StepReport | None) -> None:
        if report is not None:
            self.said.append(f"{self.now:.3f} {report}")
        super()._read(report)

    def begin(self) -> bool:
        begun = super().begin()
        if begun:
            self.said.append(f"{self.steps[-1]} expected in {self.scheduler.predicted_s:.6g} s")
        return begun

    def finish(self) -> None:
        assert self.running is not None
        step, self.running = self.running, None
        tokens = sum(row.count for row in self.steps[-1].rows)
        took_s = 0.004 + 0.0006 * tokens + 0.0001 * len(self.steps[-1].rows)
        result = self.runner.compute(step, took_s * (0.95 + 0.1 * unit(self._entropy)))
        self.now += took_s
        self._read(self.scheduler.apply(result, self.now))
        self.check()


def submit(h: ToldHarness, entropy: SeededEntropy) -> None:
    base, cut = below(entropy, 2) * 100, below(entropy, 41)
    prompt = tuple(range(base, base + 40))[:cut] + tuple(below(entropy, 3) for _ in range(below(entropy, 4)))
    forced = [
        tuple(300 + below(entropy, 2) for _ in range(below(entropy, 6) // 2))
        for _ in range(1 + below(entropy, 4) // 2)
    ]
    most = max(map(len, forced)) + 1 + below(entropy, 12)
    with suppress(TandemError):
        h.submit(
            prompt or (5,),
            ("local", "local", "prefill", "decode", "decode")[below(entropy, 5)],
            max_tokens=most,
            branches=tuple(ChildRequest(number, 40 + number, each) for number, each in enumerate(forced)),
            sampling=SAMPLINGS[below(entropy, len(SAMPLINGS))],
            priority=below(entropy, 4) // 3,
            bring=(0, 0, 1, 3, 9)[below(entropy, 5)],
            min_tokens=(0, 0, 3)[below(entropy, 3)] and min(3, most),
            deadline=(1e9, h.now + unit(entropy))[below(entropy, 6) == 0],
            lease_s=(100.0, 0.3)[below(entropy, 3) == 0],
            private=below(entropy, 8) == 0,
            ignore_eos=below(entropy, 4) == 0,
        )


def fetch(h: ToldHarness, entropy: SeededEntropy, kind: int) -> None:
    """Something happens to a fetch."""
    works = list(h.fetches)
    if not works:
        return
    work = works[below(entropy, len(works))]
    left = h.fetches[work].left
    if kind == 0 and left:
        h.land(work, list(left)[below(entropy, len(left))])
    elif kind == 1:
        h.land_all(work)
    elif kind == 2:
        slots = [target.slot for target in left.values()]
        h.end_fetch(work, "broken", tuple(slots[: below(entropy, 3)]))


def command(h: ToldHarness, entropy: SeededEntropy) -> None:
    """Something that comes from outside."""
    live = [work for work, story in h.stories.items() if story.ended is None]
    decodes = [work for work in live if h.stories[work].work.mode == "decode"]
    match below(entropy, 12):
        case 0 | 1 | 2:
            submit(h, entropy)
        case 3 if live and below(entropy, 2):
            work = live[below(entropy, len(live))]
            h.cancel(work, (None, 0)[below(entropy, 2)])
        case 4 | 5 if decodes:
            work = decodes[below(entropy, len(decodes))]
            sequences = list(h.stories[work].emitted)
            h.provide(work, sequences[below(entropy, len(sequences))], below(entropy, 5) == 0)
        case 6 if decodes:
            h.sample_first(decodes[below(entropy, len(decodes))])
        case 7 if live:
            h.scheduler.bring(live[below(entropy, len(live))], below(entropy, 9))
        case 8:
            prompt = tuple(range(below(entropy, 2) * 100, 140))[: 4 + below(entropy, 36)]
            h.ask_as_peer(prompt)
        case 9 if h.peer_reads:
            number = next(iter(h.peer_reads))
            landed = h.landed_for_guest.get(number, [])
            left = [target.index for target in h.peer_reads[number].targets if target.index not in landed]
            if left and below(entropy, 3):
                h.land_guest(number, left[0])
            else:
                h.end_guest(number)
        case 10:
            h.stop_withdrawn(below(entropy, 2) == 0)
            h.quiet()
        case _:
            fetch(h, entropy, below(entropy, 3))


def lived(seed: int, blocks: int, settings: SchedulerSettings) -> list[str]:
    entropy = SeededEntropy(seed, "schedule")
    model = SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=128, eos_rate=0.03, vocab=1000)
    h = ToldHarness(model, settings, entropy.fork("times"))
    for _ in range(TURNS):
        for _ in range(below(entropy, 3)):
            command(h, entropy)
        if h.begin():
            if below(entropy, 4) == 0:
                command(h, entropy)
            h.finish()
        else:
            h.now += unit(entropy) * 0.1
        if below(entropy, 8) == 0:
            h.said.append(str(h.scheduler.load()))
    releases = [story.work.lease_id for story in h.stories.values() if story.work.mode == "prefill"]
    for lease_id in releases:
        h.scheduler.leases.release(lease_id)
    h.drain()
    return h.said


@pytest.mark.parametrize("name", SETTINGS)
def test_works_are_scheduled_as_they_were_when_it_was_written_down(name: str) -> None:
    stories = {}
    for seed in SEEDS:
        story = lived(seed, *SETTINGS[name])
        emitted = sum(each.count("Emitted(") for each in story)
        stories[f"{seed}: {digest(story)}, {emitted} tokens in {len(story)} lines"] = story
    assert_as_written(f"schedules {name}".replace(" ", "_"), list(stories), stories)
