"""Who is refused as it comes, because the prompts before it leave it no time for its first token."""

import asyncio

import pytest

from router.fleet.services import ServiceFacts
from tandem.apps.simulation.counting import CountingMeter
from tandem.core.errors import TandemError
from tandem.core.slo import Slo
from tests.unit.router.dispatch.test_relief import starved
from tests.worlds.router_world import Client, World


@pytest.mark.parametrize(
    ("ttft_s", "taken"),
    [
        # Each prompt takes a second. Whoever misses the objective wherever it goes is served like others.
        (0.9, 5),
        # The second one waits for one second in the mean, and hardly ever for more than three.
        (1.1, 1),
        (3.9, 1),
        (4.1, 2),
        # The third one: for two, and hardly ever for more than 4.85.
        (5.8, 2),
        (5.9, 3),
        (60.0, 5),
    ],
)
def test_a_request_is_refused_where_the_prompts_before_it_almost_surely_make_it_late(
    ttft_s: float, taken: int
) -> None:
    async def body(world: World, _: CountingMeter) -> None:
        facts = ServiceFacts("default/chat", "demo", slo=Slo(ttft_s=ttft_s))
        world.fleet.set_services((facts,), ())
        clients, refused = list[Client](), list[TandemError]()
        for _number in range(5):
            try:
                clients.append(world.ask(tokens=10))
            except TandemError as error:
                refused.append(error)
        assert len(clients) == taken
        for told in refused:
            assert told.code == "queue_full"
            assert f"is to have its first token within {ttft_s:g} s" in told.message
            assert told.retry_after_s is not None
            assert told.retry_after_s >= 1.0
        assert world.dispatcher.held == taken
        for client in clients:
            async with asyncio.timeout(60):
                await client.ended.wait()

    starved(body, "p1 d1", paces={"d1": 0.01})


def test_the_first_request_of_an_idle_service_is_taken_whatever_it_is_to_hold() -> None:
    async def body(world: World, _: CountingMeter) -> None:
        world.fleet.set_services((ServiceFacts("default/chat", "demo", slo=Slo(ttft_s=0.001)),), ())
        client = world.ask(tokens=10)
        await client.ended.wait()
        client.check_whole()

    starved(body, "p1 d1", paces={"d1": 0.01})
