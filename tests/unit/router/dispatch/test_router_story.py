"""The facts of a request survive being packed, and tell the same spans afterwards."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.trace import AttemptTrace, DispatchTraceFacts, Summary, Wait, build_spans
from router.dispatch.why_missed import Evidence, Others, Where
from router.placement import Breakdown, Candidate, Placement, SourceChoice

MS = st.floats(0.0, 1e6)
NAMES = st.text("abc-0", min_size=1, max_size=4)
COSTS = st.lists(
    st.tuples(st.builds(Candidate, NAMES, NAMES), st.builds(Breakdown, MS, MS, MS, MS, MS, MS)),
    min_size=1,
    max_size=4,
).map(tuple)
PLACEMENTS = st.builds(
    Placement,
    mode=st.sampled_from(("local", "disaggregated")),
    decode=NAMES,
    prefill=st.none() | NAMES,
    prefill_tokens=st.integers(0, 1000),
    cached_tokens=st.integers(0, 1000),
    costs=COSTS,
    reasons=st.lists(NAMES, max_size=3).map(tuple),
    path=st.sampled_from(("", "tcp")),
    sources=st.lists(st.builds(SourceChoice, NAMES, NAMES, st.integers(0, 9), MS), max_size=2).map(tuple),
)
EVIDENCE = st.builds(
    Evidence,
    prompt_tokens=st.integers(1, 200),
    block_tokens=st.just(16),
    found=st.integers(0, 200),
    best=st.integers(0, 200),
    holder=NAMES,
    known=st.integers(0, 200),
    parted=st.booleans(),
    where=st.none() | st.builds(Where, NAMES, st.integers(0, (1 << 64) - 1), NAMES, MS),
    gone=st.booleans(),
    now=MS,
    others=st.builds(Others, st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
FACTS = st.builds(
    DispatchTraceFacts,
    trace_id=st.just("a" * 32),
    parent_id=st.just("b" * 16),
    dispatch_id=st.sampled_from(("0" * 16, "f" * 16, "c" * 16)),
    received=MS,
    received_wall=MS,
    prompt_tokens=st.integers(1, 1000),
    wait=st.none() | st.builds(Wait, MS, MS, st.lists(NAMES, max_size=2).map(tuple)),
    tried=st.lists(
        st.builds(
            AttemptTrace,
            PLACEMENTS,
            st.integers(1, 3),
            st.just("d" * 16),
            MS,
            MS,
            NAMES,
            st.lists(NAMES, max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    ended=MS,
    outcome=NAMES,
    reason=st.text(max_size=4),
    summary=st.builds(
        Summary,
        st.integers(0, 99),
        st.integers(0, 3),
        st.none() | st.integers(0, 99),
        st.integers(0, 99),
        st.none() | MS,
        st.none() | EVIDENCE,
    ),
)


@given(FACTS)
def test_packed_facts_tell_the_same(facts: DispatchTraceFacts) -> None:
    packed = msgspec.msgpack.encode(facts)
    spans = build_spans(msgspec.msgpack.decode(packed, type=DispatchTraceFacts))
    assert spans == build_spans(facts)
    assert [span.name for span in spans].count("dispatch") == 1
    below = {span.span_id for span in spans} | {facts.parent_id}
    assert all(span.parent_id in below for span in spans)
    own = [span.span_id for span in spans if span.name != "attempt"]
    assert len(set(own)) == len(own)
    assert all(span.trace_id == facts.trace_id for span in spans)
