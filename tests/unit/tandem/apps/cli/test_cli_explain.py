"""A request's spans become a story with every figure in it, and what is missing from a hand-off is named."""

import msgspec
import pytest

from tandem.apps.cli.request_trace import RequestTrace, assemble_trace, handoff_problems, place_of
from tandem.apps.cli.timeline import render
from tandem.core.spans import Attribute, Span

COSTS = "prefill-0→decode-0: 21.0 ms = queue 0.0 + prefill 20.0\ndecode-0: 50.0 ms = queue 0.0 + prefill 50.0"


def span(
    name: str, start_s: float, end_s: float, parent: str = "root", span_id: str = "", **attributes: Attribute
) -> Span:
    worker = attributes.get("worker", "router")
    service = "router" if worker == "router" else "prefill_worker"
    return Span("t" * 32, span_id or f"{worker}-{name}", parent, name, service, start_s, end_s, attributes)


def handoff() -> list[Span]:
    """A request through prefill, transfer and decode, as three processes tell it, in no particular order."""
    pull: dict[str, Attribute] = {"bytes": 3 << 20, "blocks": 12, "path": "shm", "gb_per_s": 1.25, "exposed_ms": 0.5}
    prefill: dict[str, Attribute] = {"tokens_computed": 180, "tokens_reused": 16, "chunks": 2}
    return [
        span("kv.pull", 10.02, 10.1, "a", worker="decode-0", **pull),
        span("decode", 10.1, 10.5, "a", worker="decode-0", tokens=39, preemptions=0),
        span("prefill", 10.01, 10.1, "a", worker="prefill-0", **prefill),
        span("request", 10.0, 10.5, "", "root", request_id="chatcmpl-1", outcome="ok", prompt_tokens=196),
        span("tokenize", 10.0, 10.001),
        span("place", 10.002, 10.002, "a", mode="disaggregated", prefill="prefill-0", decode="decode-0", costs=COSTS),
        span("attempt", 10.002, 10.5, "root", "a", number=1, outcome="done"),
    ]


def test_the_story_begins_with_the_request_and_nests_stages() -> None:
    story = assemble_trace(handoff())
    assert [one.name for one in story.spans] == [
        "request",
        "tokenize",
        "attempt",
        "place",
        "prefill",
        "kv.pull",
        "decode",
    ]
    assert [story.depth(one) for one in story.spans] == [0, 1, 1, 2, 2, 2, 2]


def test_the_text_has_every_figure() -> None:
    text = render(assemble_trace(handoff()), width=100)
    for figure in (
        "chatcmpl-1: ok in 500.0 ms",
        "3.0 MiB in 12 blocks over shm to decode-0, 1.25 GB/s, 0.5 ms of it after",
        "prefill-0 computed 180, reused 16 in 2 chunks",
        "decode-0 generated 39, computed none of the prompt",
        "disaggregated: prefill-0 → decode-0",
        "won  prefill-0→decode-0: 21.0 ms",
        "lost decode-0: 50.0 ms",
        "retries    0",
    ):
        assert figure in text, figure


def leading_blanks(line: str) -> int:
    """Columns of a line before its bar begins."""
    return next(index for index, character in enumerate(line) if character in "▏▎▍▌▋▊▉█")


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_bars_fit_the_line_and_stand_where_they_belong(width: int) -> None:
    lines = render(assemble_trace(handoff()), width).splitlines()[3:10]
    assert all(len(line) <= max(width, 50) for line in lines)
    decode = next(line for line in lines if " decode " in line)
    prefill = next(line for line in lines if " prefill " in line)
    assert leading_blanks(decode) > leading_blanks(prefill)


def test_two_tellings_of_one_span_become_one() -> None:
    root = span("request", 10.0, 10.6, "", "root", completion_tokens=40)
    story = assemble_trace([*handoff(), root])
    assert len(story.named("request")) == 1
    assert (story.root.attributes["completion_tokens"], story.root.attributes["outcome"]) == (40, "ok")
    assert story.root.end_s == 10.6


def test_retries_are_listed() -> None:
    first = span("attempt", 10.001, 10.002, "root", "z", number=1, outcome="worker_lost", notes="decode-1 went away")
    text = render(assemble_trace([*handoff(), first]))
    assert "retries    1" in text
    assert "attempt 1: worker_lost (decode-1 went away)" in text


