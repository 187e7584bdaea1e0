"""The whole price of a candidate: one worker that does everything, or prefill and decode apart. Pure."""

from collections.abc import Iterable

import msgspec

from router.placement.decision import Breakdown
from router.placement.scorers.answer import answer_price
from router.placement.scorers.ask import Ask
from router.placement.scorers.interference import interference_ms
from router.placement.scorers.prompt import Way, prompt_price
from router.placement.view import WorkerView


class Priced(msgspec.Struct, gc=False):
    """A candidate with its cost. `queue_ms` and `way` are of the worker that computes the prompt; `others_ms` is what
    others lose by the prompt, `answer_others_ms` what they lose by the answer."""

    total_ms: float
    queue_ms: float
    way: Way
    transfer_ms: float
    answer_ms: float
    answer_others_ms: float
    others_ms: float
    decode: WorkerView
    prefill: WorkerView | None

    def breakdown(self) -> Breakdown:
        """The parts of the total."""
        way, lost_ms = self.way, self.others_ms + self.answer_others_ms
        return Breakdown(self.queue_ms, way.prefill_ms, self.transfer_ms, self.answer_ms, lost_ms, way.fetch_ms)


class PrefillPrice(msgspec.Struct, gc=False):
    """The prompt on a prefill worker, which is the same for every decode worker; `total_ms` until it is there, and
    what others lose by it."""

    total_ms: float
    queue_ms: float
    way: Way
    others_ms: float
    worker: WorkerView


def price_local(ask: Ask, worker: WorkerView) -> Priced:
    """`worker` computes the prompt itself."""
    step = ask.step_terms(worker.worker_id)
    queue_ms, way = prompt_price(ask, worker, step)
    answer_ms, answer_others_ms = answer_price(ask, worker, step)
    others_ms = interference_ms(ask, worker, queue_ms, way)
    total_ms = queue_ms + way.fetch_ms + way.prefill_ms + answer_ms + answer_others_ms + others_ms
    return Priced(total_ms, queue_ms, way, 0.0, answer_ms, answer_others_ms, others_ms, worker, None)


def prefill_price(ask: Ask, worker: WorkerView) -> PrefillPrice:
    """The prompt on a prefill worker."""
    queue_ms, way = prompt_price(ask, worker, ask.step_terms(worker.worker_id))
    others_ms = interference_ms(ask, worker, queue_ms, way)
    return PrefillPrice(queue_ms + way.fetch_ms + way.prefill_ms + others_ms, queue_ms, way, others_ms, worker)


def price_pairs(ask: Ask, prefills: Iterable[PrefillPrice], local: Priced) -> list[Priced]:
    """Each of `prefills` computes, the worker of `local` generates. Blocks travel while the prompt is computed, but
    for the last ones."""
    worker = local.decode
    held = ask.held.get(worker.worker_id)
    there = held.hbm * worker.block_tokens if held is not None else 0
    moved_bytes = max(1, ask.request.prompt_tokens - there) * worker.block_bytes // worker.block_tokens
    whole_ms = ask.costs.transfer_ms(moved_bytes)
    overlap, setup_ms = ask.settings.transfer_overlap, ask.settings.transfer_setup_ms
    answer_ms, others_ms = local.answer_ms, local.answer_others_ms
    priced = []
    for prefill in prefills:
        queue_ms, way = prefill.queue_ms, prefill.way
        transfer_ms = setup_ms + max(0.0, whole_ms - overlap * way.prefill_ms)
        total_ms = prefill.total_ms + transfer_ms + answer_ms + others_ms
        lost_ms, by = prefill.others_ms, prefill.worker
        priced.append(Priced(total_ms, queue_ms, way, transfer_ms, answer_ms, others_ms, lost_ms, worker, by))
    return priced
