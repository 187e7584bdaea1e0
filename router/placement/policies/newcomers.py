"""Keeps a worker that has just joined from getting more prompts than its queue can carry. Pure.

It has no streams yet, so a prompt there seems to disturb no stream, while every other worker costs more: its many
streams lose time, and are close to their bound. But the prompts that wait at a newcomer are the streams of the next
seconds. Priced by its present load, it would get nearly all prompts for as long as waiting there costs less than
disturbing a full batch elsewhere. So until its batch is like the others', no prompt waits longer at a newcomer than
prompts do elsewhere on average.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from router.placement.scorers.candidate import Priced
from router.placement.view import WorkerView

_ANSWERS: Final = 8.0
"""A worker is new for as long as so many answers take one after the other, without prompts beside them. With prompts
these are about three, after which a batch has filled up."""
WHY: Final = "a worker that would cost less has just come, and prompts wait longer there than elsewhere"


def in_turn(priced: Sequence[Priced], now: float) -> Sequence[Priced]:
    """`priced`, of which the first is the best, without newcomers where the prompt would wait longer than it would on
    average at the others that may compute it themselves: these come last. Fleets without newcomers, or of newcomers
    alone, are as before."""
    first = priced[0]
    since = now - 1e-3 * _ANSWERS * first.answer_ms
    if first.prefill is not None or not _came_after(first.decode, since):
        return priced
    queues_ms = [each.queue_ms for each in priced if each.prefill is None and not _came_after(each.decode, since)]
    if not queues_ms or first.queue_ms <= (usual_ms := fmean(queues_ms)):
        return priced
    places: tuple[list[Priced], list[Priced]] = [], []
    for each in priced:
        waits = each.prefill is None and each.queue_ms > usual_ms and _came_after(each.decode, since)
        places[waits].append(each)
    return [*places[False], *places[True]]


def _came_after(worker: WorkerView, since: float) -> bool:
    return worker.ready_at is not None and worker.ready_at > since
