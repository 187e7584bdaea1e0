"""`tandem scale` at a platform on Ray, on virtual time: what is told, and when it is done."""

import asyncio

import pytest

from tandem.apps.cli.registry import MemberEntry, PlatformEntry
from tandem.apps.ray.up_control import RayOperations, publishing
from tandem.apps.simulation.loop import run
from tandem.core.errors import TandemError
from tests.worlds.loop_clock import LoopClock

START_S = 60.0
TAKES_S = 2.0
OTHERS = {"chat-all-b": ("chat-all", ""), "router-r": ("", ""), "chat-all-a-1": ("chat", "all", 1)}
"""Members that are no workers of pool `all` of the service `chat`: one has a name that looks like it, as its service
is called `chat-all`, and one is the second rank of a worker."""


class Platform:
    """A platform that has one worker, of pool `all`, and what is asked of it a while later."""

    name = "chat"

    def __init__(self) -> None:
        self.states = dict.fromkeys(("chat-all-a", *OTHERS), "ready")
        self.away = False
        self.deaf = False

    async def scale(self, counts: dict[str, int]) -> None:
        if not self.deaf:
            self._changing = asyncio.create_task(self._change(counts))

    async def _change(self, counts: dict[str, int]) -> None:
        for index in range(1, counts["all"]):
            self.states[f"chat-all-n{index}"] = "starting"
        if not counts["all"]:
            self.states["chat-all-a"] = "draining"
        await asyncio.sleep(TAKES_S)
        self.states = {name: "ready" for name, state in self.states.items() if state != "draining"}

    async def entry(self) -> PlatformEntry:
        if self.away:
            raise TandemError("link_lost", "the hub is away")
        members = [
            MemberEntry(name, "unified", 1, state, "", "", 0, *OTHERS.get(name, ("chat", "all")))
            for name, state in self.states.items()
        ]
        return PlatformEntry(url="u", run_directory="", control="", members=tuple(members), pid=1, began=0)


def operations(platform: Platform) -> RayOperations:
    return RayOperations(platform, LoopClock(asyncio.get_running_loop()), START_S)


def test_workers_that_are_added_are_told_until_they_are_ready() -> None:
    async def main() -> None:
        said: list[str] = []
        change = await operations(Platform()).scale({"all": 2}, 30.0, said.append)
        assert change.started == ("chat-all-n1",)
        assert change.left == ()
        assert change.workers == ("chat-all-a", "chat-all-n1")
        assert said == ["chat-all-n1 is starting", "chat-all-n1 is ready"]

    run(lambda _loop: main())


def test_workers_that_leave_are_told_until_they_have_ended() -> None:
    async def main() -> None:
        said: list[str] = []
        change = await operations(Platform()).scale({"all": 0}, 30.0, said.append)
        (left,) = change.left
        assert (left.name, left.removed) == ("chat-all-a", True)
        assert TAKES_S <= left.took_s < TAKES_S + 1.0
        assert said == ["chat-all-a is draining", "chat-all-a has ended"]

    run(lambda _loop: main())


def test_a_change_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        platform = Platform()
        platform.deaf = True
        with pytest.raises(TandemError, match="not there within 90 s"):
            await operations(platform).scale({"all": 2}, 30.0, lambda _: None)

    run(lambda _loop: main())


def test_one_worker_cannot_be_named() -> None:
    async def main() -> None:
        with pytest.raises(TandemError, match="Serve chooses which worker leaves"):
            await operations(Platform()).drain("chat-all-a", 30.0, False, lambda _: None)

    run(lambda _loop: main())


def test_entries_are_published_whenever_the_hub_answers() -> None:
    async def main() -> None:
        platform, published, said = Platform(), list[PlatformEntry](), list[str]()
        publish = asyncio.create_task(publishing(platform.entry, published.append, 1.0, said.append))
        await asyncio.sleep(0.5)
        platform.away = True
        await asyncio.sleep(5.0)
        platform.away = False
        await asyncio.sleep(1.0)
        publish.cancel()
        assert len(published) == 2
        assert not said

    run(lambda _loop: main())


def test_entries_that_cannot_be_published_are_said_once_and_tried_again() -> None:
    async def main() -> None:
        platform, published, said = Platform(), list[PlatformEntry](), list[str]()
        full = True

        def publish(entry: PlatformEntry) -> None:
            if full:
                raise TandemError("bad_setting", "the disk is full")
            published.append(entry)

        publishes = asyncio.create_task(publishing(platform.entry, publish, 1.0, said.append))
        await asyncio.sleep(3.5)
        full = False
        await asyncio.sleep(1.0)
        publishes.cancel()
        assert said == ["`tandem scale` sees what was here before: the disk is full"]
        assert len(published) == 1

    run(lambda _loop: main())
