"""Whatever happens, in whatever order: no block leaks, every token is the reference's, everything drains."""

from contextlib import suppress

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem.core.errors import TandemError
from tandem.core.request import ChildRequest, Sampling
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tests.worlds.scheduler_harness import Harness

# Few prompts, many shared prefixes: runs of one or two symbols with lengths around block and chunk edges.
PROMPTS = st.builds(
    lambda base, cut, suffix: (tuple(range(base * 100, base * 100 + 40))[:cut] + suffix) or (5,),
    st.integers(0, 1),
    st.integers(0, 40),
    st.lists(st.integers(0, 2), max_size=3).map(tuple),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Random works, commands between plan and apply, fetches that fail half-way."""

    @initialize(
        blocks=st.integers(16, 40),
        budget=st.sampled_from([1, 3, 4, 7, 16, 64]),
        sequences=st.sampled_from([1, 2, 8, 64]),
        cache=st.booleans(),
        eos=st.sampled_from([0.0, 0.2]),
    )
    def start(self, blocks: int, budget: int, sequences: int, cache: bool, eos: float) -> None:
        model = SimulatedModel(block_tokens=4, blocks=blocks, context_tokens=128, eos_rate=eos, vocab=1000)
        self.h = Harness(
            model,
            SchedulerSettings(
                max_sequences=sequences,
                max_batched_tokens=budget,
                min_prefill_tokens=1,
                max_waiting=12,
                queue_s=1e6,
                prefix_cache=cache,
            ),
        )

    def _pick(self, works: list[int], number: int) -> int | None:
        return works[number % len(works)] if works else None

    def _live(self, mode: str | None = None) -> list[int]:
        return [
            work_id
            for work_id, story in self.h.stories.items()
            if story.ended is None and (mode is None or story.work.mode == mode)
        ]

    @rule(
        prompt=PROMPTS,
        mode=st.sampled_from(["local", "local", "prefill", "decode", "decode"]),
        forced=st.lists(st.lists(st.integers(300, 301), max_size=5).map(tuple), min_size=1, max_size=3),
        more=st.integers(1, 9),
        min_tokens=st.sampled_from([0, 0, 3]),
        sampling=st.sampled_from(
            [Sampling(), Sampling(temperature=0.0), Sampling(frequency_penalty=0.5), Sampling(logprobs=2)]
        ),
        priority=st.sampled_from([0, 0, 0, 1]),
        bring=st.sampled_from([0, 0, 1, 3, 9]),
    )
    def submit(
        self,
        prompt: tuple[int, ...],
        mode: str,
        forced: list[tuple[int, ...]],
        more: int,
        min_tokens: int,
        sampling: Sampling,
        priority: int,
        bring: int,
    ) -> None:
        branches = tuple(ChildRequest(number, 40 + number, tokens) for number, tokens in enumerate(forced))
        most = max(len(tokens) for tokens in forced) + more
        # Small pools refuse some works, and full queues too; both before anything is held.
        with suppress(TandemError):
            self.h.submit(
                prompt,
                mode,
                max_tokens=most,
                branches=branches,
                sampling=sampling,
                priority=priority,
                bring=bring,
                min_tokens=min_tokens,
            )

    @rule()
    @precondition(lambda self: self.h.running is None)
    def begin(self) -> None:
        self.h.begin()

    @rule()
    @precondition(lambda self: self.h.running is not None)
    def finish(self) -> None:
        self.h.finish()

    @rule(steps=st.integers(1, 8))
    @precondition(lambda self: self.h.running is None)
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            self.h.step()

    @rule(number=st.integers(0, 99))
    def cancel(self, number: int) -> None:
        work_id = self._pick(self._live(), number)
        if work_id is not None:
            self.h.cancel(work_id)

    @rule(number=st.integers(0, 99), sequence=st.integers(0, 2))
    def cancel_one(self, number: int, sequence: int) -> None:
        work_id = self._pick(self._live(), number)
        if work_id is not None and sequence in self.h.stories[work_id].emitted:
            self.h.cancel(work_id, sequence)

    @rule(number=st.integers(0, 99), sequence=st.integers(0, 2), relay=st.booleans())
    def provide(self, number: int, sequence: int, relay: bool) -> None:
        work_id = self._pick(self._live("decode"), number)
        if work_id is not None and sequence in self.h.stories[work_id].emitted:
            self.h.provide(work_id, sequence, relay)

    @rule(number=st.integers(0, 99))
    def sample_first(self, number: int) -> None:
        work_id = self._pick(self._live("decode"), number)
        if work_id is not None:
            self.h.sample_first(work_id)

    @rule(number=st.integers(0, 99), blocks=st.integers(0, 9))
    def bring(self, number: int, blocks: int) -> None:
        work_id = self._pick(self._live(), number)
        if work_id is not None:
            self.h.scheduler.bring(work_id, blocks)

    @rule(prompt=PROMPTS)
    def ask_as_peer(self, prompt: tuple[int, ...]) -> None:
        self.h.ask_as_peer(prompt)

    @rule(number=st.integers(0, 99), index=st.integers(0, 99))
    def land_guest(self, number: int, index: int) -> None:
        peer_read = self._pick(list(self.h.peer_reads), number)
        if peer_read is not None:
            landed = self.h.landed_for_guest.get(peer_read, [])
            left = [target.index for target in self.h.peer_reads[peer_read].targets if target.index not in landed]
            if left:
                self.h.land_guest(peer_read, left[index % len(left)])

    @rule(number=st.integers(0, 99), late=st.integers(0, 2))
    def end_guest(self, number: int, late: int) -> None:
        peer_read = self._pick(list(self.h.peer_reads), number)
        if peer_read is not None:
            landed = self.h.landed_for_guest.get(peer_read, [])
            left = [target.slot for target in self.h.peer_reads[peer_read].targets if target.index not in landed]
            self.h.end_guest(peer_read, tuple(left[:late]))

    @rule(number=st.integers(0, 99))
    def copy_block(self, number: int) -> None:
        self.h.copy_block(number)

    @rule(number=st.integers(0, 99), index=st.integers(0, 99))
    def land(self, number: int, index: int) -> None:
        work_id = self._pick([work for work, fetching in self.h.fetches.items() if fetching.left], number)
        if work_id is not None:
            left = list(self.h.fetches[work_id].left)
            self.h.land(work_id, left[index % len(left)])

    @rule(number=st.integers(0, 99))
    def land_all(self, number: int) -> None:
        work_id = self._pick(list(self.h.fetches), number)
        if work_id is not None:
            self.h.land_all(work_id)

    @rule(number=st.integers(0, 99), late=st.integers(0, 3))
    def fail_fetch(self, number: int, late: int) -> None:
        work_id = self._pick(list(self.h.fetches), number)
        if work_id is not None:
            left = list(self.h.fetches[work_id].left.values())
            self.h.end_fetch(work_id, "broken", tuple(target.slot for target in left[:late]))

    @rule(late=st.booleans())
    def stop_withdrawn(self, late: bool) -> None:
        self.h.stop_withdrawn(late)

    @rule()
    def quiet(self) -> None:
        self.h.quiet()

    @rule(number=st.integers(0, 99))
    def release(self, number: int) -> None:
        work_id = self._pick([w for w, story in self.h.stories.items() if story.work.mode == "prefill"], number)
        if work_id is not None:
            self.h.scheduler.leases.release(self.h.stories[work_id].work.lease_id)

    @rule()
    def expire(self) -> None:
        self.h.now += 60.0

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "h"):
            self.h.check()
            for work_id, story in self.h.stories.items():
                if story.work.mode == "prefill":
                    self.h.exports(work_id)

    def teardown(self) -> None:
        if not hasattr(self, "h"):
            return
        # Heal: everything that is wanted arrives; then every work must end by itself.
        if self.h.running is not None:
            self.h.finish()
        for _ in range(200):
            self.h.run()
            self.h.copy_block(None)
            self.h.now += 200.0
            self.h.stop_withdrawn()
            for work_id in list(self.h.fetches):
                self.h.land_all(work_id)
            for peer_read in list(self.h.peer_reads):
                self.h.end_guest(peer_read)
            self.h.quiet()
            for work_id in self._live("decode"):
                self.h.sample_first(work_id)
            if not self._live() and not self.h.fetches and not self.h.stopping:
                break
        assert not self._live(), "works are stuck"
        self.h.drain()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
