"""Rollouts that go the way they went when it was written down: each step's pods, traffic, verdict, clock and reasons.

The properties beside this say what no rollout may do. Which of the ways that remain is taken is promised, too: a user
who upgrades the operator in the middle of a rollout sees the same pods started, in the same order, and the same
sentences.
"""

from collections.abc import Mapping

import pytest

from control_plane.rollout import (
    Failure,
    Health,
    PoolPods,
    PoolTarget,
    Progress,
    RevisionObserved,
    RolloutPlan,
    RolloutSpec,
    RolloutState,
    step,
)
from tandem.core.entropy import SeededEntropy, below
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.rollout_world import NEVER_READY, REFUSED, SLOW, WRONG, RolloutWorld

NAMES = ("one", "two", "three", NEVER_READY, WRONG, REFUSED, SLOW)
POOLS = (("unified",), ("prefill", "decode"), ("a", "b", "c"))
GATES = ("not_required", "unknown", "passed", "failed")
KINDS = ("gate", "deadline", "errors", "slo")
TURNS = 30


def line(now: float, plan: RolloutPlan) -> str:
    """Everything that a step says."""
    pods = " ".join(f"{name}/{pool}={count}" for (pool, name), count in sorted(plan.replicas.items()))
    weights = " ".join(f"{name}:{weight}%" for name, weight in sorted(plan.weights.items()))
    state, said = plan.state, plan.verdict
    flags = f"{'done' if said.done else ''}{'stalled' if said.stalled else ''}"
    after = "never" if plan.requeue_after_s is None else f"in {plan.requeue_after_s:g} s"
    return (
        f"{now:g} s: {pods}; {weights}; {said.reason}: {said.message} {flags}; stable {state.stable}, "
        f"{state.failure}, {state.progress}; retired {plan.retired}; again {after}"
    )


def drawn_pools(entropy: SeededEntropy, most: int) -> tuple[PoolTarget, ...]:
    names = POOLS[below(entropy, len(POOLS))]
    return tuple(PoolTarget(name, below(entropy, most), below(entropy, 3), below(entropy, 3)) for name in names)


def drawn_spec(entropy: SeededEntropy, most: int) -> RolloutSpec:
    return RolloutSpec(
        NAMES[below(entropy, len(NAMES))],
        drawn_pools(entropy, most),
        weight=(100, 100, below(entropy, 101))[below(entropy, 3)],
        paused=below(entropy, 6) == 0,
        auto_rollback=below(entropy, 4) > 0,
        progress_deadline_s=float(60 + below(entropy, 300)),
        gated=below(entropy, 3) == 0,
        error_budget=(0.01, 0.2)[below(entropy, 2)],
    )


def happen(world: RolloutWorld, entropy: SeededEntropy) -> None:
    """An edit, a death, a gate's answer, a scaler, or nothing but time."""
    match below(entropy, 9):
        case 0:
            pools = world.spec.pools
            spec = drawn_spec(entropy, 9)
            world.spec = RolloutSpec(
                spec.revision, pools, spec.weight, spec.paused, spec.auto_rollback, 300.0, spec.gated
            )
        case 1:
            world.scale(below(entropy, 3), below(entropy, 10))
        case 2:
            world.kill(below(entropy, 20))
        case 3:
            world.verify()
        case _:
            pass
    world.now += float(below(entropy, 45))


def lived(seed: int) -> list[str]:
    """A service's life, with now and then only some of a plan applied."""
    entropy = SeededEntropy(seed, "rollout")
    world, story = RolloutWorld(drawn_spec(entropy, 9)), []
    for _ in range(TURNS):
        happen(world, entropy)
        plan = world.decide()
        story.append(line(world.now, plan))
        world.apply(plan, below(entropy, 1 << 12) if below(entropy, 5) == 0 else None)
    return story


def drawn_step(seed: int) -> list[str]:
    """One step from a state that may never be: what an operator finds that has lost its own."""
    entropy = SeededEntropy(seed, "step")
    spec, names = drawn_spec(entropy, 8), NAMES[:4]
    observed: dict[str, RevisionObserved] = {}
    for name in names[: below(entropy, 5)]:
        requests = (0, 49, 50, 400)[below(entropy, 4)]
        pods: Mapping[str, PoolPods] = {
            pool.name: PoolPods(below(entropy, 8), below(entropy, 8)) for pool in spec.pools if below(entropy, 5)
        }
        health = Health(requests, below(entropy, requests // 6 + 1), below(entropy, requests // 6 + 1))
        gate = GATES[below(entropy, 4)]
        observed[name] = (
            RevisionObserved(pods, gate, health)  # type: ignore[arg-type]
            if below(entropy, 3)
            else RevisionObserved(pods)
        )
    stable = names[below(entropy, 4)] if below(entropy, 8) else None
    kind = KINDS[below(entropy, 4)]
    failed = Failure(names[below(entropy, 4)], kind, "it did") if below(entropy, 3) == 0 else None  # type: ignore[arg-type]
    told = {name: (1, 100 // len(observed))[below(entropy, 2)] for name in observed} if below(entropy, 3) else {}
    first = step(RolloutState(stable, told, failed), spec, observed, 1000.0)
    aim, wanted = (first.state.progress or Progress("", "", 0, 0.0)).aim, "unified=3"
    since = 1000.0 - below(entropy, 600)
    last = Progress(aim if below(entropy, 3) else "other", wanted, below(entropy, 6), since)
    again = step(RolloutState(stable, told, failed, last if below(entropy, 4) else None), spec, observed, 1000.0)
    return [spelled(spec), spelled(observed), line(1000.0, first), line(1000.0, again)]


def spelled(drawn: object) -> str:
    """What was drawn, without the fields that nothing is drawn for."""
    return repr(drawn).replace(", in_place=True, in_place_after_s=60.0", "").replace(", no_room={}", "")


@pytest.mark.parametrize(("name", "seeds", "story_of"), [("lives", 60, lived), ("steps", 400, drawn_step)])
def test_rollouts_go_the_way_they_went_when_it_was_written_down(name: str, seeds: int, story_of) -> None:  # type: ignore[no-untyped-def]
    stories = {}
    for seed in range(seeds):
        story = story_of(seed)
        verdicts = dict.fromkeys(each.split("; ")[2].split(":")[0] for each in story if " s: " in each[:20])
        stories[f"{seed}: {digest(story)} {', '.join(verdicts)}"] = story
    assert_as_written(f"rollout_{name}", list(stories), stories)
