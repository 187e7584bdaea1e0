"""One knob for capacity: what follows from it in a router, in the workers of `tandem up`, and in placement."""

from dataclasses import replace
from pathlib import Path

import pytest

from router.placement.filters.sorting import suitable
from router.placement.filters.workers import full
from router.placement.view import SEQUENCES_MAX, WorkerView
from router.process_settings import ProcessSettings, sized
from router.settings import PlacementSettings, RouterSettings
from tandem.apps.cli.launches import LaunchContext, members_of
from tandem.apps.cli.up_options import parse
from tandem.core.errors import TandemError
from tandem.process.settings import load_settings
from tests.unit.router.placement.test_router_placement import ask, load, view

PLACES = LaunchContext(Path("/fleet"), Path("/key"), Path("/sockets"), 8000, None)


def router_of(*flags: str) -> ProcessSettings:
    return sized(load_settings(ProcessSettings, ["--workers=a:1", *flags], {}))


def bounds(settings: ProcessSettings) -> tuple[int, int, int, int]:
    """Requests, requests in line, sequences on one worker, connections."""
    core = settings.core
    admission = core.admission
    most = core.placement.sequences_per_worker_max
    return admission.requests_max, admission.queued_max, most, settings.front.connections_max


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), (4096, 1024, 4096, 8192)),
        (("--max_streams=4096",), (4096, 1024, 4096, 8192)),
        (("--max_streams=10000",), (10_000, 2500, 10_000, 20_000)),
        (("--max_streams=1",), (1, 1, 1, 2)),
        (("--max_streams=64", "--front.connections_max=9"), (64, 16, 64, 9)),
        (("--max_streams=64", "--core.admission.requests_max=50"), (50, 16, 64, 128)),
        (("--max_streams=64", "--core.admission.queued_max=7"), (64, 7, 64, 128)),
        (("--max_streams=64", "--core.placement.sequences_per_worker_max=7"), (64, 16, 7, 128)),
    ],
)
def test_every_bound_of_a_router_follows_unless_it_is_set(
    flags: tuple[str, ...], expected: tuple[int, int, int, int]
) -> None:
    assert bounds(router_of(*flags)) == expected


def test_nothing_else_follows() -> None:
    plain, wide = router_of(), router_of("--max_streams=10000")
    core = replace(wide.core, admission=plain.core.admission, placement=plain.core.placement)
    assert replace(wide, max_streams=None, core=core, front=plain.front) == plain
    assert core == RouterSettings()


@pytest.mark.parametrize("streams", ["0", "-1", "1000001", "many"])
def test_a_number_of_streams_that_cannot_work_is_refused(streams: str) -> None:
    with pytest.raises(TandemError, match="max_streams") as refused:
        router_of(f"--max_streams={streams}")
    assert refused.value.code == "bad_setting"


@pytest.mark.parametrize(
    ("flags", "each"),
    [
        (("--decode=3", "--max-streams=10000"), 3334),
        (("--prefill=0", "--decode=1", "--max-streams=32"), 32),
        (("--auto=4", "--max-streams=2"), 1),
        (("--unified=1", "--max-streams=300"), 150),
    ],
)
def test_workers_compute_an_even_share_of_the_streams_at_once(flags: tuple[str, ...], each: int) -> None:
    router, *workers = members_of(parse(flags).service, PLACES, 8, {})
    streams = flags[-1].partition("=")[2]
    assert router.command.argv[router.command.argv.index("--max_streams") + 1] == streams
    for worker in workers:
        argv = worker.command.argv
        assert argv[argv.index("--scheduler.max_sequences") + 1] == str(each), worker.command.name


def test_without_the_knob_nobody_is_told() -> None:
    for member in members_of(parse([]).service, PLACES, 8, {}):
        assert not {"--max_streams", "--scheduler.max_sequences"} & set(member.command.argv)


def worker(sequences: int, told: int) -> WorkerView:
    found = view("d1", "decode")
    found.sequences_max = told or SEQUENCES_MAX
    found.loaded(load(running=sequences), 0.0, 0.1)
    return found


@pytest.mark.parametrize(
    ("sequences", "told", "most", "is_full"),
    [(255, 0, 4096, False), (256, 0, 4096, True), (511, 512, 4096, False), (512, 512, 4096, True), (7, 512, 7, True)],
)
def test_a_worker_is_full_with_what_its_engine_computes_at_once(
    sequences: int, told: int, most: int, is_full: bool
) -> None:
    settings = PlacementSettings(sequences_per_worker_max=most)
    assert (full(ask(), worker(sequences, told), settings) is not None) == is_full


@pytest.mark.parametrize(
    ("n", "sequences", "is_full"),
    [(1, 9, False), (1, 10, True), (4, 6, False), (4, 7, True), (11, 0, False), (11, 1, True)],
)
@pytest.mark.parametrize(("told", "most"), [(10, 4096), (512, 10)])
def test_a_request_of_many_sequences_needs_room_for_all_of_them_or_is_more_than_any_worker_takes(
    n: int, sequences: int, is_full: bool, told: int, most: int
) -> None:
    found = suitable(ask(sequences=n), [worker(sequences, told)], PlacementSettings(sequences_per_worker_max=most))
    assert found.saturated == is_full
    assert len(found.decodes) == (not is_full)
