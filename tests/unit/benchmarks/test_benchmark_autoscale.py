"""The days on which scaling policies are compared: the world is right, and Tandem holds what others lose."""

import pytest

from benchmarks.autoscale import BURSTS, RAMP, TPOT_S, Coupled, Day, PolicyResult, PoolByPool, Uncoupled, play
from benchmarks.autoscale_world import LOOK_S, Hardware, ServiceRequest, World, arrivals
from tests.worlds.autoscale_cases import service

HARDWARE = Hardware()


def test_a_request_alone_takes_its_prompt_and_its_steps() -> None:
    world = World(HARDWARE, [ServiceRequest(0.5, 3000, 500)], 1, 1)
    while not world.idle:
        world.tick()
    assert world.served.ttft_s == [pytest.approx(0.5)]
    # It decodes from the second that its first token came in.
    assert world.served.tpot_s[0] == pytest.approx(0.0145, rel=0.1)


def test_sequences_share_workers_and_pods_take_their_time() -> None:
    requests = [ServiceRequest(0.0, 60, 2000) for _ in range(100)]
    world = World(HARDWARE, requests, 4, 1)
    world.scale(4, 2)
    while not world.idle and world.now < 500:
        world.tick()
    assert world.decode.ready == 1, "they had ended before the second was ready"
    assert max(world.served.tpot_s) == pytest.approx(0.014 + 100 * 0.0005, rel=0.05)
    assert world.load().finished_requests == 100
    for _ in range(240):
        world.tick()
    assert world.decode.ready == 2


def test_arrivals_are_as_many_and_as_long_as_they_should_be() -> None:
    requests = arrivals(lambda now: 2.0, 5000, 1)
    assert len(requests) == pytest.approx(10_000, rel=0.03)
    assert sum(request.prompt for request in requests) / len(requests) == pytest.approx(3000, rel=0.05)
    assert sum(request.answer for request in requests) / len(requests) == pytest.approx(500, rel=0.05)


def played(day: Day, policy: Coupled | Uncoupled | PoolByPool, seed: int) -> PolicyResult:
    return play(policy, day, arrivals(day.rate, day.seconds, seed), HARDWARE, (1, 1))


@pytest.mark.parametrize("seed", [2, 3])
def test_a_ramp_that_breaks_pool_by_pool_is_held(seed: int) -> None:
    ours, theirs = played(RAMP, Coupled(HARDWARE), seed), played(RAMP, PoolByPool(HARDWARE), seed)
    assert ours.held > 0.985
    assert ours.tpot_p99_s < TPOT_S < theirs.tpot_p99_s
    assert theirs.held < 0.9
    assert ours.worker_hours < 1.1 * theirs.worker_hours


def test_in_bursts_coupling_keeps_decode_from_being_flooded() -> None:
    day = BURSTS._replace(seconds=7200.0)
    coupled, uncoupled = played(day, Coupled(HARDWARE), 2), played(day, Uncoupled(HARDWARE), 2)
    assert coupled.tpot_p99_s < 0.7 * uncoupled.tpot_p99_s
    assert coupled.tpot_held > uncoupled.tpot_held


def test_a_service_sleeps_and_wakes_as_a_whole() -> None:
    """Two visits of 400 s, two hours apart."""
    visits = [ServiceRequest(at + 2.0 * number, 3000, 300) for at in (100.0, 7300.0) for number in range(200)]
    policy, world = Coupled(HARDWARE, service(least=0)), World(HARDWARE, visits, 0, 0)
    awake = list[float]()
    while not (world.idle and world.prefill.wanted == world.decode.wanted == 0):
        if world.now % LOOK_S == 0:
            prefill, decode = policy(world.load(), world.now)
            assert (prefill == 0) == (decode == 0)
            world.scale(prefill, decode)
        awake.append(float(world.prefill.wanted > 0))
        world.tick()
        assert world.now < 9000
    assert len(world.served.tpot_s) == len(visits), "everybody was served"
    # The first of each visit waits for prefill to start, and those behind it a little less.
    assert sum(ttft < 3 for ttft in world.served.ttft_s) >= len(visits) // 2
    assert max(world.served.ttft_s) < HARDWARE.prefill_start_s + LOOK_S + 15
    # Awake for two visits, each with its start and the minute without requests.
    assert sum(awake) < 2 * (400 + HARDWARE.decode_start_s + 60 + 60)
