"""Quotas never let through more than their rate, and say truly when to come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.quota import Quota, Quotas
from tandem.core.errors import TandemError


def test_requests_over_the_minute_are_refused_with_the_wait_and_served_after_it() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=2)
    quotas.admit("t", quota, 10, now=0.0)
    quotas.admit("t", quota, 10, now=0.0)
    with pytest.raises(TandemError) as refused:
        quotas.admit("t", quota, 10, now=0.0)
    assert refused.value.code == "over_quota"
    assert refused.value.retry_after_s == pytest.approx(30.0)
    quotas.admit("t", quota, 10, now=30.1)


def test_output_tokens_put_the_bucket_into_debt() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=600)
    quotas.admit("t", quota, 100, now=0.0)
    quotas.spend("t", quota, 800, now=0.0)
    with pytest.raises(TandemError) as refused:
        quotas.admit("t", quota, 100, now=0.0)
    assert refused.value.retry_after_s == pytest.approx(40.0)


def test_a_prompt_over_a_whole_minute_needs_a_full_bucket_and_is_not_refused_for_ever() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=60)
    quotas.admit("t", quota, 1000, now=0.0)
    with pytest.raises(TandemError):
        quotas.admit("t", quota, 1000, now=60.0)
    quotas.admit("t", quota, 1000, now=1001.0)


def test_a_refusal_charges_nothing_and_tenants_do_not_share() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=1, tokens_per_minute=100)
    quotas.admit("a", quota, 100, now=0.0)
    for _ in range(5):
        with pytest.raises(TandemError):
            quotas.admit("a", quota, 1, now=1.0)
    quotas.admit("b", quota, 100, now=1.0)
    quotas.admit("a", quota, 1, now=60.0)


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(0, 50)), max_size=80),
)
def test_admitted_tokens_never_exceed_the_rate(per_minute: int, arrivals: list[tuple[float, int]]) -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=per_minute)
    now, admitted, largest = 0.0, 0, 0
    for gap_s, tokens in arrivals:
        now += gap_s
        refusal = _refusal(quotas, quota, tokens, now)
        if refusal is None:
            admitted += tokens
            largest = max(largest, tokens)
            assert admitted <= per_minute + now * per_minute / 60.0 + largest + 1e-6
            continue
        wait_s = refusal.retry_after_s
        assert wait_s is not None
        assert wait_s > 0
        assert _refusal(quotas, quota, tokens, now + wait_s + 1e-6) is None
        now += wait_s + 1e-6
        admitted += tokens
        largest = max(largest, tokens)


def _refusal(quotas: Quotas, quota: Quota, tokens: int, now: float) -> TandemError | None:
    try:
        quotas.admit("t", quota, tokens, now)
    except TandemError as error:
        return error
    return None
