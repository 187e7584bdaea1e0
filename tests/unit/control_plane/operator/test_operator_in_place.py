"""The operator where no node has room for new pods beside the old ones: old ones give way first, one by one."""

import msgspec

from tandem.kube.kinds import Json
from tests.unit.control_plane.operator.test_operator_world import in_world, new_image
from tests.worlds.operator_world import World, notes


def surge(world: World) -> Json:
    return next(
        (msgspec.to_builtins(each) for each in world.status.conditions if each.type == "SurgeWithoutRoom"), {}
    )


def test_a_rollout_without_room_goes_in_place_and_says_so_once() -> None:
    async def story(world: World) -> None:
        world.room = {"prefill": 2, "decode": 3}
        await world.edit(new_image("two", progressDeadlineSeconds=3000))
        await world.run(50)
        assert len(world.pods("decode", ready=True)) == 3
        assert surge(world) == {}
        least = {"prefill": 2, "decode": 3}
        reported = {}
        for _ in range(900):
            await world.tick()
            assert world.reachable()
            least = {pool: min(count, world.available(pool)) for pool, count in least.items()}
            reported = surge(world) or reported
            if least["decode"] < 3:
                assert reported["reason"] == "InPlace"
        assert least == {"prefill": 1, "decode": 2}
        assert "Pool decode: no node has room for a new worker beside the old ones" in reported["message"]
        assert notes(world).count("SurgeWithoutRoom") == 1
        assert world.available("decode", "two") == 3
        assert world.condition("Ready")["status"] == "True"
        assert surge(world) == {}
        assert world.status.rollout is None or not world.status.rollout.in_place_pools

    in_world(story)


def test_operators_that_die_halfway_go_on_in_place() -> None:
    async def story(world: World) -> None:
        world.room = {"prefill": 2, "decode": 3}
        await world.edit(new_image("two", progressDeadlineSeconds=3000))
        for second in range(1500):
            if second % 37 == 0:
                world.crash()
            await world.tick()
            assert world.reachable()
            assert world.available("decode") >= 2
        assert world.available("decode", "two") == 3

    in_world(story)


def test_a_rollout_without_room_waits_where_the_specification_says_never() -> None:
    async def story(world: World) -> None:
        world.room = {"decode": 3}
        await world.edit(new_image("two", progressDeadlineSeconds=3000, inPlace="Never"))
        await world.run(400)
        assert world.available("decode", "one") == 3
        assert surge(world)["reason"] == "Never"
        assert surge(world)["message"].endswith("rollout.inPlace is Never.")

    in_world(story)
