"""The placement decision: CPU time of one, by the number of workers and how the fleet is made up.

Prompts have 7,200 tokens in blocks of 16, of which a fifth of the workers have the first 6,000; requests have an
objective; every worker runs some twenty sequences, half of them have prompts waiting. `unified` workers do
everything; of a `split` fleet a half computes prompts and a half generates. It is as in life: between two decisions
the policy hears that the first was carried out and that an older request has ended, time goes on, and one worker
tells figures that differ from those before. Times are of CPU and of the decision alone, the median of all, and
of rounds over all fleets the median.

Machines differ, and one machine differs from day to day. So the table also says how many yardsticks a decision takes:
a yardstick is a fixed loop of the interpreter, timed in turn with the decisions. The bounds are in microseconds.
"""

import sys
import time
from collections import deque
from statistics import median
from typing import Final, NamedTuple

from benchmarks.rounds import Check, table, verdict
from kv_transfer.index.protocol import Held
from router.placement import CostModel, Objective, Placement, PlacementRequest, WorkerView, make_policy
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import NAME_BYTES, BlockNames, Layout
from tandem.core.messages import Load

LIMITS_US: Final = {16: 120.0, 64: 300.0}
_ROOT: Final = b"r" * NAME_BYTES
_LAYOUT: Final = Layout("simulated", "plain", "float16", 2, 16, 16, 8, 128)
_TOKENS: Final = 7200
_SHARED_BLOCKS: Final = 375
_DECISIONS: Final = 1_000
_BEFORE: Final = 50
"""Decisions that do not count, and requests under way afterwards."""
_GAP_S: Final = 0.01
"""Between two requests."""
_ROUNDS: Final = 3
"""All cells in turn so many times: the first cell of a process would otherwise be the one that it starts up in."""
_YARDSTICK_EVERY: Final = 10
"""Decisions between two yardsticks."""


def told(number: int, turn: int) -> Load:
    """What a worker that has something to do tells of itself, each time something else."""
    return Load(
        running=20 + (number + turn) % 7,
        waiting=number % 2,
        queued_prompt_tokens=(number + turn) * 37 % 5000 if number % 2 else 0,
        blocks_free=3000 + number + turn % 100,
        blocks_cached=2900,
        blocks_exported=0,
        step_s=0.02 + turn % 10 * 1e-4,
        prefill_tokens_per_s=20_000.0,
        decode_tokens_per_s=1000.0,
        preemptions=0,
    )


def worker(number: int, role: str) -> WorkerView:
    """One worker."""
    view = WorkerView(f"w{number:03d}", 1, role, "m", "r", 0, _ROOT, _LAYOUT, 20_000, 1 << 20)
    view.loaded(told(number, 0), 0.0, 0.15)
    return view


def fleet(workers: int, kind: str) -> list[WorkerView]:
    """So many workers, `unified` or `split`."""
    split = ("prefill", "decode") if kind == "split" else ("unified", "unified")
    return [worker(number, split[number >= workers // 2]) for number in range(workers)]


class Took(NamedTuple):
    """CPU microseconds, medians: of a decision, and of a yardstick beside it."""

    decision_us: float
    yardstick_us: float

    @property
    def yardsticks(self) -> float:
        """How many a decision takes: comparable from day to day."""
        return self.decision_us / self.yardstick_us


def yardstick(views: list[WorkerView]) -> float:
    """What placement is made of, and nothing of placement: attributes, floats and a comparison, 100 times."""
    least = 1e9
    for turn in range(100):
        view = views[turn % len(views)]
        price = 0.5 * view.steps_ms + 1e-3 * view.sequences + turn
        least = price if price < least else least
    return least


def measured(workers: list[WorkerView], policy_name: str) -> Took:
    """Decisions of one policy over a fleet."""
    settings, costs = PlacementSettings(policy=policy_name), CostModel(CostPriors())
    policy = make_policy(settings, SeededEntropy(0))
    names = BlockNames(b"".join(block.to_bytes(NAME_BYTES, "little") for block in range(_TOKENS // 16)))
    held = {view.worker_id: Held(_SHARED_BLOCKS, _SHARED_BLOCKS) for view in workers[::5]}
    held_to = Objective(ttft_ms=2000.0, tpot_ms=50.0)
    under_way: deque[tuple[PlacementRequest, Placement]] = deque()
    took_s, yardsticks_s, still = list[float](), list[float](), fleet(4, "unified")
    for turn in range(_BEFORE + _DECISIONS):
        now = 1.0 + _GAP_S * turn
        request = PlacementRequest(
            "m", _TOKENS, 1, 1000, held, names={_ROOT: names}, request_id=f"r{turn}", objective=held_to
        )
        began = time.process_time()
        found = policy.choose(request, workers, costs, settings, None, now)
        took_s.append(time.process_time() - began)
        assert isinstance(found, Placement), found
        policy.placed(request, found, now)
        under_way.append((request, found))
        if len(under_way) > _BEFORE:
            policy.ended(*under_way.popleft(), 300, now)
        place = turn % len(workers)
        workers[place].loaded(told(place, turn), now, 0.15)
        if turn % _YARDSTICK_EVERY == 0:
            began = time.process_time()
            yardstick(still)
            yardsticks_s.append(time.process_time() - began)
    return Took(1e6 * median(took_s[_BEFORE:]), 1e6 * median(yardsticks_s))


def main() -> int:
    """Measure, print, check."""
    kinds, policies = ("unified", "split"), ("prefix_aware", "least_loaded", "consistent_hash")
    cells = [(kind, workers) for kind in kinds for workers in LIMITS_US]
    rounds = [
        {(policy, *cell): measured(fleet(cell[1], cell[0]), policy) for policy in policies for cell in cells}
        for _ in range(_ROUNDS)
    ]
    found = {key: _median([each[key] for each in rounds]) for key in rounds[0]}
    head = ("us per decision, p50 (yardsticks)", *(f"{workers} {kind}" for kind, workers in cells))
    rows = [(policy, *(_shown(found[policy, kind, workers]) for kind, workers in cells)) for policy in policies]
    print(table(head, rows))
    print(f"yardstick: {median([each.yardstick_us for each in found.values()]):.1f} us")
    checks = [
        Check(
            f"a decision over {workers} {kind} workers, p50",
            found["prefix_aware", kind, workers].decision_us,
            limit,
            False,
            "us",
        )
        for kind in kinds
        for workers, limit in LIMITS_US.items()
    ]
    return verdict(checks, "placement keeps its bounds")


def _median(rounds: list[Took]) -> Took:
    return Took(median([each.decision_us for each in rounds]), median([each.yardstick_us for each in rounds]))


def _shown(took: Took) -> str:
    return f"{took.decision_us:.0f} ({took.yardsticks:.1f})"


if __name__ == "__main__":
    sys.exit(main())
