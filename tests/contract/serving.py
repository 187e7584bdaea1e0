"""What every `Serving` promises: the one in memory, and Ray Serve where there is a cluster.

A stage gives the seam, a service whose revisions are deployed, and how long things may take. Reports of replicas are
collected by the stage as they come. The class is collected where a test module imports it and has a fixture `stage`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.apps.ray.placing import revision_app
from tandem.apps.ray.serving import AppState, RevisionApp, Serving, WorkerTold
from tandem.spec.service import ModelService

_LOOK_S = 0.05


@dataclass
class ServingStage:
    """One implementation under test. `told` has the last report of each worker, by name; `ever` all their names.

    `service` has the pools `prefill` and `decode`; `within_s` bounds every wait."""

    serving: Serving
    service: ModelService
    within_s: float
    told: dict[str, WorkerTold] = field(default_factory=dict)
    ever: list[str] = field(default_factory=list)

    async def hear(self, told: WorkerTold) -> None:
        """Take over one report."""
        if told.name not in self.ever:
            self.ever.append(told.name)
        if told.gone:
            self.told.pop(told.name, None)
        else:
            self.told[told.name] = told

    def app(self, revision: str, prefill: int, decode: int) -> RevisionApp:
        return revision_app(self.service, revision, {"prefill": prefill, "decode": decode})

    def ready(self, app: RevisionApp, pool: str) -> set[str]:
        """Names of the workers of a pool that reported to be ready and not to leave."""
        return {
            told.name
            for told in self.told.values()
            if (told.app, told.pool) == (app.name, pool) and told.ready and told.leaving_s is None
        }

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition over reports."""
        try:
            async with asyncio.timeout(self.within_s):
                while True:
                    if holds():
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise AssertionError(f"{what} within {self.within_s:g} s; reports: {self.told}") from None

    async def until_app(self, name: str, holds: Callable[[AppState | None], bool], what: str) -> None:
        """Wait for a condition over the state of one application, None while it is not there."""
        try:
            async with asyncio.timeout(self.within_s):
                while True:
                    if holds((await self.serving.running()).get(name)):
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise AssertionError(f"{what} within {self.within_s:g} s: {await self.serving.running()}") from None

    async def up(self, app: RevisionApp, prefill: int, decode: int) -> None:
        """Wait until so many workers are ready."""

        def holds() -> bool:
            return (len(self.ready(app, "prefill")), len(self.ready(app, "decode"))) == (prefill, decode)

        await self.until(holds, f"{app.name} has {prefill} and {decode} workers")


class TestServing:
    async def test_an_application_comes_up_with_its_first_workers(self, stage: ServingStage) -> None:
        app = stage.app("aaaaaaaaaa", 1, 2)
        await stage.serving.deploy(app)
        await stage.up(app, 1, 2)
        await stage.until_app(app.name, lambda state: state is not None and state.status == "running", "it runs")
        state = (await stage.serving.running())[app.name]
        assert {name: each.running for name, each in state.deployments.items()} == {"prefill": 1, "decode": 2}
        told = next(iter(stage.told.values()))
        assert (told.service, told.revision, told.app) == (stage.service.metadata.name, app.revision, app.name)
        assert told.address

    async def test_deploying_again_changes_nothing(self, stage: ServingStage) -> None:
        app = stage.app("bbbbbbbbbb", 1, 1)
        await stage.serving.deploy(app)
        await stage.up(app, 1, 1)
        before = list(stage.ever)
        await stage.serving.deploy(stage.app("bbbbbbbbbb", 2, 2))
        await stage.serving.want({app.name: {"prefill": 1, "decode": 1}})
        await asyncio.sleep(2 * _LOOK_S)
        await stage.up(app, 1, 1)
        assert stage.ever == before

    async def test_counts_follow_the_table_to_nothing_and_back(self, stage: ServingStage) -> None:
        app = stage.app("cccccccccc", 1, 1)
        await stage.serving.deploy(app)
        await stage.up(app, 1, 1)
        for prefill, decode in ((1, 3), (2, 1), (0, 0), (1, 1)):
            await stage.serving.want({app.name: {"prefill": prefill, "decode": decode}})
            await stage.up(app, prefill, decode)

    async def test_a_table_may_be_ahead_of_the_application(self, stage: ServingStage) -> None:
        app = stage.app("dddddddddd", 0, 0)
        await stage.serving.want({app.name: {"prefill": 1, "decode": 2}, "nobody-0000000000": {"all": 3}})
        await stage.serving.deploy(app)
        await stage.up(app, 1, 2)

    async def test_what_the_table_does_not_name_stays(self, stage: ServingStage) -> None:
        app = stage.app("eeeeeeeeee", 1, 1)
        await stage.serving.deploy(app)
        await stage.serving.want({app.name: {"prefill": 1, "decode": 2}})
        await stage.up(app, 1, 2)
        await stage.serving.want({})
        await asyncio.sleep(1.0)
        await stage.up(app, 1, 2)

    async def test_a_deleted_application_drains_and_is_gone(self, stage: ServingStage) -> None:
        app, other = stage.app("ffffffffff", 1, 1), stage.app("0000000000", 1, 1)
        await stage.serving.deploy(app)
        await stage.serving.deploy(other)
        await stage.up(app, 1, 1)
        await stage.up(other, 1, 1)
        await stage.serving.delete(app.name)
        await stage.until_app(app.name, lambda state: state is None, "it is gone")
        await stage.until(lambda: not any(told.app == app.name for told in stage.told.values()), "all said goodbye")
        await stage.up(other, 1, 1)
        await stage.serving.delete(app.name)

    async def test_an_application_may_come_back_once_it_is_gone(self, stage: ServingStage) -> None:
        app = stage.app("1111111111", 1, 1)
        await stage.serving.deploy(app)
        await stage.up(app, 1, 1)
        before = set(stage.ever)
        await stage.serving.delete(app.name)
        await stage.until_app(app.name, lambda state: state is None, "it is gone")
        await stage.serving.deploy(app)
        await stage.up(app, 1, 1)
        assert before.isdisjoint(stage.told), "names are never given twice"
