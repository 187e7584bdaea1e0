"""Clients that misuse a simulated platform: others are served all the same, and nobody gets what is another's."""

from collections import Counter
from dataclasses import replace

import pytest

from router.dispatch.dispatcher import Dispatcher
from router.generation import Resumed
from tandem.apps.simulation.abusers import MANNERS, TENANT, draw_abuse
from tandem.apps.simulation.checks import Violation
from tandem.apps.simulation.faults.drawing import FaultProfile
from tandem.apps.simulation.traffic import SimRequest, TrafficProfile, draw_traffic
from tandem.apps.simulation.world import Report, Script, WorldSettings, simulate
from tandem.core.entropy import SeededEntropy

TRAFFIC = TrafficProfile(requests=30, resumable_share=0.5, cancel_share=0.0)
CALM = WorldSettings(traffic=TRAFFIC, faults=FaultProfile(kills=0, corrupt_share=0.0))
STRUCK = replace(CALM, faults=FaultProfile(kills=2, corrupt_share=1.0))


def abused(world: WorldSettings, manner: str, seed: int) -> tuple[Report, list[str], Counter[str]]:
    """The report of a world with ten trains of one manner beside its clients, the ends of these, and of abusers."""
    honest = draw_traffic(world.traffic, seed)
    entropy = SeededEntropy(seed, manner)
    plain = draw_abuse(replace(world.traffic, abusers=10), seed, ())
    (way,) = [each for each in MANNERS if each.__name__ == manner]
    cleaned = [replace(each, cancel_after_s=None, timeout_s=None, stalls_after=0, priority=0, n=1) for each in plain]
    abuse = [way(each, entropy.fork(each.request_id), world.traffic, honest) for each in cleaned]
    report = simulate(world, seed, Script((*honest, *abuse), ()))
    ours = {each.request_id for each in honest}
    ends = [outcome.end for outcome in report.outcomes if outcome.request_id in ours]
    theirs = Counter(outcome.error or outcome.end for outcome in report.outcomes if outcome.request_id not in ours)
    return report, ends, theirs


@pytest.mark.parametrize(
    ("manner", "most"),
    [
        ("_hangs_up", "cancelled"),
        ("_has_no_time", "deadline_exceeded"),
        ("_never_reads", "slow_client"),
        ("_wants_all", "cancelled"),
        ("_steals", "not_found"),
    ],
)
def test_each_manner_ends_as_it_has_to_and_others_are_served(manner: str, most: str) -> None:
    _, honest, theirs = abused(CALM, manner, 3)
    assert len(honest) == TRAFFIC.requests
    assert set(honest) <= {"done", "disconnected"}, "a client that never comes back loses its own answer, nobody else"
    assert honest.count("done") >= 25
    assert theirs.most_common(1)[0][0] == most
    assert theirs[most] >= 20


def test_with_faults_beside_them() -> None:
    world = replace(STRUCK, traffic=replace(TRAFFIC, abusers=5))
    for seed in range(2):
        report = simulate(world, seed)
        honest = Counter(each.end for each in report.outcomes if not each.request_id.startswith("abuse"))
        assert honest["done"] >= 25
        assert sum(honest.values()) == TRAFFIC.requests
        assert len(report.outcomes) >= TRAFFIC.requests + 20
        assert "abusers" in report.features


def test_an_answer_that_is_given_to_another_tenant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dispatcher.resume

    async def any_tenant(self: Dispatcher, request_id: str, tenant: str) -> Resumed:
        return await real(self, request_id, "tenant")

    monkeypatch.setattr(Dispatcher, "resume", any_tenant)
    with pytest.raises(Violation, match=r"^abuse-.* wrong tokens"):
        abused(CALM, "_steals", 3)


def test_abusers_are_a_tenant_and_a_train_each() -> None:
    honest = draw_traffic(TRAFFIC, 5)
    profile = replace(TRAFFIC, abusers=3)
    drawn = draw_abuse(profile, 5, honest)
    assert draw_abuse(profile, 5, honest) == drawn
    assert draw_abuse(TRAFFIC, 5, honest) == ()
    assert {each.tenant for each in drawn} == {TENANT} != {each.tenant for each in honest}
    trains = Counter(each.request_id.rsplit("-", 1)[0] for each in drawn)
    assert set(trains) == {"abuse-0", "abuse-1", "abuse-2"}
    assert all(4 <= count <= 12 for count in trains.values())
    assert len({each.request_id for each in drawn}) == len(drawn)


def test_every_manner_is_drawn() -> None:
    def signs(request: SimRequest) -> str:
        kinds = {
            "steals": bool(request.steals),
            "never reads": request.stalls_after > 0,
            "no time": request.timeout_s is not None,
            "wants all": request.n > 1,
            "hangs up": request.cancel_after_s is not None and request.n == 1,
        }
        return ", ".join(kind for kind, so in kinds.items() if so)

    found = Counter(
        signs(request)
        for seed in range(40)
        for request in draw_abuse(replace(TRAFFIC, abusers=2), seed, draw_traffic(TRAFFIC, seed))
    )
    assert set(found) == {"steals", "never reads", "no time", "wants all", "hangs up"}
    assert min(found.values()) >= 40
