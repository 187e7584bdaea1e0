"""What ranks tell of their experts goes through the stage, which adds up nothing twice."""

from tandem.engine.counts import ExpertBalance
from tandem.engine.vllm.conduit_messages import Routed
from tests.worlds.stage_ranks import stage_world


async def test_balances_of_ranks_are_averaged_and_told_once() -> None:
    async with stage_world(tensor=2) as world:
        assert world.stage.take_balance() is None
        first, second = world.ranks
        first.client.send(Routed(ExpertBalance(4.0, None)))
        first.client.send(Routed(ExpertBalance(2.0, 1.5)))
        second.client.send(Routed(ExpertBalance(1.0, 1.0)))
        await world.until(lambda: world.stage._balances.keys() == {0, 1} and world.stage._balances[0].over_ranks)
        assert world.stage.take_balance() == ExpertBalance(1.5, 1.25)
        assert world.stage.take_balance() is None
