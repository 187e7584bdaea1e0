"""What a router takes from a worker's word of progress, whichever version of Tandem the worker runs."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.peer import Target
from tandem.core.messages import Progressed
from tests.unit.router.fleet.test_router_knowledge import peer_of
from tests.worlds.redis_stage import hello


class Moving:
    """An attempt that hears of progress."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, int]] = []

    def on_progress(self, now: float, tokens: int) -> None:
        self.heard.append((now, tokens))


@given(tokens=st.lists(st.integers(0, 9000), max_size=6))
def test_every_handle_that_gets_on_is_told_of_however_many_tokens_come_with_it(tokens: list[int]) -> None:
    peer = peer_of(hello("p1"))
    moving = [Moving() for _ in range(4)]
    handles = tuple(peer.open(cast(Target, cast(Any, each))) for each in moving)
    peer.take((Progressed(handles, tuple(tokens)),), 7.0)
    known = [*tokens, 0, 0, 0, 0][:4]
    assert [each.heard for each in moving] == [[(7.0, count)] for count in known]
