"""A service on Ray as commands start, await and end it, with Serve and the hub in memory and on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tandem.apps.ray.options import RaySettings, keys_on_node
from tandem.apps.ray.ray_platform import RayPlatform
from tandem.apps.ray.serving import ROUTER, ROUTES, routes
from tandem.apps.simulation.loop import run
from tandem.core.errors import TandemError
from tandem.kube.kinds import Json
from tests.worlds.ray_world import NAME, MemoryShared, RayWorld, in_world, scaled, service

URL = "http://10.0.0.1:8000"
READY_S = 60.0


@dataclass
class Stage:
    """A platform beside the world of its hub."""

    world: RayWorld
    shared: MemoryShared
    said: list[str] = field(default_factory=list)

    def platform(self, name: str = NAME, spec: Json | None = None, **settings: Any) -> RayPlatform:
        """One whose options are given as settings."""
        told = RaySettings(given=frozenset(settings), **settings)
        return self.platform_with(told, name, spec)

    def platform_with(self, told: RaySettings, name: str = NAME, spec: Json | None = None) -> RayPlatform:
        shared = self.shared
        return RayPlatform(shared, shared, told, service(name, **(spec or {})), self.said.append, shared.ask)

    async def services(self) -> list[str]:
        objects: Any = await self.world.ask(lambda hub: hub.services())
        return [each["metadata"]["name"] for each in objects]


def story(tell: Callable[[Stage], Awaitable[None]]) -> None:
    async def told(world: RayWorld) -> None:
        await world.status()
        await tell(Stage(world, MemoryShared(world)))

    run(lambda _loop: in_world(told))


async def refused(work: Awaitable[object], code: str = "bad_setting") -> str:
    with pytest.raises(TandemError) as error:
        await work
    assert error.value.code == code, error.value.message
    return error.value.message


def test_everything_is_made_and_ends_with_the_last_service() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform()
        await platform.start()
        assert (platform.url, platform.wanted, platform.found) == (URL, True, False)
        await platform.ready(READY_S)
        assert stage.shared.told is not None
        assert stage.shared.told.url == URL
        other = stage.platform("other")
        await other.start()
        assert not other.found
        await platform.leave()
        assert stage.said[-1] == "routers and Serve stay: other services run"
        await other.leave()
        assert stage.shared.done == [
            *("start Serve", "make the hub", "deploy 2 routers"),
            *("delete routers", "end the hub", "stop Serve"),
        ]

    story(tell)


def test_routers_that_are_being_taken_away_do_not_count_as_running() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.serve_port = 8000
        stage.shared.runs(route_prefix="/", replicas=2)
        stage.shared.leaves()
        await stage.platform().start()
        assert stage.said == ["routers are being taken away (application tandem); waiting for their end"]
        assert stage.shared.done == ["make the hub", "deploy 2 routers"]
        stage.shared.gone_s = 1e6
        stage.shared.leaves()
        message = await refused(stage.platform("other").start(), "deadline_exceeded")
        assert message == "routers (application tandem) are still being taken away after 180 s; try again later"

    story(tell)


def test_routers_that_another_command_takes_away_before_all_is_ready_are_made_again() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform()
        await platform.start()
        stage.shared.leaves()
        stage.shared.serve_port = 0
        await platform.ready(READY_S)
        assert stage.shared.done[-2:] == ["start Serve", "deploy 2 routers"]

    story(tell)


DIFFERENT: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"route_prefix": "/x"}, {}, "--route-prefix is /x, but the routers that run (application tandem) are behind"),
    ({"ingress": "direct"}, {}, "--ingress is direct, but"),
    ({"ingress": "haproxy"}, {"route_prefix": None, "port": 9}, "are on port 9 of their nodes; leave --ingress out"),
    ({"route_prefix": "/"}, {"route_prefix": None}, "are on ports of their own"),
    ({"routers": 3}, {}, "--routers is 3, but the routers that run (application tandem) are 2; leave --routers out"),
    ({"api_keys": "/k"}, {}, "--api-keys is /k, but the routers that run (application tandem) take no API keys"),
    ({"api_keys": "/k"}, {"api_keys": "/j"}, "take the API keys of /j"),
    ({"vllm_python": "/v"}, {}, "--vllm-python is /v, but the hub that runs starts vLLM workers with that of Ray"),
)


@pytest.mark.parametrize(("settings", "runs", "says"), DIFFERENT)
def test_an_option_that_does_not_agree_with_what_runs_is_refused_before_the_service_is_wanted(
    settings: dict[str, Any], runs: dict[str, Any], says: str
) -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.serve_port, stage.shared.told = 8000, RaySettings()
        stage.shared.runs(**{"route_prefix": "/llm", "replicas": 2, **runs})
        platform = stage.platform(**settings)
        message = await refused(platform.start())
        assert says in message
        assert not platform.wanted
        assert not await stage.services()

    story(tell)


def test_options_that_agree_with_what_runs_are_taken() -> None:
    async def tell(stage: Stage) -> None:
        settings = RaySettings(route_prefix="/llm", routers=2, vllm_python="/v", api_keys="/k", router_key="secret")
        first = stage.platform_with(settings)
        await first.start()
        again = stage.platform(route_prefix="/llm", ingress="haproxy", routers=2, vllm_python="/v", api_keys="/k")
        await again.start()
        assert (again.url, again.found) == (f"{URL}/llm", True)
        await again.ready(READY_S)

    story(tell)


def test_routers_that_are_just_being_made_agree_with_any_number() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.serve_port = 8000
        stage.shared.runs(status="deploying", route_prefix="/")
        await stage.platform(routers=3).start()

    story(tell)


def test_what_runs_is_used_where_nothing_else_was_given() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.serve_port, stage.shared.told = 18000, RaySettings(vllm_python="/v")
        stage.shared.runs("default", route_prefix="/llm", replicas=5)
        platform = stage.platform()
        await platform.start()
        await platform.ready(READY_S)
        assert platform.url == "http://10.0.0.1:18000/llm"
        assert [each.base for each in stage.shared.targets[-1:]] == ["/llm"]
        assert stage.said == [
            "routers run already (application default), behind Serve's ingress at /llm: they are used as they are",
            "Serve runs already, with its ingress on port 18000 and not 8000: it is used as it is",
            "the hub runs already: it starts vLLM workers with /v",
        ]
        assert stage.shared.done == []

    story(tell)


def test_routers_on_ports_of_their_own_are_reached_there() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform(ingress="direct")
        await platform.start()
        assert platform.url == ""
        await platform.ready(READY_S)
        assert platform.url == "http://127.0.0.9:8000", "the address that a router has reported"
        later = stage.platform("later")
        await later.start()
        await later.ready(READY_S)
        assert later.url == platform.url
        assert "on port 8000 of their nodes: they are used as they are" in stage.said[0]

    story(tell)


def test_a_hub_that_is_on_its_way_to_its_end_is_made_again() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.told, stage.shared.ending = RaySettings(url=URL), True
        platform = stage.platform()
        await platform.start()
        assert stage.said == ["trying again: the hub is on its way to its end", AS_THEY_ARE]
        assert stage.shared.done == ["start Serve", "deploy 2 routers", "make the hub"]
        assert not platform.found
        assert await stage.services() == [NAME]

    story(tell)


AS_THEY_ARE = "routers run already (application tandem), behind Serve's ingress at /: they are used as they are"


@pytest.mark.parametrize("other", [{"url": "http://10.0.0.1:9"}, {"router_key": "old"}, {"vllm_python": "/old"}])
def test_a_hub_that_was_told_other_things_and_has_nothing_is_made_again(other: dict[str, str]) -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.told = RaySettings(**{"url": URL, **other})
        await stage.world.ask(lambda hub: hub.started_serve(True))
        await stage.platform().start()
        assert stage.shared.told == RaySettings(url=URL)
        (name,) = other
        assert stage.said == [
            f"trying again: the hub that runs was made with another {name}, and ends, as nothing needs it"
        ]
        assert stage.shared.done == ["start Serve", "end the hub", "make the hub", "deploy 2 routers"]
        assert await stage.world.ask(lambda hub: hub.started_serve())

    story(tell)


def test_a_hub_that_was_told_other_things_and_has_services_is_not_used_without_routers() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.told = RaySettings(url="http://10.0.0.1:9")
        await stage.world.ask(lambda hub: hub.want(service("other")))
        platform = stage.platform()
        message = await refused(platform.start())
        assert message.startswith("the hub that runs was made with another url, and has services: end all of them")
        assert not platform.wanted

    story(tell)


def test_a_hub_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.lost = True
        platform = stage.platform()
        message = await refused(platform.start(), "deadline_exceeded")
        assert message == "not begun within 300 s: there is no hub"
        assert not platform.wanted

    story(tell)


def test_what_is_missing_is_said_when_time_is_over() -> None:
    async def tell(stage: Stage) -> None:
        stage.world.serving.broken.add("decode")
        platform = stage.platform()
        await platform.start()
        message = await refused(platform.ready(20.0), "deadline_exceeded")
        assert message.startswith("not ready within 20 s: Revision ")
        stage.shared.lost = True
        assert (await refused(platform.ready(20.0), "deadline_exceeded")).endswith("there is no hub")

    story(tell)


def test_workers_and_routers_that_cannot_start_are_not_waited_for() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform()
        await platform.start()
        stage.shared.runs(status="failed", message="router on node 10.0.0.2: api keys file /k: No such file")
        message = await refused(platform.ready(READY_S), "engine_failed")
        assert message == (
            "routers (application tandem) cannot start: router on node 10.0.0.2: api keys file /k: No such file"
        )
        stage.shared.runs(route_prefix="/")
        stage.world.serving.failing.add("decode")
        other = stage.platform("other")
        await other.start()
        assert await refused(other.ready(READY_S), "engine_failed") == "its replicas cannot start"

    story(tell)


def test_a_hub_that_dies_and_comes_back_is_waited_for_and_heard_again() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform()
        await platform.start()
        saying = asyncio.create_task(platform.say_events())
        stage.world.crash()
        await platform.ready(READY_S)
        stage.world.crash()
        await stage.world.status()
        stage.said.clear()
        await platform.want(service(pools=scaled(decode=3)))
        await stage.world.until(lambda: _any(stage.said), "the hub is heard again")
        saying.cancel()

    story(tell)


async def _any(said: list[str]) -> bool:
    return bool(said)


def test_the_hub_and_the_command_ask_routers_by_the_operator_s_key() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform_with(RaySettings(api_keys="/k", router_key="secret"))
        await platform.start()
        await platform.ready(READY_S)
        assert stage.shared.told is not None
        assert stage.shared.told.router_key == "secret"
        assert stage.shared.targets[-1].key == "secret"
        assert '-H "Authorization: Bearer $OPENAI_API_KEY"' in platform.curl()
        stage.shared.status = 401
        assert "set OPENAI_API_KEY" in await refused(platform.ready(READY_S))

    story(tell)


def test_a_key_of_the_environment_goes_to_no_hub_whose_routers_want_none() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform_with(RaySettings(router_key="secret"))
        await platform.start()
        assert stage.shared.told is not None
        assert stage.shared.told.router_key == ""
        assert "Authorization" not in platform.curl()

    story(tell)


def test_a_request_to_paste_has_a_key_where_the_routers_that_run_want_one() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.serve_port = 8000
        stage.shared.runs(route_prefix="/", api_keys="/k")
        platform = stage.platform_with(RaySettings(router_key="secret"))
        await platform.start()
        assert "Authorization" in platform.curl()
        assert stage.shared.told is not None
        assert stage.shared.told.router_key == "secret"

    story(tell)


def test_a_key_is_compared_and_not_shown() -> None:
    settings = RaySettings(router_key="secret")
    assert "secret" not in repr(settings) + repr(settings.shown()) + settings.shown().router_key
    assert settings.shown() == RaySettings(router_key="secret").shown() != RaySettings(router_key="other").shown()
    assert RaySettings().shown() == RaySettings()


def test_a_hub_with_the_same_key_is_used() -> None:
    async def tell(stage: Stage) -> None:
        settings = RaySettings(api_keys="/k", router_key="secret")
        stage.shared.told = replace(settings, url=URL)
        await stage.platform_with(settings).start()
        assert stage.shared.done == ["start Serve", "deploy 2 routers"]

    story(tell)


def test_a_key_file_that_cannot_be_read_is_said_with_its_node() -> None:
    assert keys_on_node(None, "10.0.0.2").callers is None
    with pytest.raises(TandemError) as error:
        keys_on_node("/no/keys.json", "10.0.0.2")
    said = "router on node 10.0.0.2: api keys file /no/keys.json: No such file or directory; --api-keys is a path on"
    assert error.value.message.startswith(said)


def test_what_means_nothing_on_ray_is_said_once() -> None:
    async def tell(stage: Stage) -> None:
        spec = {"router": {"host": "10.0.0.9", "grpcPort": 9000}}
        platform = stage.platform(spec=spec)
        await platform.start()
        await platform.want(service(**spec))
        assert [each for each in stage.said if "means nothing on Ray" in each] == [
            "spec.router.host '10.0.0.9' means nothing on Ray: Serve's ingress is on every address there",
            "spec.router.grpcPort 9000 means nothing on Ray: routers there have no gRPC API",
        ]

    story(tell)


def test_what_others_run_and_have_made_stays() -> None:
    async def tell(stage: Stage) -> None:
        stage.shared.runs("default", route_prefix="/", replicas=1)
        platform = stage.platform()
        await platform.start()
        await platform.leave()
        assert stage.said[-1] == "routers and hub stay: application default was not made by `tandem up`"
        stage.shared.apps.clear()
        stage.shared.foreign = ("theirs",)
        await platform.start()
        await platform.leave()
        assert stage.said[-1] == "Serve goes on: it runs theirs"
        assert stage.shared.serve_port

    story(tell)


def test_a_service_that_another_command_wants_meanwhile_is_not_taken_away_in_a_hurry_either() -> None:
    async def tell(stage: Stage) -> None:
        platform, other = stage.platform(), stage.platform()
        await platform.start()
        await platform.ready(READY_S)
        leaving = asyncio.create_task(platform.leave())
        await asyncio.sleep(0.5)
        await other.start()
        assert "wanted again: it stays" in await refused(leaving, "conflict")
        await platform.hurry(5.0)
        assert await stage.services() == [NAME]
        await other.leave()
        assert not await stage.services()

    story(tell)


def test_in_a_hurry_nothing_is_waited_for() -> None:
    async def tell(stage: Stage) -> None:
        platform = stage.platform()
        await platform.start()
        await platform.ready(READY_S)
        stage.shared.gone_s = 1e6
        began = stage.world.clock.now()
        await platform.hurry(5.0)
        assert stage.world.clock.now() - began <= 5.0
        assert stage.shared.done[-2:] == ["delete routers", "end the hub"]

    story(tell)


def test_routers_are_known_by_their_own_mark_where_a_configuration_has_taken_the_other_away() -> None:
    def app(name: str, **options: Any) -> Json:
        return {"deployments": {name: {"deployment_config": {"ray_actor_options": options}}}}

    marked = {"runtime_env": {"env_vars": {ROUTES: "1"}}}
    assert routes("tandem", app(ROUTER, **marked), ())
    assert routes("default", app(ROUTER, num_cpus=2), {"default"})
    assert not routes("default", app(ROUTER, num_cpus=2), ())
    assert not routes("default", app("other"), {"default"}), "an application that has come in the place of routers"
    assert routes("default", {"deployments": {}}, {"default"}), "it is being deleted"
    assert routes("tandem", {"deployments": {}}, ())
    assert not routes("other", {"deployments": {}}, {"default"})
