"""Decides which part of a prompt is brought from own tiers and other holders, by where it is and at what cost."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import inf
from typing import Final

from kv_transfer.fetch import KvLoadSpec
from kv_transfer.fetch_progress import FetchReport, OriginReport
from kv_transfer.tiers.protocol import Tiers
from tandem.core.clock import Clock
from tandem.core.messages import Load, Source, Submit
from tandem.engine.protocol import BlockSpace, RequestStats
from tandem.worker.fetch_policy import FetchDecision, FetchOption, choose_fetch
from tandem.worker.rates import Rates

_STRETCHES_MAX: Final = 16
"""Limit on the places considered as the end of what is fetched from tiers."""
_ELSEWHERE: Final = ("peer", "store")
_NOTHING: Final = KvLoadSpec()


class Reuse:
    """Decides which blocks to fetch for a request; owned by the `AttemptManager` of one worker. Without tiers and
    sources nothing is ever fetched."""

    def __init__(self, space: BlockSpace | None, tiers: Tiers | None, clock: Clock, how: str = "auto") -> None:
        self._space = space
        self._tiers = tiers
        self._clock = clock
        self._how = how
        self._rates = Rates()
        self._load: Load | None = None

    def heard(self, load: Load) -> None:
        """The engine's latest figures."""
        self._load = load

    def learn(self, report: FetchReport) -> None:
        """Learn from the fetch of a request that has ended."""
        now = self._clock.now()
        own = [brought for brought in report.brought if brought.origin not in _ELSEWHERE]
        for brought in report.brought:
            if brought.origin in _ELSEWHERE:
                self._rates.observe(brought.origin, brought.bytes, brought.seconds, now)
            elif len(own) == 1:  # Of tiers that were read at the same time nobody knows which one was waited for.
                self._rates.observe(brought.origin, brought.bytes, brought.seconds, now, self._guess(brought.origin))
        if report.handed_over and report.gb_per_s > 0:
            self._rates.observe("prefill", report.bytes, report.bytes / report.gb_per_s / 1e9, now)

    def ended(self, report: FetchReport | None, stats: RequestStats) -> None:
        """A work has ended, which waited for this fetch if for any."""
        if report is None or report.handed_over or not report.brought:
            return
        if all(brought.reason is None for brought in report.brought):
            self._rates.held_up(_around_s(report.brought, stats))

    def begin(self, work_id: int, submit: Submit) -> tuple[KvLoadSpec, str]:
        """Tell the engine which blocks of a request that has just been submitted are to be fetched first. Gives where
        they come from, and the reason."""
        space = self._space
        if space is None or submit.canary or self._how == "never" or (self._tiers is None and not submit.sources):
            return _NOTHING, ""
        prefix = space.prefix(work_id)
        if prefix is None or prefix.here == len(prefix.names):
            return _NOTHING, ""
        handed_over = submit.mode == "decode"
        otherwise = self._otherwise(space, handed_over=handed_over)
        # A hand-off is a fetch in any case; a work that could be computed at once is held up by one.
        around_s = 0.0 if handed_over else self._rates.around_s
        stretches = tuple(self._stretches(space, prefix.names, prefix.here, submit.sources, around_s))
        worth = choose_fetch(stretches, prefix.here, otherwise)
        if not worth.blocks:
            return _NOTHING, worth.reason
        space.bring(work_id, worth.blocks)
        return KvLoadSpec(worth.blocks, submit.sources, _patience_s(worth)), worth.reason

    def _stretches(
        self, space: BlockSpace, names: Sequence[bytes], here: int, sources: Sequence[Source], around_s: float
    ) -> Iterator[FetchOption]:
        """Own tiers as far as they reach, then the sources."""
        size, end, seconds = space.layout.block_bytes, here, around_s
        if self._tiers is not None:
            found = self._tiers.where(names[here:])
            for cut in _cuts(found):
                seconds = around_s + self._own_s(self._tiers, found[:cut], size)
                end = here + cut
                yield FetchOption(end, seconds, found[cut - 1])
        for source in sources:
            reach = min(source.blocks, len(names))
            if reach > end:
                expected_s = self._rates.expected_s(source.kind, (reach - end) * size, self._clock.now())
                # Whoever named the source expects that it pays; that is believed until it has been tried.
                seconds += expected_s or 0.0
                end = reach
                yield FetchOption(end, seconds, source.kind)

    def _own_s(self, tiers: Tiers, found: Sequence[str], size: int) -> float:
        """Seconds to fetch blocks from the worker's own tiers, which are read at the same time. Each tier estimates
        the cost of reading, behind what is being read; the learned figures give how long all of it takes, until the
        engine has the blocks."""
        now = self._clock.now()
        learned = (self._rates.expected_s(tier, count * size, now) for tier, count in Counter(found).items())
        return max(tiers.expected_s(found, size), *(seconds or 0.0 for seconds in learned))

    def _guess(self, tier: str) -> float | None:
        shapes = self._tiers.shapes if self._tiers is not None else ()
        return next((shape.bytes_per_s for shape in shapes if shape.name == tier), None)

    def _otherwise(self, space: BlockSpace, *, handed_over: bool) -> Callable[[int, int], float]:
        """The cost of blocks that are not brought: pulling them from prefill, or computing them.

        A prompt's last token is computed in any case. So the cost is what more tokens add to a step, not the rate of
        tokens per second over all steps: steps with one token left to compute say nothing about it.
        """
        if self._how == "always" or self._load is None:
            return _unknown
        rate = self._rates.bytes_per_s("prefill", self._clock.now()) if handed_over else None
        layout, load = space.layout, self._load
        if rate is not None:
            return lambda start, end: (end - start) * layout.block_bytes / rate
        size, token_s = layout.block_tokens, load.prefill_token_s
        if token_s <= 0 and load.prefill_tokens_per_s > 0:
            token_s = 1.0 / load.prefill_tokens_per_s
        if token_s <= 0:
            return _unknown
        position_s = load.prefill_position_s
        return lambda start, end: (end - start) * size * (token_s + position_s * (start + end) * size / 2)


def _around_s(brought: Sequence[OriginReport], stats: RequestStats) -> float:
    """Seconds for which a fetch held up its request beyond the time in which blocks came.

    A prompt without fetched blocks is computed by the step that is planned when the request is admitted. So what
    counts is the time from admission to the step that computed what was left; the wait for admission happens in any
    case. An engine that does not report its steps has the prompt from its submission on, and continues when all
    blocks are here.
    """
    if stats.computing is None or stats.admitted is None:
        return min(each.started for each in brought) - stats.submitted
    return stats.computing - stats.admitted - sum(each.seconds for each in brought)


def _unknown(start: int, end: int) -> float:
    return inf


def _patience_s(worth: FetchDecision) -> float:
    """Seconds that a fetch may take: the time that doing without it would take."""
    return worth.otherwise_s if worth.otherwise_s != inf else worth.seconds


def _cuts(found: Sequence[str]) -> list[int]:
    """The numbers of blocks after which the tier changes, the end included; limited in number where the tiers
    alternate often."""
    cuts, at = list[int](), 0
    for _, run in groupby(found):
        at += len(list(run))
        cuts.append(at)
    step = max(1, -(-len(cuts) // _STRETCHES_MAX))
    chosen = cuts[step - 1 :: step]
    return chosen if chosen[-1:] == cuts[-1:] else [*chosen, cuts[-1]]
