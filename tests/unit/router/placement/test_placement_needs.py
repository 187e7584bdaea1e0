"""Who may serve a request that needs an engine's feature or an adapter, and who has the adapter in use already."""

from collections import OrderedDict

import pytest

from router.placement import Unplaced, WorkerView
from router.placement.decision import Needs
from tests.unit.router.placement.test_router_placement import ask, decide, load, placed, view

PIRATE = ask(needs=Needs(adapter="pirate", adapter_hash="h1"))


def serving(worker_id: str, role: str = "decode", running: int = 0, *, warm: bool = False) -> WorkerView:
    """A worker that has the adapter: `warm`, in use."""
    used = OrderedDict[str, None](pirate=None) if warm else OrderedDict[str, None]()
    return view(worker_id, role, adapters={"pirate": "h1"}, warm=used, load=load(running=running))


def test_a_grammar_never_goes_to_an_engine_without_them() -> None:
    """It would fail there, after the client has waited for it."""
    asked = ask(needs=Needs(features=("grammar",)))
    found = placed(asked, view("d1", "decode"), view("d2", "decode", features=("grammar",)))
    assert found.decode == "d2"
    assert "d1 left out: its engine has no grammar" in found.reasons
    assert isinstance(decide(asked, [view("d1", "decode")]), Unplaced)


@pytest.mark.parametrize(
    ("adapters", "why"),
    [
        ({"poet": "h1"}, "it does not serve the adapter pirate"),
        ({"pirate": "h2"}, "its adapter pirate has other content"),
    ],
)
def test_an_adapter_is_computed_with_its_own_weights(adapters: dict[str, str], why: str) -> None:
    found = placed(PIRATE, view("d1", "decode", adapters=adapters), serving("d2"))
    assert found.decode == "d2"
    assert f"d1 left out: {why}" in found.reasons


def test_who_has_the_adapter_in_use_generates_and_computes() -> None:
    """Anybody else makes the request wait for the adapter to be loaded."""
    found = placed(PIRATE, serving("d1"), serving("d2", warm=True))
    assert found.decode == "d2"
    assert "d1 left out: d2 has the adapter pirate in use already" in found.reasons
    found = placed(PIRATE, serving("p1", "prefill"), serving("p2", "prefill", warm=True), serving("d1"))
    assert (found.prefill, found.decode) == ("p2", "d1")
    assert "p1 left out: p2 has the adapter pirate in use already" in found.reasons


def test_where_nobody_or_everybody_has_it_in_use_nobody_is_left_out() -> None:
    for warm in (False, True):
        found = placed(PIRATE, serving("d1", running=9, warm=warm), serving("d2", warm=warm))
        assert found.decode == "d2"
        assert not any("left out" in reason for reason in found.reasons)


@pytest.mark.parametrize(("ahead", "chosen"), [(8, "d2"), (9, "d1")])
def test_who_has_it_in_use_is_given_up_when_somebody_else_is_much_calmer(ahead: int, chosen: str) -> None:
    """Otherwise all requests of an adapter would stay on the first worker that had one."""
    assert placed(PIRATE, serving("d1", running=2), serving("d2", running=2 + ahead, warm=True)).decode == chosen


def test_one_busy_worker_does_not_hide_that_another_is_idle() -> None:
    workers = serving("d1"), serving("d2", running=20, warm=True), serving("d3", running=40)
    assert placed(PIRATE, *workers).decode == "d1"


def test_the_calmest_of_those_that_have_it_in_use_is_compared() -> None:
    workers = serving("d1"), serving("d2", running=30, warm=True), serving("d3", running=3, warm=True)
    found = placed(PIRATE, *workers)
    assert found.decode == "d3"
    assert "d1 left out: d3 has the adapter pirate in use already" in found.reasons
