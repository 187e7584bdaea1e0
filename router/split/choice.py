"""The options that a planner of a split chooses between, the workers it chooses, and how it explains the choice.
Pure."""

from collections.abc import Sequence
from math import ceil

from router.split.values import Outlook, SplitOption, WorkerStatus


def held_at_unified(standings: Sequence[WorkerStatus]) -> str | None:
    """Why all workers have to do both; None where there is a choice."""
    barred = next((each for each in standings if each.barred), None)
    if barred is not None:
        return f"every worker takes prompts and decodes: {barred.worker_id} {barred.barred}"
    fixed = next((each for each in standings if not each.itl_target), None)
    if fixed is not None:
        return f"every worker takes prompts and decodes: what steps of {fixed.worker_id} may take cannot be told"
    if len(standings) < 2:
        return "every worker takes prompts and decodes: there is one alone" if standings else "there is no worker"
    return None


def tunable(standings: Sequence[WorkerStatus]) -> bool:
    """Whether there is at least one worker, and each of them can be told how long its steps may take."""
    return bool(standings) and all(each.itl_target for each in standings)


def bound_by_memory(standings: Sequence[WorkerStatus]) -> int:
    """The number of workers that may take prompts for others, so that the rest can hold what is decoded."""
    held = sum(each.attended_tokens for each in standings)
    each = min(standing.blocks * standing.block_tokens for standing in standings)
    needed = max(1, ceil(held / (0.9 * each))) if each else len(standings)
    return max(0, len(standings) - needed)


def choose_prefill_workers(
    prefills: int, taking: frozenset[str], standings: Sequence[WorkerStatus]
) -> frozenset[str]:
    """The workers that are to take prompts for others, as few of them new as possible. Those that begin have the
    fewest streams; those that stop have the fewest prompts waiting."""
    inside = [each for each in standings if each.worker_id in taking]
    outside = [each for each in standings if each.worker_id not in taking]
    if prefills <= len(inside):
        inside.sort(key=lambda each: (-each.queued_prompt_tokens, each.worker_id))
        return frozenset(each.worker_id for each in inside[:prefills])
    outside.sort(key=lambda each: (each.running, each.attended_tokens, each.worker_id))
    return taking | {each.worker_id for each in outside[: prefills - len(inside)]}


def same_side(before: SplitOption, best: SplitOption, here: SplitOption) -> bool:
    """Whether two looks point the same way from here."""
    first, second = before.prefills - here.prefills, best.prefills - here.prefills
    return first * second > 0 or (first == second == 0 and before.itl_s == best.itl_s)


def name(way: SplitOption, workers: int) -> str:
    """An option in words: 3 of 8 take prompts, or 8 unified; and the bound on steps."""
    bound = "" if way.itl_s is None else f", steps up to {way.itl_s * 1e3:.3g} ms"
    split = f"{way.prefills} of {workers} take prompts" if way.prefills else f"{workers} unified"
    return split + bound


def step_towards(goal: SplitOption, here: SplitOption, ordered: Sequence[Outlook], most: int) -> SplitOption:
    """A way at most `most` workers nearer to a `goal` that is further off: the best on that side of those that were
    looked at. `ordered` has the best first."""
    side = 1 if goal.prefills > here.prefills else -1
    near = [each.way for each in ordered if 0 < side * (each.way.prefills - here.prefills) <= most]
    return near[0] if near else SplitOption(here.prefills + side * most, goal.itl_s)


def told(here: Outlook, ordered: Sequence[Outlook], workers: int) -> str:
    """The compared options in words: shares of requests in the objective as the fleet stands, and about the load that
    is just carried."""

    def shares(each: Outlook) -> str:
        return f"{each.attainment:.0%} in the objective ({each.carried:.0%} about the most it carries)"

    others = [each for each in ordered if each.way != here.way][:2]
    compared = " and ".join(f"{name(each.way, workers)} {shares(each)}" for each in others)
    beside = f", {compared}" if compared else ""
    return f"{name(here.way, workers)} promises {shares(here)}{beside}"
