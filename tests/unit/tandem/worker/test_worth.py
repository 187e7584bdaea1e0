"""What is worth bringing: the end that saves most, learned rates, and what is asked of tiers and sources for it."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import msgspec
import pytest

from kv_transfer.fetch_progress import FetchReport, OriginReport
from tandem.core.messages import Load, Source, Submit, TierCost
from tandem.engine.protocol import Prefix, RequestStats
from tandem.worker.fetch_policy import FetchOption, choose_fetch
from tandem.worker.rates import Rates
from tandem.worker.reuse import Reuse
from tests.contract.block_space import TestSpace, block_layout
from tests.worlds.worker_stage import submit

LAYOUT = block_layout(1 << 20, block_tokens=16, kv_heads=64, head_dim=128)
"""Blocks of a mebibyte."""
IDLE = Load(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0)


def each(block_s: float) -> Callable[[int, int], float]:
    """Every block costs the same."""
    return lambda start, end: (end - start) * block_s


def test_bringing_ends_where_it_saves_most() -> None:
    stretches = (FetchOption(4, 0.1, "dram"), FetchOption(8, 0.2, "nvme"), FetchOption(20, 9.0, "peer"))
    worth = choose_fetch(stretches, 0, each(0.1))
    assert (worth.blocks, worth.seconds, worth.otherwise_s) == (8, 0.2, pytest.approx(0.8))
    assert worth.reason == "brings 8 blocks, the last from nvme, in 200.0 ms instead of 800.0 ms"
    assert choose_fetch(stretches, 6, each(0.1)).blocks == 0, "two blocks are computed sooner than they come"
    assert choose_fetch(stretches, 6, each(0.11)).blocks == 8


def test_what_does_not_pay_is_left_and_said() -> None:
    worth = choose_fetch((FetchOption(4, 0.5, "nvme"),), 0, each(0.1))
    assert (worth.blocks, worth.reason) == (0, "not brought: 4 blocks in 500.0 ms against 400.0 ms")
    assert choose_fetch((), 0, each(0.1)).reason == ""
    assert choose_fetch((FetchOption(4, 0.1, "dram"),), 4, each(0.1)).reason == ""


def test_as_long_as_nobody_knows_what_computing_costs_everything_is_brought() -> None:
    worth = choose_fetch((FetchOption(4, 0.1, "dram"), FetchOption(9, 5.0, "peer")), 0, each(inf))
    assert worth.blocks == 9
    assert worth.reason == "brings 9 blocks, the last from peer, in 5000.0 ms"


def test_rates_are_learned_and_forgotten() -> None:
    rates = Rates()
    assert rates.expected_s("peer", 1 << 20, 0.0) is None
    rates.observe("peer", 1000, 0.001, 0.0)
    assert rates.expected_s("peer", 1 << 20, 0.0) is None, "too little to tell"
    rates.observe("prefill", 1 << 20, 1.0, 1.0)
    assert rates.expected_s("prefill", 1 << 20, 2.0) == pytest.approx(1.0)
    assert rates.bytes_per_s("prefill", 2.0) == pytest.approx(1 << 20)
    assert rates.expected_s("store", 1 << 20, 3.0) is None
    assert rates.expected_s("prefill", 1 << 20, 62.0) is None, "what was slow once is tried again"
    assert rates.bytes_per_s("prefill", 62.0) is None


def test_a_small_first_fetch_does_not_speak_for_large_ones() -> None:
    rates = Rates()
    rates.observe("peer", 1 << 16, 0.003, 0.0)
    assert rates.expected_s("peer", 1 << 16, 1.0) == pytest.approx(0.003)
    assert rates.expected_s("peer", 16 << 20, 1.0) == pytest.approx(0.003 + (16 << 20) / 1e9, rel=0.01)
    for _ in range(3):
        rates.observe("peer", 16 << 20, 1.6, 1.0)
    assert rates.expected_s("peer", 16 << 20, 2.0) == pytest.approx(1.6, rel=0.25), "hope ends with the next ones"


def test_what_does_not_depend_on_the_size_is_learned_apart_from_the_rate() -> None:
    rates = Rates()
    for turn in range(12):
        size = (1 << 20) << turn % 6
        rates.observe("nvme", size, 0.010 + size / 1e9, 0.0, 2e9)
    assert rates.expected_s("nvme", 512 << 10, 1.0) == pytest.approx(0.0105, rel=0.15)
    assert rates.expected_s("nvme", 64 << 20, 1.0) == pytest.approx(0.077, rel=0.1)
    assert rates.bytes_per_s("nvme", 1.0) == pytest.approx(1e9, rel=0.1)


def test_fetches_that_something_else_held_up_do_not_make_fetching_dear() -> None:
    rates, sizes = Rates(), [(64 << 10) * (1 + turn % 5) for turn in range(20)]
    rates.observe("peer", sizes[0], 0.030, 0.0)
    for turn, size in enumerate(sizes):
        held_up_s = 0.005 if turn % 4 == 0 else 0.0
        rates.observe("peer", size, 0.001 + size / 1e9 + held_up_s, 0.0)
    for size in (32 << 10, 1 << 20):
        assert rates.expected_s("peer", size, 0.0) == pytest.approx(0.001 + size / 1e9, rel=0.01)


def test_where_fetching_became_slow_for_good_that_is_soon_believed() -> None:
    rates = Rates()
    for turn in range(100):
        rates.observe("peer", (64 << 10) * (1 + turn % 5), 0.001, 0.0)
    for turn in range(9):
        rates.observe("peer", (64 << 10) * (1 + turn % 5), 0.100, 0.0)
    assert rates.expected_s("peer", 128 << 10, 0.0) == pytest.approx(0.100, rel=0.1)


def test_fetches_of_one_size_leave_the_rate_that_was_believed() -> None:
    rates = Rates()
    for _ in range(40):
        rates.observe("dram", 1 << 20, 0.003, 0.0, 1e9)
    assert rates.expected_s("dram", 1 << 20, 0.0) == pytest.approx(0.003)
    assert rates.bytes_per_s("dram", 0.0) == pytest.approx(1e9)


class Space(TestSpace):
    """A work waits whose prompt has so many blocks, some of them here."""

    def __init__(self, blocks: int, here: int) -> None:
        super().__init__(LAYOUT, 1, 5, shared=False)
        self.asked: list[int] = []
        self._prefix = Prefix(tuple(bytes([number]) * 16 for number in range(blocks)), here)

    def prefix(self, work_id: int) -> Prefix | None:
        return self._prefix

    def bring(self, work_id: int, blocks: int) -> None:
        self.asked.append(blocks)


class Holds:
    """Tiers with leading blocks, some milliseconds each."""

    def __init__(self, *tiers: str, ms: float = 1.0) -> None:
        self._tiers, self._ms = tiers, ms
        self.asked: list[int] = []

    def where(self, names: Sequence[bytes]) -> tuple[str, ...]:
        return self._tiers[: len(names)]

    @property
    def shapes(self) -> tuple[TierCost, ...]:
        rate = LAYOUT.block_bytes / (self._ms / 1e3)
        return tuple(TierCost(tier, 100, rate, 0.0) for tier in ("dram", "nvme"))

    def expected_s(self, tiers: Sequence[str], block_bytes: int) -> float:
        assert block_bytes == LAYOUT.block_bytes
        self.asked.append(len(tiers))
        return len(tiers) * self._ms / 1e3


class Clock:
    def now(self) -> float:
        return 100.0

    def wall(self) -> float:
        return 0.0


def source(blocks: int, kind: str = "peer") -> Source:
    return Source("u-1", 9, ("mem://u-1",), "reuse-1", b"", blocks, kind)


def asking(*sources: Source, mode: str = "local", canary: bool = False) -> Submit:
    return Submit(
        handle=1,
        request_id="r",
        attempt=1,
        mode=mode,
        prompt=b"",
        branches=(),
        sampling=submit(1).sampling,
        stopping=submit(1).stopping,
        deadline_s=1.0,
        canary=canary,
        sources=sources,
    )


def reuse(space: Space, tiers: Any, **figures: float) -> Reuse:
    """By default computing a block takes 4 ms."""
    made = Reuse(space, tiers, Clock())
    made.heard(msgspec.structs.replace(IDLE, **(figures or {"prefill_tokens_per_s": 16 / 0.004})))
    return made


def test_own_tiers_come_first_and_a_source_brings_what_they_do_not_have() -> None:
    space, tiers = Space(20, 2), Holds("dram", "dram", "nvme")
    bringing, reason = reuse(space, tiers).begin(1, asking(source(9), source(30)))
    assert (bringing.blocks, space.asked) == (20, [20])
    assert bringing.patience_s == pytest.approx(18 * 0.004)
    assert tiers.asked == [2, 3]
    assert reason.startswith("brings 18 blocks, the last from peer")


def test_a_slow_source_is_left_out_once_it_has_been_tried() -> None:
    space = Space(20, 0)
    made = reuse(space, Holds("dram"))
    slow = OriginReport("peer", "u-1", "tcp", 10, 160, 10 << 20, 0.0, 1.0)
    report = FetchReport(0, 0, 0.0, "", 0.0, None, None, 0.0, brought=(slow,), handed_over=False)
    assert made.begin(1, asking(source(20)))[0].blocks == 20
    made.learn(report)
    assert made.begin(1, asking(source(20)))[0].blocks == 1
    assert made.begin(1, asking(source(20, "store")))[0].blocks == 20, "another kind of holder"


def test_what_prefill_sends_sooner_is_not_read_from_a_slow_disk() -> None:
    handed = FetchReport(100, 100 << 20, 1.0, "shm", 2.0, None, None, 0.0)
    made = reuse(Space(4, 0), Holds(*["nvme"] * 4, ms=3.0))
    assert made.begin(1, asking(mode="decode"))[0].blocks == 4
    made.learn(handed)
    assert made.begin(1, asking(mode="decode"))[0].blocks == 0
    assert made.begin(1, asking())[0].blocks == 4, "computing takes longer"


def test_nothing_is_asked_for_canaries_and_without_anybody_to_ask() -> None:
    space = Space(4, 0)
    assert reuse(space, Holds("dram")).begin(1, asking(canary=True))[0].blocks == 0
    assert reuse(space, None).begin(1, asking())[0].blocks == 0
    assert reuse(Space(4, 4), Holds("dram")).begin(1, asking(source(4)))[0].blocks == 0
    assert Reuse(None, None, Clock()).begin(1, asking(source(4)))[0].blocks == 0
    assert space.asked == []


def test_scattered_tiers_are_asked_about_at_a_few_places_only() -> None:
    tiers = Holds(*["dram", "nvme"] * 50)
    bringing, _ = reuse(Space(100, 0), tiers).begin(1, asking())
    assert bringing.blocks == 100
    assert len(tiers.asked) <= 17


def test_what_counts_is_what_more_tokens_add_to_a_step_not_the_rate_of_steps_with_one_token() -> None:
    slow_steps = {"prefill_tokens_per_s": 70.0, "prefill_token_s": 50e-6}
    made = reuse(Space(8, 0), Holds(*["nvme"] * 8, ms=1.0), **slow_steps)
    bringing, reason = made.begin(1, asking())
    assert (bringing.blocks, reason) == (0, "not brought: 8 blocks in 8.0 ms against 6.4 ms")
    attending = {**slow_steps, "prefill_position_s": 1e-6}
    bringing, reason = reuse(Space(8, 0), Holds(*["nvme"] * 8, ms=1.0), **attending).begin(1, asking())
    assert bringing.blocks == 8
    assert reason == "brings 8 blocks, the last from nvme, in 8.0 ms instead of 14.6 ms"


def test_what_bringing_takes_in_all_is_learned_for_own_tiers() -> None:
    tiers = Holds(*["nvme"] * 4, ms=1.0)
    made = reuse(Space(4, 0), tiers, prefill_token_s=16 / 0.016 * 1e-6 * 0.256)
    assert made.begin(1, asking())[0].blocks == 4
    for _ in range(8):
        brought = OriginReport("nvme", "", "nvme", 2, 32, 2 << 20, 0.0, 0.022)
        made.learn(FetchReport(0, 0, 0.0, "", 0.0, None, None, 0.0, brought=(brought,), handed_over=False))
    assert made.begin(1, asking())[0].blocks == 0, "each read takes much longer than the disk alone"


def test_of_tiers_that_were_read_together_nothing_is_learned() -> None:
    made = reuse(Space(4, 0), Holds(*["nvme"] * 4, ms=1.0))
    both = tuple(OriginReport(tier, "", tier, 2, 32, 2 << 20, 0.0, 9.0) for tier in ("nvme", "dram"))
    made.learn(FetchReport(0, 0, 0.0, "", 0.0, None, None, 0.0, brought=both, handed_over=False))
    assert made.begin(1, asking())[0].blocks == 4


def fetched(started: float, seconds: float, reason: str | None = None) -> FetchReport:
    brought = OriginReport("dram", "", "dram", 2, 32, 2 << 20, started, seconds, reason)
    return FetchReport(0, 0, 0.0, "", 0.0, None, None, 0.0, brought=(brought,), handed_over=False)


def test_what_a_fetch_holds_up_its_work_for_around_it_is_part_of_what_bringing_costs() -> None:
    made = reuse(Space(4, 0), Holds(*["dram"] * 4, ms=1.0), prefill_token_s=100e-6)
    assert made.begin(1, asking())[0].blocks == 4
    for admitted, computing in ((100.0, 100.006), (107.0, 114.0), (107.0, 107.006)):
        made.ended(fetched(admitted + 0.003, 0.002), RequestStats(admitted=admitted, computing=computing))
    bringing, reason = made.begin(1, asking())
    assert (bringing.blocks, reason) == (0, "not brought: 4 blocks in 8.1 ms against 6.4 ms")
    assert made.begin(1, asking(mode="decode"))[0].blocks == 4, "a hand-off is a fetch in any case"


def test_what_a_computed_prompt_waits_for_too_is_not_charged_to_bringing() -> None:
    made = reuse(Space(4, 0), Holds(*["dram"] * 4, ms=1.0), prefill_token_s=100e-6)
    for _ in range(3):
        made.ended(fetched(50.0, 0.002), RequestStats(submitted=0.0, admitted=49.999, computing=50.003))
    assert made.begin(1, asking())[1] == "brings 4 blocks, the last from dram, in 6.0 ms instead of 6.4 ms"


def test_where_an_engine_does_not_tell_its_steps_a_work_waits_from_its_submission() -> None:
    made = reuse(Space(4, 0), Holds(*["dram"] * 4, ms=1.0), prefill_token_s=100e-6)
    made.ended(fetched(100.002, 0.9), RequestStats(submitted=100.0, admitted=101.0))
    assert made.begin(1, asking())[1] == "brings 4 blocks, the last from dram, in 6.0 ms instead of 6.4 ms"


def test_a_fetch_that_failed_says_nothing_of_what_fetches_hold_up() -> None:
    made = reuse(Space(4, 0), Holds(*["dram"] * 4, ms=1.0), prefill_token_s=100e-6)
    made.ended(fetched(100.0, 0.002, "absent"), RequestStats(admitted=100.0, computing=109.0))
    made.ended(None, RequestStats(admitted=100.0, computing=100.0))
    assert made.begin(1, asking())[0].blocks == 4