def test_a_failed_pull_says_why() -> None:
    spans = [msgspec.structs.replace(one, attributes={**one.attributes, "failed": "kv_gone"}) for one in handoff()]
    assert "failed: kv_gone" in render(assemble_trace(spans))


def test_a_lone_root_can_be_told() -> None:
    text = render(
        assemble_trace([span("request", 1.0, 1.0, "", "root", outcome="invalid_request", reason="no model")])
    )
    assert "reason: no model" in text


def test_a_whole_handoff_has_no_problems() -> None:
    assert handoff_problems(assemble_trace(handoff())) == []


def story_without(name: str) -> RequestTrace:
    return assemble_trace([one for one in handoff() if one.name != name])


@pytest.mark.parametrize(
    ("name", "said"),
    [("kv.pull", "no KV bytes"), ("prefill", "no prefill worker"), ("decode", "decoded nothing")],
)
def test_each_missing_part_is_named(name: str, said: str) -> None:
    assert any(said in problem for problem in handoff_problems(story_without(name)))


def test_a_decode_worker_that_computed_the_prompt_is_named() -> None:
    again = span("prefill", 10.1, 10.2, "a", worker="decode-0", tokens_computed=4)
    assert handoff_problems(assemble_trace([*handoff(), again])) == [
        "decode-0 computed 4 prompt tokens that were to be transferred"
    ]


def test_a_pull_that_failed_does_not_count() -> None:
    spans = [
        msgspec.structs.replace(one, attributes={**one.attributes, "failed": "x"}) if one.name == "kv.pull" else one
        for one in handoff()
    ]
    assert any("no KV bytes" in problem for problem in handoff_problems(assemble_trace(spans)))


def test_a_place_is_a_worker_or_a_service() -> None:
    assert place_of(span("queue", 0, 1, worker="decode-0")) == "decode-0"
    assert place_of(span("queue", 0, 1)) == "router"


def test_the_text_says_where_cached_tokens_were_found_and_why_there_are_no_more() -> None:
    missed: dict[str, Attribute] = {
        "missed": "diverged",
        "missed_token": 40,
        "missed_because": "it differs at token 40",
    }
    place: dict[str, Attribute] = {
        "missed_line": 3,
        "missed_column": 7,
        "missed_before": "one\ntwo",
        "missed_after": "3",
    }
    root = span("request", 10.0, 10.5, "", "root", prompt_tokens=60, cached_hbm=32, cached_peer=8)
    operator: dict[str, Attribute] = {"operator.missed_because": "another tenant's"}
    text = render(assemble_trace([root, span("dispatch", 10.0, 10.5, **missed, **place, **operator)]))
    assert "cached     hbm 32, peer 8 of 60 prompt tokens" in text
    assert "missed     diverged: it differs at token 40 (line 3, column 7)" in text
    assert r'"one\ntwo" ▸ "3"' in text
    assert "for operators: another tenant's" in text
    bare = render(assemble_trace([root, span("dispatch", 10.0, 10.5, **missed)]))
    assert "missed     diverged: it differs at token 40\n" in bare
    assert "▸" not in bare


def test_blocks_of_earlier_requests_are_told_from_a_hand_off() -> None:
    dram: dict[str, Attribute] = {"kind": "dram", "bytes": 1 << 20, "blocks": 4, "path": "dram", "gb_per_s": 2.0}
    peer: dict[str, Attribute] = {**dram, "kind": "peer", "holder": "prefill-1", "path": "tcp"}
    brought = [
        span("kv.pull", 10.005, 10.008, "a", "x", worker="prefill-0", **dram),
        span("kv.pull", 10.008, 10.01, "a", "y", worker="prefill-0", **peer),
    ]
    story = assemble_trace([*handoff(), *brought])
    assert handoff_problems(story) == []
    text = render(story)
    assert "fetched    1.0 MiB in 4 blocks from its dram over dram to prefill-0, 2 GB/s" in text
    assert "fetched    1.0 MiB in 4 blocks from peer prefill-1 over tcp to prefill-0, 2 GB/s" in text
    assert "transfer   3.0 MiB in 12 blocks over shm to decode-0" in text
