"""Placements that are what they were when it was written down: worker, costs, reasons, sources, all candidates.

Fleets play traffic with an objective, through joins, losses, slow workers and reports that come late, so that all
that a router learns stands behind what it decides; and single requests of every kind are put before workers of every
kind. A request that goes elsewhere, is priced otherwise or is explained otherwise is seen here, by its number.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.fleet.fleet import FleetSettings
from benchmarks.fleet.scenarios.generated import Traffic, fleet, traffic
from kv_transfer.index.protocol import Held
from router.placement import CostModel, Placement, PlacementRequest, Unplaced, WorkerView, make_policy
from router.placement.decision import Needs, Objective, Work
from router.placement.pairs import Pairs, PairView
from router.placement.policies import POLICIES
from router.placement.policies.prefix_aware import PrefixAware
from router.settings import CostPriors, PlacementSettings
from tandem.core.entropy import SeededEntropy, below, unit
from tandem.core.messages import Load, StepFit, StepSums, TierCost
from tandem.core.slo import Slo
from tandem.core.spans import Attribute, Span
from tests.unit.router.placement.test_router_placement import ask, load, view
from tests.worlds.golden import assert_as_written, digest
from tests.worlds.held_cells import CHATS, play, requests_of, router, workers

WIDE = replace(
    fleet(("prefill",) * 8 + ("decode",) * 7, 0.05),
    joins=((2.0, 0), (3.0, 1), (4.0, 14)),
    paces=((1.0, 3, 4.0), (4.0, 3, 1.0)),
)
SPLIT = fleet(("prefill",) * 2 + ("decode",) * 3, 0.05)
PLAYS: dict[str, tuple[FleetSettings, Traffic, float, Slo | None]] = {
    "unified": (workers(8), CHATS, 12.0, Slo(2.0, 0.05)),
    "split": (SPLIT, CHATS, 6.0, Slo(1.0, 0.04)),
    "split without objective": (SPLIT, traffic("bimodal"), 5.0, None),
    "wide": (WIDE, CHATS, 12.0, Slo(1.0, 0.04)),
    "wide without objective": (workers(16, joins=((2.0, 3), (3.0, 4))), traffic("bimodal"), 26.0, None),
    "busy": (workers(7, paces=((1.0, 2, 2.5),)), CHATS, 22.0, Slo(0.8, 0.03)),
    "joins and losses": (
        workers(6, joins=((3.0, 5),), losses=((5.0, 0),), paces=((2.0, 1, 3.0),)),
        CHATS,
        10.0,
        Slo(2.0, 0.05),
    ),
}
PLAYED_S = 8.0
ROOTS = (b"r" * 16, b"s" * 16)
ROUNDS = 6
ASKED = 10


def spelled(found: Placement | Unplaced) -> str:
    """Everything that a decision says."""
    if isinstance(found, Unplaced):
        return f"{found.code}: {found.reasons}"
    costs = " | ".join(
        f"{candidate} {' '.join(f'{getattr(cost, name):.6g}' for name in cost.__struct_fields__)}"
        for candidate, cost in found.costs
    )
    return (
        f"{found.mode} {found.prefill}→{found.decode}, {found.prefill_tokens} of {found.cached_tokens}, "
        f"{found.path}, {found.reasons}, {found.sources}, {costs}"
    )


@pytest.mark.parametrize("name", PLAYS)
def test_a_fleet_is_used_as_it_was_when_it_was_written_down(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet_settings, chosen, rate, slo = PLAYS[name]
    story, choose = [], PrefixAware.choose

    def told(self: PrefixAware, request: PlacementRequest, *rest: object) -> Placement | Unplaced:
        found = choose(self, request, *rest)  # type: ignore[arg-type]
        story.append(f"{rest[-1]:.6f} {spelled(found)}")
        return found

    monkeypatch.setattr(PrefixAware, "choose", told)
    ours = router() if slo is None else replace(router(), slo=slo)
    play(fleet_settings, requests_of(chosen, 3, rate, PLAYED_S), replace(ours, figures_late_s=0.02))
    parts = {f"{at}: {digest(story[at : at + 10])}": story[at : at + 10] for at in range(0, len(story), 10)}
    assert_as_written(f"placements {name}".replace(" ", "_"), list(parts), parts)


def drawn_load(entropy: SeededEntropy) -> Load | None:
    if below(entropy, 5) == 0:
        return None
    sums = StepSums(*(float(below(entropy, 400)) for _ in StepSums.__struct_fields__))
    fit = StepFit(0.008, 1e-4, 1e-8, 1e-3, 5e-5, 1e-9, sums, sums) if below(entropy, 3) == 0 else None
    return load(
        running=below(entropy, 40),
        waiting=below(entropy, 5) // 3,
        queued_prompt_tokens=(0, below(entropy, 4000))[below(entropy, 2)],
        blocks_free=below(entropy, 1000),
        blocks_exported=below(entropy, 60),
        step_s=unit(entropy) * 0.03,
        prefill_tokens_per_s=unit(entropy) * 20_000,
        prefill_token_s=(0.0, unit(entropy) * 1e-4)[below(entropy, 2)],
        prefill_position_s=(0.0, unit(entropy) * 1e-8)[below(entropy, 2)],
        longest_step_s=(0.0, unit(entropy) * 0.1)[below(entropy, 2)],
        overdue_s=float(below(entropy, 12) == 0),
        fit=fit,
    )


def drawn_worker(entropy: SeededEntropy, number: int, roles: Sequence[str]) -> WorkerView:
    pairing = below(entropy, 6) // 5
    tiers = (TierCost("dram", 500, 8e9, 1e-4), TierCost("nvme", 5000, 1e9, 5e-4))[: below(entropy, 3)]
    return view(
        f"w{number}",
        roles[below(entropy, len(roles))],
        pairing=pairing,
        root=ROOTS[pairing],
        revision=f"r{pairing}",
        draining=below(entropy, 15) == 0,
        ready=below(entropy, 15) > 0,
        tiers=tiers,
        blocks=(1000, 60)[below(entropy, 8) == 0],
        features=("itl_target",) if below(entropy, 2) else ("grammar",),
        adapters={"a": "h1"} if below(entropy, 2) else {},
        hardware=("", "h100")[below(entropy, 2)],
        export_blocks=(0, 200)[below(entropy, 2)],
        sequences_max=(256, 8)[below(entropy, 6) == 0],
        ready_at=(None, 90.0, 99.5)[below(entropy, 3)],
        takes_prompts=below(entropy, 4) == 0,
        load=drawn_load(entropy),
    )


def drawn_ask(entropy: SeededEntropy, number: int, names: Sequence[str]) -> PlacementRequest:
    tokens = 1 + below(entropy, (40, 600, 4000)[below(entropy, 3)])
    held = {}
    for name in names:
        if below(entropy, 3) == 0:
            total = below(entropy, tokens // 16 + 1)
            hbm = below(entropy, total + 1)
            dram = below(entropy, total - hbm + 1)
            known_by = ("events", "redis", "approximate")[below(entropy, 3)]
            held[name] = Held(total, hbm, dram, total - hbm - dram, known_by)
    needs = (None, None, None, Needs(("grammar",)), Needs((), "a", "h1"), Needs((), "b", "h2"))[below(entropy, 6)]
    first = below(entropy, 3) * 1000
    blocks = [block.to_bytes(16, "little") for block in range(first, first + tokens // 16)]
    return ask(
        tokens,
        sequences=1 + below(entropy, 4) // 3,
        max_tokens=1 + below(entropy, 500),
        held=held,
        excluded=tuple((name, 1) for name in names if below(entropy, 12) == 0),
        local_only=below(entropy, 10) == 0,
        names=dict.fromkeys(ROOTS, blocks) if below(entropy, 3) else {},
        prompt_cache_key=("", "k")[below(entropy, 2)],
        request_id=f"q{number}",
        needs=needs,
        revision=("", "", "", "r0", "r2")[below(entropy, 5)],
        objective=(None, Objective(200.0, 30.0), Objective(30.0, None), Objective(None, 12.0))[below(entropy, 4)],
        age_ms=(0.0, 0.5, unit(entropy) * 250)[below(entropy, 3)],
        weight=(1.0, 4.0)[below(entropy, 2)],
    )


def drawn_pairs(entropy: SeededEntropy, names: Sequence[str]) -> Pairs | None:
    if below(entropy, 2):
        return None
    pairs = [(one, other) for one in names for other in names if below(entropy, 4)]
    return {each: PairView(below(entropy, 4) > 0, "drawn", ("", "tcp")[below(entropy, 2)]) for each in pairs}


def span(entropy: SeededEntropy, name: str) -> Span:
    """What a worker reports of a prompt or of a pull."""
    figures: dict[str, Attribute] = {"tokens_computed": below(entropy, 2000), "tokens_reused": below(entropy, 900)}
    if below(entropy, 2):
        figures["chunks"] = 1 + below(entropy, 3)
    if name == "kv.pull":
        kind = ("peer", "store", "dram", "nvme")[below(entropy, 4)]
        figures = {"kind": kind, "bytes": below(entropy, 1 << 26), "gb_per_s": unit(entropy) * 5}
    return Span(
        "0" * 32, "1" * 16, "2" * 16, name, "prefill", 0.0, (0.0, unit(entropy) * 0.4)[below(entropy, 5) > 0], figures
    )


def learn(entropy: SeededEntropy, costs: CostModel, views: Sequence[WorkerView]) -> None:
    for each in views:
        if each.load is not None:
            costs.observe_load(each.worker_id, each.load, below(entropy, 20_000), each.kind)
        for _ in range(below(entropy, 4)):
            kinds = ("prefill", "prefill", "kv.pull")
            spans = [span(entropy, kinds[below(entropy, 3)]) for _ in range(1 + below(entropy, 2))]
            costs.observe_spans(each.worker_id, spans, alone=below(entropy, 2) == 0)
    for _ in range(below(entropy, 30)):
        costs.observe_first("demo", unit(entropy) * 100, unit(entropy) * 150)
        costs.observe_answer(1 + below(entropy, 500), float(below(entropy, 300)))
    if below(entropy, 4) == 0:
        costs.forget(views[below(entropy, len(views))].worker_id)


def lived(seed: int, policy_name: str) -> list[str]:
    """A policy's life over workers that never were together."""
    entropy = SeededEntropy(seed, "placements")
    roles = (("unified",), ("prefill", "decode"), ("prefill", "decode", "unified"))[below(entropy, 3)]
    views = [drawn_worker(entropy, number, roles) for number in range(2 + below(entropy, 9))]
    names, priors = (
        [each.worker_id for each in views],
        CostPriors(transfer_bytes_per_s=(12.5e9, 1e8)[below(entropy, 2)]),
    )
    settings = PlacementSettings(
        policy=policy_name,
        prefer=("auto", "auto", "disaggregated", "local")[below(entropy, 4)],
        fetch=below(entropy, 4) > 0,
        candidates_max=(5, 2)[below(entropy, 2)],
        hash_tokens=64,
        sequences_per_worker_max=(4096, 12)[below(entropy, 4) == 0],
    )
    policy, costs, now, story = make_policy(settings, entropy.fork("policy")), CostModel(priors), 100.0, []
    running: list[tuple[PlacementRequest, Placement]] = []
    for turn in range(ROUNDS):
        learn(entropy, costs, views)
        pairs = drawn_pairs(entropy, names)
        for number in range(ASKED):
            request = drawn_ask(entropy, turn * ASKED + number, names)
            found = policy.choose(request, views, costs, settings, pairs, now)
            story.append(f"{now:.3f} {spelled(found)}")
            now += unit(entropy) * (0.2, 1.0)[below(entropy, 2)]
            if isinstance(found, Placement):
                policy.placed(request, found, now)
                running.append((request, found))
                views[names.index(found.decode)].submitted(now, Work(1, found.prefill_tokens, 5.0, 100))
        while running and below(entropy, 4):
            request, found = running.pop(below(entropy, len(running)))
            policy.ended(request, found, below(entropy, 80), now)
            views[names.index(found.decode)].released(Work(1, found.prefill_tokens, 5.0, 100))
        for each in views:
            if (figures := drawn_load(entropy)) is not None:
                each.loaded(figures, now, 0.15)
        if below(entropy, 3) == 0:
            policy.gone(names[below(entropy, len(names))])
    return story


@pytest.mark.parametrize("name", POLICIES)
def test_requests_are_placed_as_they_were_when_it_was_written_down(name: str) -> None:
    stories = {}
    for seed in range(30 if name == "prefix_aware" else 4):
        story = lived(seed, name)
        stories[f"{seed}: {digest(story)}"] = story
    assert_as_written(f"asked_{name}", list(stories), stories)
