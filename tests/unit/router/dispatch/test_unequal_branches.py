"""Branches with different numbers of forced tokens: every one goes on as it would alone, on small pools too.

Greedy branches are the hard case: their tokens are equal, so they find each other's blocks by name while they stand
at different positions, and one may be preempted while the other goes on.
"""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tests.worlds.scheduler_harness import Harness

_MODEL = SimulatedModel(block_tokens=4, blocks=24, context_tokens=128, vocab=1000)
_MOST = 14
"""Output tokens of a branch, at most."""


@dataclass(frozen=True)
class Request:
    """One work. `done` says how many tokens of its own answer each branch has had already; `strays`, whose forced
    tokens end otherwise than the answer."""

    mode: str
    prompt: tuple[int, ...]
    temperature: float
    done: tuple[int, ...]
    strays: tuple[bool, ...]
    max_tokens: int

    def branches(self) -> tuple[ChildRequest, ...]:
        return tuple(
            ChildRequest(number, 40 + number, self._forced(number, done, stray))
            for number, (done, stray) in enumerate(zip(self.done, self.strays, strict=False))
        )

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature)

    def _forced(self, number: int, done: int, stray: bool) -> tuple[int, ...]:
        alone = ChildRequest(number, 40 + number)
        tokens = reference_tokens(
            _MODEL, pack_tokens(self.prompt), alone, self.sampling, Stopping(_MOST, ignore_eos=True)
        ).tokens[: min(done, self.max_tokens - 1)]
        return (*tokens[:-1], 777) if stray and tokens else tokens


PROMPTS = st.builds(
    lambda base, length: tuple(range(300 * base, 300 * base + length)), st.integers(1, 2), st.integers(1, 18)
)
REQUESTS = st.builds(
    Request,
    mode=st.sampled_from(["local", "prefill", "decode"]),
    prompt=PROMPTS,
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    done=st.lists(st.integers(0, _MOST - 1), min_size=1, max_size=3).map(tuple),
    strays=st.tuples(*[st.booleans()] * 3),
    max_tokens=st.integers(2, _MOST),
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    blocks=st.integers(9, 24),
    budget=st.sampled_from([1, 3, 4, 7, 64]),
    cache=st.booleans(),
    requests=st.lists(REQUESTS, min_size=1, max_size=5),
    choices=st.lists(st.integers(0, 7), min_size=1, max_size=12),
)
def test_every_branch_goes_on_as_it_would_alone(
    blocks: int, budget: int, cache: bool, requests: list[Request], choices: list[int]
) -> None:
    run_all(blocks, budget, cache, requests, choices)


def run_all(blocks: int, budget: int, cache: bool, requests: list[Request], choices: list[int]) -> Harness:
    """Submit everything, let things happen between steps as `choices` says, and end with everything answered; the
    harness compares each answer with the reference."""
    model = SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=128, vocab=1000)
    h = Harness(
        model,
        SchedulerSettings(
            max_batched_tokens=budget, min_prefill_tokens=1, queue_s=1e6, prefix_cache=cache, watermark=0.0
        ),
    )
    waiting = list(requests)
    for turn in range(400):
        if waiting and choices[turn % len(choices)] % 2:
            _submit(h, waiting.pop(0))
        h.step()
        _carry_on(h, choices[turn % len(choices)] // 2)
        if turn > 40:
            _heal(h)
        if not waiting and all(story.ended for story in h.stories.values()):
            break
        if turn == 200:
            choices = [1]
    assert all(story.ended for story in h.stories.values()), "works are stuck"
    assert not waiting
    h.drain()
    return h


def _submit(h: Harness, request: Request) -> None:
    h.submit(
        request.prompt,
        request.mode,
        max_tokens=request.max_tokens,
        branches=request.branches(),
        sampling=request.sampling,
        ignore_eos=True,
    )


def _carry_on(h: Harness, choice: int) -> None:
    """What may happen to decode works between two steps: a block lands, prefill tells a first token or is lost."""
    h.stop_withdrawn(late=choice == 3)
    for work_id in list(h.fetches)[:1]:
        left = list(h.fetches[work_id].left)
        if choice == 0 and left:
            h.land(work_id, left[0])
        elif choice == 1 or not left:
            h.land_all(work_id)
        elif choice == 2:
            h.end_fetch(work_id, "the holder is gone")
    for work_id, story in list(h.stories.items()):
        if story.work.mode == "decode" and story.ended is None and choice != 3:
            sequence = story.work.branches[choice % len(story.work.branches)].sequence
            if not story.emitted[sequence] and sequence not in story.provided:
                h.provide(work_id, sequence, relay=choice == 1)
                break
    if choice == 3:
        h.quiet()
        for work_id, story in h.stories.items():
            if story.work.mode == "decode" and story.ended is None:
                h.sample_first(work_id)
                break


def _heal(h: Harness) -> None:
    """Everything that is wanted arrives, and leases of prefill works end."""
    h.quiet()
    h.stop_withdrawn()
    for work_id in list(h.fetches):
        h.land_all(work_id)
    for work_id, story in list(h.stories.items()):
        if story.work.mode == "decode" and story.ended is None:
            h.sample_first(work_id)
        if story.work.mode == "prefill" and story.ended is not None:
            h.scheduler.leases.release(story.work.lease_id)
