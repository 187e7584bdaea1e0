"""The whole price of a candidate: one worker that does everything, or prefill and decode apart. Pure."""

from collections.abc import Iterable

import msgspec

from router.placement.decision import Breakdown, Candidate
from router.placement.scorers.answer import answer_price
from router.placement.scorers.context import PromptPlan, ScoringContext
from router.placement.scorers.interference import interference_ms
from router.placement.scorers.prompt import prompt_price
from router.placement.scorers.stakes import beside_stake, prompt_stake, stream_stake
from router.placement.scorers.times import times_of
from router.placement.view import WorkerView


class Priced(msgspec.Struct, gc=False):
    """A candidate with its cost. `queue_ms` and `way` are of the worker that computes the prompt; `others_ms` is what
    others lose by the prompt, `answer_others_ms` what they lose by the answer."""

    total_ms: float
    queue_ms: float
    way: PromptPlan
    transfer_ms: float
    answer_ms: float
    answer_others_ms: float
    others_ms: float
    stakes_ms: float
    answer_stakes_ms: float
    decode: WorkerView
    prefill: WorkerView | None

    @property
    def misses_ms(self) -> float:
        """Cost in milliseconds of the risked misses of objectives, the request's own and others'."""
        return self.stakes_ms + self.answer_stakes_ms

    @property
    def first_ms(self) -> float:
        """Milliseconds until the first token."""
        return self.queue_ms + self.way.fetch_ms + self.way.prefill_ms

    @property
    def name(self) -> str:
        """The candidate's name, as explanations show it."""
        return str(self.candidate())

    def candidate(self) -> Candidate:
        """The candidate by its worker ids."""
        return Candidate(self.decode.worker_id, "" if self.prefill is None else self.prefill.worker_id)

    def breakdown(self) -> Breakdown:
        """The parts of the total."""
        way = self.way
        return Breakdown(
            self.queue_ms,
            way.prefill_ms,
            self.transfer_ms,
            self.answer_ms,
            self.others_ms + self.answer_others_ms,
            way.fetch_ms,
            self.stakes_ms + self.answer_stakes_ms,
        )


class PrefillPrice(msgspec.Struct, gc=False):
    """The prompt on a prefill worker, which is the same for every decode worker; `total_ms` until it is there, and
    what others lose by it."""

    total_ms: float
    queue_ms: float
    way: PromptPlan
    others_ms: float
    stakes_ms: float
    worker: WorkerView


def price_local(ask: ScoringContext, worker: WorkerView) -> Priced:
    """`worker` computes the prompt itself."""
    times = times_of(ask, worker)
    queue_ms, way = prompt_price(ask, worker, times)
    answer_ms, answer_others_ms = answer_price(ask, worker, times.step)
    others_ms = interference_ms(ask, worker, queue_ms, way)
    prefill_ms, first_ms = way.prefill_ms, queue_ms + way.fetch_ms + way.prefill_ms
    total_ms = first_ms + answer_ms + answer_others_ms + others_ms
    stakes_ms, answer_stakes_ms = 0.0, 0.0
    if (stakes := ask.stakes) is not None:
        stakes_ms = prompt_stake(stakes, ask.arrivals_per_ms, queue_ms, first_ms, prefill_ms)
        token_ms = times.streaming_ms
        stakes_ms += beside_stake(stakes, worker, token_ms, ask.answer_tokens, prefill_ms)
        _, sequence_ms, position_ms = times.step
        grown_ms = sequence_ms + position_ms * ask.request.prompt_tokens
        answer_stakes_ms = stream_stake(stakes, worker, token_ms, grown_ms)
        total_ms += stakes_ms + answer_stakes_ms
    return Priced(
        total_ms,
        queue_ms,
        way,
        0.0,
        answer_ms,
        answer_others_ms,
        others_ms,
        stakes_ms,
        answer_stakes_ms,
        worker,
        None,
    )


def prefill_price(ask: ScoringContext, worker: WorkerView) -> PrefillPrice:
    """The prompt on a prefill worker."""
    queue_ms, way = prompt_price(ask, worker, times_of(ask, worker))
    others_ms = interference_ms(ask, worker, queue_ms, way)
    first_ms, stakes_ms = queue_ms + way.fetch_ms + way.prefill_ms, 0.0
    if ask.stakes is not None:
        stakes_ms = prompt_stake(ask.stakes, ask.arrivals_per_ms, queue_ms, first_ms, way.prefill_ms)
    return PrefillPrice(first_ms + others_ms + stakes_ms, queue_ms, way, others_ms, stakes_ms, worker)


def price_pairs(ask: ScoringContext, prefills: Iterable[PrefillPrice], local: Priced) -> list[Priced]:
    """The prices of the pairs in which each of `prefills` computes the prompt and the worker of `local` generates.
    Blocks travel while the prompt is computed, except for the last ones."""
    worker = local.decode
    held = ask.held.get(worker.worker_id)
    there = held.hbm * worker.block_tokens if held is not None else 0
    moved_bytes = max(1, ask.request.prompt_tokens - there) * worker.block_bytes // worker.block_tokens
    whole_ms = ask.costs.transfer_ms(moved_bytes)
    overlap, setup_ms = ask.settings.transfer_overlap, ask.settings.transfer_setup_ms
    answer_ms, others_ms, missed_ms = local.answer_ms, local.answer_others_ms, local.answer_stakes_ms
    priced = []
    for prefill in prefills:
        queue_ms, way = prefill.queue_ms, prefill.way
        left_ms = whole_ms - overlap * way.prefill_ms
        transfer_ms = setup_ms + left_ms if left_ms > 0.0 else setup_ms
        total_ms = prefill.total_ms + transfer_ms + answer_ms + others_ms + missed_ms
        priced.append(
            Priced(
                total_ms,
                queue_ms,
                way,
                transfer_ms,
                answer_ms,
                others_ms,
                prefill.others_ms,
                prefill.stakes_ms,
                missed_ms,
                worker,
                prefill.worker,
            )
        )
    return priced
