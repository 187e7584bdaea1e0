"""A small share of `python -m tools.equality`, with everything of each kind; and the comparison can fail."""

from dataclasses import replace

from tandem.core.request import Stopping
from tests.worlds.asking import Answer, Ask, Spoken
from tests.worlds.platform import platform
from tools.equality.compare import ComparisonTally
from tools.equality.models import demo
from tools.equality.requests import few_waves, unmixed
from tools.equality.runs import BLOCK_TOKENS, CHUNK_TOKENS, Setting, compare, truth, truth_with_stops


async def test_tokens_are_those_of_one_engine_over_tcp_and_shared_memory() -> None:
    subject = demo()
    setting = Setting(subject)
    waves, truths = await truth_with_stops(setting, few_waves(subject.prompt, BLOCK_TOKENS, CHUNK_TOKENS))
    assert any(each.sequences[0].stop_reason is not None for each in truths[-1])
    for scheme in ("tcp", "shm"):
        tally = await compare(setting, scheme, waves, truths)
        assert not tally.failures
        assert tally.flips <= 1
        assert tally.prompts >= 40
        assert tally.handed_off >= tally.prompts - 4
        assert tally.tokens_pulled > 0
        assert tally.tokens_reused > 0


async def test_bfloat16_tokens_are_equal_when_chunks_and_batches_are() -> None:
    subject = demo()
    setting = Setting(subject, "bfloat16", prefix_cache=False)
    waves = unmixed(few_waves(subject.prompt, BLOCK_TOKENS, CHUNK_TOKENS))
    tally = await compare(setting, "shm", waves, await truth(setting, waves))
    assert not tally.failures
    assert tally.flips == 0


async def test_the_engine_in_a_process_of_its_own_gives_the_same_tokens() -> None:
    setting = Setting(demo())
    asks = tuple(
        Ask("process", setting.subject.prompt(length, length), Stopping(max_tokens=8)) for length in (17, 64)
    )
    apart = replace(setting.platform("shm"), prefill=1, decode=1, torch=replace(setting.torch, mode="process"))
    (right,) = await truth(setting, (asks,))
    async with platform(apart) as running:
        assert tuple([await running.ask(ask) for ask in asks]) == right


def spoken(*tokens: int) -> Answer:
    return Answer((Spoken(tokens, "text", "length", None),))


def test_a_wrong_token_a_missing_handoff_and_a_computed_prompt_are_failures() -> None:
    ask, tally = Ask("about", (1, 2, 3), Stopping(max_tokens=3)), ComparisonTally("title")
    tally.answered(ask, spoken(4, 5, 6), spoken(4, 5, 6), None)
    tally.answered(ask, spoken(4, 5, 7), spoken(4, 5, 6), None)
    tally.answered(ask, replace(spoken(4, 5, 6), error="worker_lost"), spoken(4, 5, 6), None)
    tally.handed(ask, spoken(4, 5, 6), ())
    assert [failure.partition(": ")[2] for failure in tally.failures] == [
        "position 3 is 7, right is 6",
        "error worker_lost",
        "was not handed off",
    ]
