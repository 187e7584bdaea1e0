"""The hub ends when its routers were taken away or nobody needs it, and never because Serve is silent."""

from tandem.apps.ray.hub_end import IDLE_S, ROUTERS_GONE_S, End, HubEnd


def fold(*looks: tuple[float, bool | None, float]) -> list[End]:
    end = HubEnd(began=0.0)
    return [end.next(routers, idle_s, now) for now, routers, idle_s in looks]


def test_a_hub_with_routers_stays_with_services_and_without() -> None:
    assert fold((1.0, True, 0.0), (1000.0, True, 0.0), (2000.0, True, 900.0)) == ["stay"] * 3


def test_routers_that_have_not_come_yet_are_not_missed() -> None:
    assert fold((1.0, False, 0.0), (1000.0, False, 0.0)) == ["stay"] * 2


def test_services_leave_when_their_routers_were_taken_away() -> None:
    gone = 10.0 + ROUTERS_GONE_S
    assert fold((10.0, True, 0.0), (gone - 0.1, False, 0.0), (gone, False, 0.0), (gone + 9.0, False, 0.1)) == [
        "stay",
        "stay",
        "leave",
        "clear",
    ]


def test_time_in_which_serve_does_not_answer_does_not_count() -> None:
    gone = 1000.0 + ROUTERS_GONE_S
    looks = fold((10.0, True, 0.0), (1000.0, None, 0.0), (gone - 0.1, False, 0.0), (gone, False, 0.0))
    assert looks == ["stay", "stay", "stay", "leave"]


def test_a_hub_without_services_ends_soon_after_its_routers() -> None:
    gone = 10.0 + ROUTERS_GONE_S
    assert fold((10.0, True, 5.0), (gone - 0.1, False, 20.0), (gone, False, 20.0)) == ["stay", "stay", "clear"]


def test_a_hub_that_comes_back_misses_routers_of_its_earlier_life() -> None:
    end = HubEnd(began=100.0, seen=True)
    assert end.next(False, 0.0, 100.0 + ROUTERS_GONE_S - 0.1) == "stay"
    assert end.next(False, 0.0, 100.0 + ROUTERS_GONE_S) == "leave"


def test_who_asks_for_the_end_waits_only_until_nothing_is_left() -> None:
    end = HubEnd(began=0.0, asked=True)
    assert end.next(True, 0.0, 1.0) == "stay"
    assert end.next(None, 0.5, 2.0) == "clear"


def test_a_service_that_is_wanted_keeps_the_hub() -> None:
    end = HubEnd(began=0.0, seen=True)
    end.asked = True
    end.wanted(now=100.0)
    assert not end.asked
    assert end.next(False, 0.0, 100.0 + ROUTERS_GONE_S - 0.1) == "stay"


def test_a_hub_that_never_had_anything_ends_after_a_while() -> None:
    assert fold((IDLE_S - 1.0, False, IDLE_S - 1.0), (IDLE_S, False, IDLE_S)) == ["stay", "clear"]
