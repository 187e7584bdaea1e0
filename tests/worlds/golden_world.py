"""Simulated platforms as lines of text: what each client got, when, by which decisions, and what was counted."""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import pytest

from router.fleet.services import ServiceFacts, ServiceRegistry
from router.generation import Generation
from tandem.apps.simulation import client, platform
from tandem.apps.simulation import world as world_module
from tandem.apps.simulation.checks import Outcome
from tandem.apps.simulation.counting import CountingMeter
from tandem.apps.simulation.loop import VirtualLoop, run
from tandem.apps.simulation.quiet import quiet_logs
from tandem.apps.simulation.world import World, WorldSettings, script
from tandem.core.messages import Pin
from tandem.core.slo import Slo
from tandem.core.spans import Span
from tests.worlds.golden import digest

_LIMIT_S = 1000.0
Wish = Callable[[Generation, int], Generation]


class GoldenMeter(CountingMeter):
    """Keeps gauges and histograms, too."""

    def __init__(self) -> None:
        super().__init__()
        self.gauges: dict[tuple[str, ...], float] = {}
        self.observed: Counter[tuple[str, ...]] = Counter()

    def set(self, name: str, value: float, *labels: str) -> None:
        super().set(name, value, *labels)
        self.gauges[name, *labels] = value

    def observe(self, name: str, value: float, *labels: str) -> None:
        super().observe(name, value, *labels)
        key = (name, *labels)
        self.observed[key] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value


def demanding(generation: Generation, number: int) -> Generation:
    """Clients of two tenants, with caches that they share, conversations, and prefixes that they want kept."""
    return msgspec.structs.replace(
        generation,
        cache_key=("", "a", "b")[number % 3],
        beginning=("", "x", "y", "")[number % 4],
        tenant=("one", "two")[number % 2],
        kv_bytes_max=(None, 64 * 1024)[number % 2],
        pin=Pin(number % 3, 5.0) if number % 7 == 6 else None,
    )


def plain(generation: Generation, _number: int) -> Generation:
    return generation


def told(
    settings: WorldSettings, seed: int, wish: Wish, monkeypatch: pytest.MonkeyPatch, slo: Slo | None = None
) -> list[str]:
    """Live through a world, with its invariants looked at; one line for each client, each fault and each figure. With
    `slo` its model has a service with that objective.

    A client's line ends with a digest of all that its spans and outputs say, decisions with their reasons and costs
    among it; the world's own failures are raised as in every simulation.
    """
    worlds: list[World] = []
    usual = client._generation
    meters: list[GoldenMeter] = []

    def meter() -> GoldenMeter:
        meters.append(GoldenMeter())
        return meters[-1]

    def wished(request: client.SimRequest, ground: client.ClientEnvironment) -> Generation:
        kind, _, number = request.request_id.partition("-")
        made = usual(request, ground)
        return wish(made, int(number)) if kind == "req" else made

    async def main(loop: VirtualLoop) -> None:
        worlds.append(World(settings, seed, loop, script(settings, seed)))
        loop.after_step = worlds[0].look
        await worlds[0].live()

    if slo is not None:
        facts = ServiceFacts("sim/sim", settings.model.name, queue_s=2.0, slo=slo)
        monkeypatch.setattr(ServiceRegistry, "of", lambda _registry, _model: facts)
        # The judge of simulations knows of no objectives, for which requests are refused. What was written down does.
        monkeypatch.setattr(world_module, "first_objection", lambda *_: None)
    monkeypatch.setattr(client, "_generation", wished)
    monkeypatch.setattr(platform, "CountingMeter", meter)
    with quiet_logs():
        run(main, limit_s=_LIMIT_S)
    (world,) = worlds
    return [*_platform(world), *_clients(world), *figures(meters[0])]


def _platform(world: World) -> list[str]:
    return [f"{at:.4f} s {what}" for at, request, what in world._trace._lines if not request]


def _clients(world: World) -> list[str]:
    stories: dict[str, list[str]] = {}
    for at, request, what in world._trace._lines:
        stories.setdefault(request, []).append(f"{at:.6f} {spelled(what)}")
    return [_client(outcome, stories.get(outcome.request_id, [])) for outcome in world._outcomes]


def _client(outcome: Outcome, story: Sequence[str]) -> str:
    end = f"{outcome.end} {outcome.error}".strip()
    return f"{outcome.request_id}: {end} after {outcome.ended_s or 0.0:.4f} s, {len(story)} lines, {digest(story)}"


def spelled(what: str | Span) -> str:
    if isinstance(what, str):
        return what
    figures = ", ".join(f"{key}={_rounded(value)}" for key, value in what.attributes.items())
    return f"{what.service} {what.name} {(what.end_s - what.start_s) * 1e3:.3f} ms: {figures}"


def _rounded(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def figures(meter: GoldenMeter) -> list[str]:
    observed = meter.observed
    return [
        *(f"{_name(key)} {value:.6g} in {observed[key]}" for key, value in sorted(meter.sums.items())),
        *(f"{_name(key)} = {value:.6g}" for key, value in sorted(meter.gauges.items())),
    ]


def _name(key: tuple[str, ...]) -> str:
    return f"{key[0]}{{{','.join(key[1:])}}}"
