"""The answer that a client may come back for: where a listener may join, and that it gets the rest once."""

from dataclasses import dataclass, field

import pytest

from router.dispatch.answer_log import AnswerLog
from router.generation import Generation, Usage
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.messages import SequenceOutput
from tandem.core.request import Sampling, Stopping
from tandem.core.spans import TraceContext
from tests.worlds.outputs import Speaker
from tests.worlds.outputs import said as output


@dataclass
class Listener:
    """Keeps what it hears."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    pieces: int = 0
    usage: Usage | None = None
    error: TandemError | None = None

    def output(self, output: SequenceOutput) -> None:
        self.tokens += output.tokens
        self.text += output.text
        self.pieces += 1

    def done(self, usage: Usage) -> None:
        self.usage = usage

    def failed(self, error: TandemError) -> None:
        self.error = error


def generation(n: int = 1, max_tokens: int = 1000) -> Generation:
    return Generation(
        request_id="req",
        model="demo",
        tenant="t",
        tenant_salt="",
        prompt=pack_tokens(range(4)),
        n=n,
        seed=1,
        sampling=Sampling(),
        stopping=Stopping(max_tokens=max_tokens),
        timeout_s=1.0,
        received=0.0,
        received_wall=0.0,
        trace=TraceContext("a" * 32, "b" * 16),
        resume=b"facts",
    )


def said(*events: tuple[int, ...], finish: str | None = None, whole: bool = True) -> AnswerLog:
    """A log of these events of the first of two sequences; each token is a letter of the text."""
    log, position = AnswerLog(generation(n=2)), 1
    speaker = Speaker(log)
    for number, tokens in enumerate(events, start=1):
        last = finish if number == len(events) else None
        speaker.say(0, position, tokens, "".join(map(chr, tokens)), (), last)
        position += len(tokens)
    log.whole = whole
    return log


A, B, C, D, E, F = range(97, 103)


def test_a_client_may_come_back_after_every_event() -> None:
    log = said((A,), (B, C, D), (E, F))
    assert [log.chars((count, 0))[0] for count in (0, 1, 4, 6)] == [0, 1, 4, 6]


def test_before_its_first_event_a_stream_has_no_text() -> None:
    """Else who returns has to name a place that it was never told."""
    log = said()
    assert log.chars((0, 0)) == (0, 0)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_place_inside_of_an_event_is_refused_not_guessed(count: int) -> None:
    """Else the client would get tokens twice, or lose the text of some."""
    with pytest.raises(TandemError, match=f"position {count} is inside of an event") as refused:
        said((A,), (B, C, D), (E, F)).chars((count, 0))
    assert (refused.value.code, refused.value.param) == ("invalid_request", "Last-Event-ID")


@pytest.mark.parametrize("after", [(), (1,), (1, 0, 0)])
def test_a_place_has_a_position_for_each_sequence(after: tuple[int, ...]) -> None:
    with pytest.raises(TandemError, match="2 positions are needed"):
        said((A,), (B,)).listen(Listener(), after)


@pytest.mark.parametrize(
    ("finish", "whole", "after", "taken"),
    [
        (None, True, (2, 0), True),
        (None, True, (3, 0), False),
        # The router that sent more is gone, and what it sent is generated again: up to the request's own bound.
        (None, False, (3, 0), True),
        (None, False, (1000, 1000), True),
        (None, False, (1001, 0), False),
        (None, False, (2, 1001), False),
        # Of a sequence that has finished nothing more can have been sent.
        ("stop", False, (2, 0), True),
        ("stop", False, (3, 0), False),
    ],
)
def test_who_has_more_than_was_sent_is_refused_unless_it_may_come_from_a_router_that_is_lost(
    finish: str | None, whole: bool, after: tuple[int, int], taken: bool
) -> None:
    log, listener = said((A,), (B,), finish=finish, whole=whole), Listener()
    if taken:
        log.listen(listener, after)
        assert log.listened_to
    else:
        with pytest.raises(TandemError, match="tokens so far"):
            log.listen(listener, after)
        assert not log.listened_to


def test_once_the_answer_has_ended_only_what_it_has_can_have_been_sent() -> None:
    log = said((A,), (B,), whole=False)
    log.done(Usage(4, 2, 0))
    with pytest.raises(TandemError, match="sequence 0 has 2 tokens so far, not 3"):
        log.listen(Listener(), (3, 0))


def test_a_client_that_has_more_hears_only_what_comes_after_it() -> None:
    log, listener = said((A,), (B,), whole=False), Listener()
    log.listen(listener, (3, 0))
    for position, token in ((3, C), (4, D)):
        log.output(output(0, position, (token,), chr(token), offset=position - 1))
    assert (listener.tokens, listener.text) == ([D], "d")


@pytest.mark.parametrize(("tokens", "pieces"), [(256, 1), (257, 2), (512, 2), (513, 3)])
def test_a_client_that_joins_late_gets_the_rest_in_few_pieces(tokens: int, pieces: int) -> None:
    log, listener = said(*[(A,)] * tokens), Listener()
    log.listen(listener, (0, 0))
    assert (listener.pieces, listener.tokens) == (pieces, [A] * tokens)
    assert listener.text == "a" * tokens


def test_a_newer_listener_ends_the_one_before_and_only_the_one_that_listens_can_leave() -> None:
    log, first, second = said((A,)), Listener(), Listener()
    log.listen(first, (0, 0))
    log.listen(second, (1, 0))
    assert first.error is not None
    assert first.error.code == "taken_over"
    assert not log.leave(first)
    log.output(output(0, 2, (B,), "b", offset=1))
    assert (first.tokens, second.tokens) == ([A], [B])
    assert log.leave(second)
    assert not log.listened_to
    log.output(output(0, 3, (C,), "c", offset=2))
    assert second.tokens == [B]


def test_who_comes_back_after_the_end_hears_how_it_ended() -> None:
    log, late = said((A,), (B,)), Listener()
    error = TandemError("engine_failed", "it broke")
    log.failed(error)
    assert log.ended
    log.listen(late, (1, 0))
    assert (late.tokens, late.error) == ([B], error)
    assert not log.listened_to
    done, after = said((A,), finish="stop"), Listener()
    usage = Usage(4, 1, 0)
    done.done(usage)
    done.listen(after, (1, 0))
    assert (after.tokens, after.usage, after.error) == ([], usage, None)
