"""What `tandem up --on ray` does and takes away, with Serve and the hub in memory and on virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tandem.apps.cli.printing import print_line
from tandem.apps.ray import command
from tandem.apps.ray.command import HURRY_S, Stop, takes_away
from tandem.apps.ray.options import RaySettings
from tandem.apps.ray.ray_platform import RayPlatform
from tandem.apps.ray.up_options import RayUpOptions
from tandem.apps.simulation.loop import run
from tandem.core.errors import TandemError
from tandem.spec.service import ModelService
from tests.worlds.ray_world import SPEC, MemoryShared, RayWorld, in_world, scaled, service


@pytest.mark.parametrize(
    ("wanted", "found", "failed", "keep", "takes"),
    [
        (True, False, False, False, True),
        (True, True, False, False, True),
        (True, False, True, False, True),
        (True, True, True, False, False),
        (False, True, True, False, False),
        (False, True, False, False, False),
        (False, False, False, False, False),
        (True, False, False, True, False),
    ],
)
def test_a_service_that_the_command_has_not_asked_for_or_whose_take_over_failed_stays(
    wanted: bool, found: bool, failed: bool, keep: bool, takes: bool
) -> None:
    assert takes_away(wanted, found, failed=failed, keep=keep) is takes


@dataclass
class Command:
    """`tandem up --on ray` beside the world of its hub, with a file and with signals that a test gives. `findable`
    says whether other commands would find it."""

    world: RayWorld
    shared: MemoryShared
    file: Path
    printed: pytest.CaptureFixture[str]
    stop: Stop = field(default_factory=Stop)
    findable: bool = False
    lines: list[str] = field(default_factory=list)

    def begin(self, start_s: float = 60.0, **settings: Any) -> "asyncio.Task[None]":
        told = RaySettings(given=frozenset(settings), **settings)
        options = RayUpOptions(self.reread(), self.file, told, start_s, self.reread)
        shared = self.shared
        platform = RayPlatform(shared, shared, told, options.service, print_line, shared.ask)
        return asyncio.create_task(command.run(platform, options, self.stop, self.found))

    def reread(self) -> ModelService:
        spec = json.loads(self.file.read_text())
        if not spec:
            raise TandemError("bad_setting", "the file is empty")
        return service(**spec)

    @asynccontextmanager
    async def found(self, platform: RayPlatform, options: RayUpOptions) -> AsyncIterator[None]:
        self.findable = True
        try:
            yield
        finally:
            self.findable = False

    def edit(self, **spec: Any) -> None:
        self.file.write_text(json.dumps(spec))

    async def says(self, part: str, within_s: float = 120.0) -> None:
        """Wait for a line."""

        async def said() -> bool:
            return any(part in line for line in self.read())

        await self.world.until(said, part, within_s)

    def read(self) -> list[str]:
        self.lines += self.printed.readouterr().out.splitlines()
        return self.lines

    async def services(self) -> list[str]:
        objects: Any = await self.world.ask(lambda hub: hub.services())
        return [each["metadata"]["name"] for each in objects]


EDITED: dict[str, Any] = {"engine": {"type": "simulated", "kvMemory": "64Mi"}}


@pytest.fixture
def story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[Command], Awaitable[None]]], None]:
    """Tells a story of a command on virtual time."""
    file = tmp_path / "chat.yaml"
    file.write_text(json.dumps({"rollout": SPEC["rollout"]}))

    def told(tell: Callable[[Command], Awaitable[None]]) -> None:
        async def main(world: RayWorld) -> None:
            await world.status()
            await tell(Command(world, MemoryShared(world), file, capsys))

        run(lambda _loop: in_world(main))

    return told


Told = Callable[[Callable[[Command], Awaitable[None]]], None]


def test_it_serves_until_a_signal_and_then_drains_and_leaves_nothing(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin()
        await up.says("chat is served at http://10.0.0.1:8000/v1")
        assert up.findable
        up.stop.signal()
        await running
        assert [line for line in up.read() if "stop" in line] == [
            "stopping; workers drain first, another Ctrl-C stops at once",
            "stopped",
        ]
        assert not up.world.serving.workers()
        assert up.shared.done[-3:] == ["delete routers", "end the hub", "stop Serve"]
        assert not up.findable

    story(tell)


def test_a_second_signal_hurries(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin()
        await up.says("is served at")
        up.world.serving.held |= {each.name for each in up.world.serving.workers()}
        up.stop.signal()
        await up.says("stopping;")
        up.stop.signal()
        began = up.world.clock.now()
        await running
        assert up.world.clock.now() - began <= HURRY_S
        assert "stopping now; what still drains on the cluster ends by itself" in up.read()
        assert up.lines[-1] == "stopped"

    story(tell)


def test_with_keep_everything_stays_and_the_same_command_takes_it_over(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin(keep=True)
        await up.says("is served at")
        up.stop.signal()
        await running
        assert await up.services() == ["chat"]
        assert "delete routers" not in up.shared.done
        again = Command(up.world, up.shared, up.file, up.printed)
        taken = again.begin()
        await again.says("is served at")
        again.stop.signal()
        await taken
        assert not up.world.serving.workers()
        assert up.shared.done[-1] == "stop Serve"

    story(tell)


def test_a_start_that_fails_takes_away_what_it_has_made(story: Told) -> None:
    async def tell(up: Command) -> None:
        up.world.serving.broken.add("decode")
        with pytest.raises(TandemError, match="not ready within 20 s"):
            await up.begin(start_s=20.0)
        assert not up.world.serving.workers()
        assert up.shared.done[-1] == "stop Serve"

    story(tell)


def test_what_was_there_before_a_start_that_fails_stays(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin(keep=True)
        await up.says("is served at")
        up.stop.signal()
        await running
        up.world.serving.broken.add("decode")
        up.edit(**EDITED)
        again = Command(up.world, up.shared, up.file, up.printed)
        with pytest.raises(TandemError, match="not ready within 20 s"):
            await again.begin(start_s=20.0)
        assert await up.services() == ["chat"]
        assert "delete routers" not in up.shared.done

    story(tell)


def test_a_start_that_is_refused_takes_nothing_away(story: Told) -> None:
    async def tell(up: Command) -> None:
        up.shared.serve_port = 8000
        up.shared.runs(route_prefix="/llm")
        with pytest.raises(TandemError, match="--route-prefix is /, but"):
            await up.begin(route_prefix="/")
        assert up.shared.done == []

    story(tell)


def test_a_signal_before_the_service_is_wanted_takes_away_what_was_made(story: Told) -> None:
    async def tell(up: Command) -> None:
        up.shared.making_s = 3.0
        running = up.begin()
        await asyncio.sleep(1.0)
        up.stop.signal()
        await running
        assert up.shared.done == ["start Serve", "make the hub", "end the hub", "stop Serve"]
        again = Command(up.world, up.shared, up.file, up.printed)
        running = again.begin()
        await asyncio.sleep(4.0)
        again.stop.signal()
        await running
        assert up.shared.done[4:] == [
            *("start Serve", "make the hub", "deploy 2 routers"),
            *("delete routers", "end the hub", "stop Serve"),
        ]

    story(tell)


def test_a_start_that_fails_before_the_service_is_wanted_leaves_what_others_use(story: Told) -> None:
    async def tell(up: Command) -> None:
        up.shared.refuses = True
        with pytest.raises(TandemError, match="it refuses"):
            await up.begin()
        assert up.shared.done == ["start Serve", "make the hub", "end the hub", "stop Serve"]
        await up.world.ask(lambda hub: hub.want(service("other")))
        with pytest.raises(TandemError, match="it refuses"):
            await up.begin()
        assert up.shared.done[4:] == ["start Serve", "make the hub"]

    story(tell)


def test_edits_of_the_file_are_carried_out_and_mistakes_are_not(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin()
        await up.says("is served at")
        before = set(await up.world.serving.running())
        up.edit()
        await up.says("is not carried out: the file is empty")
        assert set(await up.world.serving.running()) == before
        up.edit(**EDITED)
        await up.says("chat is to be revision")

        async def rolled() -> bool:
            return not before & set(await up.world.serving.running())

        await up.world.until(rolled, "the edit rolls over")
        running.cancel()

    story(tell)


def test_an_edit_waits_for_a_hub_that_comes_back(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin()
        await up.says("is served at")
        up.shared.lost = True
        up.edit(**EDITED)
        await asyncio.sleep(5.0)
        up.shared.lost = False
        await up.says("chat is to be revision")
        assert not [line for line in up.lines if "not carried out" in line]
        running.cancel()

    story(tell)


def test_an_edit_that_the_hub_could_not_be_told_is_told_with_the_next(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin()
        await up.says("is served at")
        up.shared.lost = True
        up.edit(**EDITED)
        await up.says("is not carried out: there is no hub; it is tried again at the next change of the file")
        up.shared.lost = False
        up.edit(**EDITED, pools=scaled(decode=1))
        await up.says("chat is to be revision")
        running.cancel()

    story(tell)


def test_what_cannot_leave_is_said(story: Told) -> None:
    async def tell(up: Command) -> None:
        running = up.begin()
        await up.says("is served at")
        up.shared.lost = True
        up.stop.signal()
        await running
        assert up.read()[-2:] == ["not everything has left: there is no hub", "stopped"]

    story(tell)
