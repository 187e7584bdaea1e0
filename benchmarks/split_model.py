"""How far the planner's fast model of a fleet is from the simulator, and what is lost by believing it.

    python -m benchmarks.split_model                          open-loop traffic, TPOT 25 and 50 ms, 8 workers
    python -m benchmarks.split_model --traffic bimodal --seed 11 --load 0.75

Every split is simulated, and foreseen from the arrivals, the tokens that no earlier prompt had, and the mean answer:
what a router knows. Of every cell the share in the objective by split, in truth and foreseen, their rank correlation,
and how much is lost by taking the split that is foreseen to be the best. Loads are in units of
`benchmarks.goodput_runs.unit_rate`; the last line has the CPU time of a look at ten ways.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from benchmarks.fleet.contenders import OURS
from benchmarks.fleet.fleet import FleetSettings
from benchmarks.goodput_cells import CLOSED, TPOTS_MS, TRAFFICS, WARM_UP_S, Run
from benchmarks.goodput_runs import carry_out, fleet_of, slo, traffic_of
from router.split.outlook import Replay
from router.split.values import ObservedRequest, SplitOption, WorkerStatus, WorkTimes
from router.split.work import demands, present

_LOADS: Final = (0.5, 0.75, 0.9)
_WAYS_PER_LOOK: Final = 10


@dataclass(frozen=True)
class ModelledCell:
    """By split, shares in the objective; and CPU seconds of a replay."""

    run: Run
    truth: dict[int, float]
    foreseen: dict[int, float]
    cpu_s: float

    @property
    def lost(self) -> float:
        """Of the best split's share, what the one that is foreseen to be the best does not reach."""
        chosen = max(self.foreseen, key=lambda split: (self.foreseen[split], -split))
        return max(self.truth.values()) - self.truth[chosen]


def seen_of(run: Run) -> list[ObservedRequest]:
    """Its requests as a router sees them whose workers keep every prefix."""
    workload, _, _ = traffic_of(run)
    requests = sorted(workload.requests, key=lambda request: request.arrival_s)
    answer = fmean(request.output_tokens for request in requests)
    known, found = set[int](), list[ObservedRequest]()
    for request in requests:
        held = next((place for place, name in enumerate(request.blocks) if name not in known), len(request.blocks))
        known.update(request.blocks)
        uncached = max(1, request.input_tokens - request.leading(held))
        found.append(ObservedRequest(request.arrival_s, request.input_tokens, uncached, answer))
    return found


def times_of(fleet: FleetSettings) -> WorkTimes:
    """What work takes on its workers."""
    each = fleet.worker.step_time
    return WorkTimes(
        each.base_s,
        each.sequence_s,
        each.read_s,
        each.token_s,
        each.context_s,
        fleet.transfer_s,
        1 / fleet.transfer_tokens_per_s,
        fleet.worker.max_batched_tokens,
    )


def cell_of(run: Run, splits: Sequence[int]) -> ModelledCell:
    """Simulate and foresee."""
    seen, fleet, bounds = seen_of(run), fleet_of(run), slo(run.tpot_ms)
    times, worker = times_of(fleet), fleet.worker
    blocks = worker.kv_tokens // worker.block_tokens
    idle = WorkerStatus("", False, 0, 0, 0, blocks, blocks, worker.block_tokens, True, worker.max_sequences)
    now = present([idle] * run.workers, seen, times)
    truth, foreseen, cpu_s = dict[int, float](), dict[int, float](), list[float]()
    for split in splits:
        of_split = Run(**{**run.__dict__, "prefills": split})
        truth[split] = carry_out(of_split).attainment(run.tpot_ms)
        began = time.process_time()
        counted_s = WARM_UP_S * run.length - seen[0].arrival_s
        replay = Replay(
            SplitOption(split, run.itl_ms / 1e3), demands(seen, times, bounds), now, times, bounds, counted_s
        )
        for _ in replay.run():
            pass
        cpu_s.append((time.process_time() - began) / len(seen))
        foreseen[split] = replay.outlook().attainment
    return ModelledCell(run, truth, foreseen, fmean(cpu_s))


def correlation(cell: ModelledCell) -> float | None:
    """Of the ranks, ties sharing theirs; None where either side is the same everywhere."""
    first, second = (_ranks(list(each.values())) for each in (cell.truth, cell.foreseen))
    middle = fmean(first)
    spread = [sum((rank - middle) ** 2 for rank in ranks) for ranks in (first, second)]
    if min(spread) == 0:
        return None
    together = sum((one - middle) * (other - middle) for one, other in zip(first, second, strict=True))
    return float(together / (spread[0] * spread[1]) ** 0.5)


def _ranks(values: Sequence[float]) -> list[float]:
    rounded = [round(value, 2) for value in values]
    return [sum(each < value for each in rounded) + (rounded.count(value) - 1) / 2 for value in rounded]


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    open_loops = [name for name in TRAFFICS if name not in CLOSED]
    parser.add_argument("--traffic", nargs="+", default=open_loops, choices=open_loops)
    parser.add_argument("--tpot", nargs="+", type=int, default=list(TPOTS_MS))
    parser.add_argument("--load", nargs="+", type=float, default=list(_LOADS))
    parser.add_argument("--seed", nargs="+", type=int, default=[11])
    parser.add_argument("--split", nargs="+", type=int, default=[0, 2, 4, 5, 6])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--length", type=float, default=0.5)
    asked = parser.parse_args()
    cells = []
    for traffic in asked.traffic:
        for tpot_ms in asked.tpot:
            for load in asked.load:
                for seed in asked.seed:
                    run = Run(traffic, asked.workers, 0, OURS, load, 1.0, tpot_ms, float(tpot_ms), seed, asked.length)
                    cell = cell_of(run, asked.split)
                    cells.append(cell)
                    print(_line(cell), flush=True)
    ranked = [each for each in map(correlation, cells) if each is not None]
    lost = [cell.lost for cell in cells]
    print(
        f"lost by the split that is foreseen to be the best: {fmean(lost):.3f} in the mean, {max(lost):.3f} at worst"
    )
    if ranked:
        print(f"rank correlation: {fmean(ranked):.2f} in the mean, {min(ranked):.2f} at worst")
    off = [abs(cell.truth[split] - cell.foreseen[split]) for cell in cells for split in cell.truth]
    each_s = fmean(cell.cpu_s for cell in cells)
    print(f"share off by {fmean(off):.3f} in the mean; {each_s * 1e6:.1f} µs of CPU for a request and a way:")
    print(f"a look at 1,000 requests and {_WAYS_PER_LOOK} ways takes {each_s * 1e6 * _WAYS_PER_LOOK:.0f} ms")


def _line(cell: ModelledCell) -> str:
    run, rank = cell.run, correlation(cell)
    by_split = "  ".join(f"{split}P {cell.truth[split]:.2f}/{cell.foreseen[split]:.2f}" for split in cell.truth)
    name = f"{run.traffic}, TPOT {run.tpot_ms} ms, load {run.scale:g}, seed {run.seed}"
    return f"{name}: {by_split}; rank {'–' if rank is None else f'{rank:.2f}'}, lost {cell.lost:.3f}"


if __name__ == "__main__":
    main()
