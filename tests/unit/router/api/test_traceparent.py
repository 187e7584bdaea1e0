"""W3C `traceparent` headers: what is a context, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.spans import TraceContext, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_what_is_written_can_be_read(trace: int, span: int, sampled: bool) -> None:
    context = TraceContext(f"{trace:032x}", f"{span:016x}", sampled)
    assert parse_traceparent(context.header()) == context
    assert parse_traceparent(f" {context.header()}\t") == context


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-011",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}0-01",
    ],
)
def test_anything_else_is_no_context(header: str) -> None:
    assert parse_traceparent(header) is None


def test_later_versions_may_say_more_and_flags_but_the_first_mean_nothing() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-00-more-of-it") == TraceContext(TRACE, SPAN, sampled=False)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-fe") == TraceContext(TRACE, SPAN, sampled=False)
