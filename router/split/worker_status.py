"""The planner's view of workers: how they stand, and which can take part in a split. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from router.placement.pairs import Pairs
from router.placement.view import WorkerView
from router.split.values import WorkerStatus

ROLE: Final = "auto"


def of_role_auto(views: Iterable[WorkerView]) -> tuple[WorkerView, ...]:
    """The workers of role `auto`, whose part routers choose, as far as they take work. During a rollout these are the
    largest group that can exchange KV: a split is among workers that can."""
    found = [view for view in views if view.role == ROLE and view.ready and not view.draining]
    if not found:
        return ()
    counts = Counter(view.pairing for view in found)
    most = max(counts, key=lambda pairing: (counts[pairing], -pairing))
    return tuple(view for view in found if view.pairing == most)


def worker_statuses(
    views: Sequence[WorkerView],
    pairs: Pairs | None,
    barred: Mapping[str, str],
    carrying: frozenset[str],
    sequences_max: int,
) -> tuple[WorkerStatus, ...]:
    """The statuses of workers of role `auto`. `barred` gives the workers that exchange no KV, with the reason;
    `carrying` are the workers with a proved pair, where pairs have to be proved. No worker gets more than
    `sequences_max` sequences."""
    alone = len(views) == 1
    return tuple(
        WorkerStatus(
            worker_id=view.worker_id,
            prefill=view.takes_prompts,
            running=view.decoding,
            attended_tokens=view.attended_tokens,
            queued_prompt_tokens=view.queued_prompt_tokens,
            blocks=view.blocks,
            blocks_free=view.blocks_free,
            block_tokens=view.block_tokens,
            itl_target=view.steps_held,
            sequences_max=min(view.sequences_max, sequences_max),
            export_blocks=view.export_blocks,
            tier_blocks=sum(tier.blocks for tier in view.tiers),
            barred=_barred(view.worker_id, barred, None if pairs is None or alone else carrying),
        )
        for view in views
    )


def able(found: Sequence[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """The workers that a split is among: one that exchanges no KV, or is not proved yet, serves whole requests beside
    it. All of them where those that can take part are not the majority, so that the planner says why nothing is
    split."""
    can = tuple(each for each in found if not each.barred)
    return can if len(can) > 1 and 2 * len(can) > len(found) else tuple(found)


def left_out(found: Sequence[WorkerStatus]) -> str:
    """The workers that serve whole requests beside the split, and why, in words; empty where there are none."""
    among = {each.worker_id for each in able(found)}
    beside = [each for each in found if each.worker_id not in among]
    if not beside:
        return ""
    others = f" and {len(beside) - 1} others" if len(beside) > 1 else ""
    return f"{beside[0].worker_id}{others} (of {beside[0].worker_id}: {beside[0].barred})"


def _barred(worker_id: str, barred: Mapping[str, str], carrying: frozenset[str] | None) -> str:
    if worker_id in barred:
        return barred[worker_id]
    if carrying is not None and worker_id not in carrying:
        return "no pair with it has been proved to carry blocks, or none carries them now"
    return ""


def carrying(pairs: Pairs | None) -> frozenset[str]:
    """The workers of proved pairs."""
    if pairs is None:
        return frozenset()
    return frozenset(worker_id for key, pair in pairs.items() if pair.usable for worker_id in key)
