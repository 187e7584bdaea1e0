"""What counts as a failed attempt, and what does not."""

import pytest

from router.dispatch.retry_state import RetryState
from router.settings import RetrySettings


@pytest.mark.parametrize("way", ["moved", "prompt_moved", "draining"])
def test_an_attempt_that_is_given_up_for_one_elsewhere_is_no_failure(way: str) -> None:
    """Its request has as many attempts left as before: neither the client nor the worker has done anything wrong."""
    state = RetryState(RetrySettings(attempts_max=2, fruitless_attempts_max=2))
    for _ in range(5):
        state.begin()
        if way == "draining":
            assert state.ended("draining", "it leaves", fruitful=False) is None
        else:
            getattr(state, way)()
    assert state.prompt_moves == (5 if way == "prompt_moved" else 0)
    state.begin()
    assert state.ended("worker_lost", "it died", fruitful=True) is None
    state.begin()
    assert state.ended("worker_lost", "it died", fruitful=True) is not None
