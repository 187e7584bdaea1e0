"""Why a prompt missed: every reason from its evidence, what is remembered, and what nobody is told of others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch import reuse_history
from router.dispatch.reuse_history import KnownPrefix, PromptOwner, ReuseHistory
from router.dispatch.why_missed import NEVER_SEEN, Evidence, Others, Where, why_missed
from tandem.core.kv import pack_tokens

BLOCK = 4
HERE = Where("p1", 7, "chatcmpl-1", 10.0)
OWN = PromptOwner("a", "salt-a", b"root-1", "r1")


def because(prompt_tokens: int = 40, found: int = 0, **known: object) -> tuple[str, int] | None:
    """Kind and token of the reason."""
    reason = why_missed(Evidence(prompt_tokens, 16, found, **known))  # type: ignore[arg-type]
    return None if reason is None else (reason.kind, reason.token)


def test_what_was_found_whole_has_no_reason() -> None:
    assert because(40, found=32) is None
    assert because(32, found=31) is None, "the last token of a prompt is always computed"
    assert because(40, found=39) is None
    assert because(40, found=31) is not None
    assert because(32, found=30) is not None


def test_every_reason_names_the_first_token_that_had_to_be_computed() -> None:
    assert because(9) == ("short", 0)
    assert because(64, found=16, best=48, holder="p3") == ("elsewhere", 16)
    assert because(64, found=16, best=16, known=50, where=HERE) == ("evicted", 16)
    assert because(64, found=16, best=16, known=50, where=HERE, gone=True) == ("worker_lost", 16)
    assert because(64, found=16, best=16, known=50) == ("evicted", 16)
    assert because(64, found=48, best=48, known=50, parted=True) == ("diverged", 50)
    assert because(64, found=48, best=48, known=50) == ("new", 50)
    assert because(64, found=48, best=48, known=20) == ("new", 48), "an answer was cached beyond its prompt"
    assert because(64, found=16, best=16, known=16) == ("new", 16), "an earlier prompt was one block long"
    assert because(64, known=15) == ("never_seen", 0), "a part of a block is nothing that could be reused"
    assert because(64) == ("never_seen", 0)
    assert because(64, known=3, parted=True) == ("diverged", 3)


def test_an_eviction_says_where_and_when_it_was_used_last() -> None:
    reason = why_missed(Evidence(64, 16, 0, known=64, where=HERE, now=12.5))
    assert reason is not None
    assert "p1, which has evicted them since; chatcmpl-1 used them there 2.5 s before" in reason.sentence


@pytest.mark.parametrize(
    ("others", "kind"),
    [
        (Others(salt=True), "other_salt"),
        (Others(revision=True), "other_revision"),
        (Others(variant=True), "other_lora"),
        (Others(tenant=True), "never_seen"),
        (Others(), "never_seen"),
    ],
)
def test_the_same_text_under_another_root_is_told_apart(others: Others, kind: str) -> None:
    assert because(64, others=others) == (kind, 0)
    assert because(64, known=3, others=others) == (kind, 0)


def test_that_another_tenant_asked_the_same_is_for_operators_only() -> None:
    alone, beside = (why_missed(Evidence(64, 16, 0, others=Others(tenant=tenant))) for tenant in (False, True))
    assert alone is not None
    assert beside is not None
    assert (beside.kind, beside.token, beside.sentence) == (alone.kind, alone.token, alone.sentence)
    assert beside.sentence == NEVER_SEEN
    assert alone.for_operator == ""
    assert "another tenant" in beside.for_operator


# ---- what is remembered ----


def tokens(*ids: int) -> bytes:
    return pack_tokens(ids)


def ask(history: ReuseHistory, prompt: bytes, owner: PromptOwner = OWN, where: Where = HERE) -> KnownPrefix:
    """A prompt comes; gives what was known of it before."""
    known = history.look(owner, prompt, where)
    history.begun(owner, prompt, BLOCK)
    return known


def test_a_prompt_is_known_up_to_the_token_where_it_parts_from_all_earlier_ones() -> None:
    for asked, tokens_known, parted in (
        (tokens(1, 2, 3, 4, 9, 9), 4, True),
        (tokens(1, 2, 3, 4, 5, 6, 7), 6, False),
        (tokens(1, 2, 3), 3, False),
        (tokens(1, 2, 3, 4, 5, 6), 6, False),
        (tokens(8, 2), 0, False),
    ):
        history = ReuseHistory(1 << 20)
        ask(history, tokens(1, 2, 3, 4, 5, 6))
        known = ask(history, asked)
        assert (known.tokens, known.parted) == (tokens_known, parted)


def test_parts_of_a_prompt_were_last_where_the_latest_request_used_them() -> None:
    history = ReuseHistory(1 << 20)
    ask(history, tokens(1, 2, 3, 4, 5, 6))
    there, elsewhere = Where("p2", 1, "chatcmpl-2", 11.0), Where("p3", 1, "chatcmpl-3", 12.0)
    ask(history, tokens(1, 2, 3, 9), where=there)
    known = ask(history, tokens(1, 2, 3, 4, 5, 6, 7, 8), where=elsewhere)
    assert [known.where(token) for token in (0, 2, 3, 5)] == [there, there, HERE, HERE]
    assert known.where(6) is None
    known = ask(history, tokens(1, 2, 3, 4, 5, 6, 7, 8))
    assert [known.where(token) for token in (0, 5, 7)] == [elsewhere] * 3


def test_no_tenant_salt_or_root_finds_what_another_one_asked() -> None:
    prompt = tokens(*range(8))
    others = (
        PromptOwner("b", "salt-b", b"root-1", "r1"),
        PromptOwner("a", "salt-a/x", b"root-1", "r1"),
        PromptOwner("a", "salt-a", b"root-2", "r2"),
        PromptOwner("a", "salt-a", b"root-3", "r1"),
    )
    seen = (Others(tenant=True), Others(salt=True), Others(revision=True), Others(variant=True))
    for other, expected in zip(others, seen, strict=True):
        history = ReuseHistory(1 << 20)
        ask(history, prompt, other)
        assert history.others(OWN, prompt, BLOCK) == expected
        assert history.others(OWN, tokens(*range(1, 9)), BLOCK) == Others()
        assert ask(history, prompt).tokens == 0
        assert ask(history, prompt).tokens == 8


def test_of_too_many_beginnings_those_are_forgotten_that_nobody_has_asked_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reuse_history, "_STARTS_MAX", 3)
    history = ReuseHistory(1 << 20)
    for first in (1, 2, 3, 1, 4, 5):
        ask(history, tokens(first, *range(BLOCK)), OWNERS[1])
    known = [history.others(OWNERS[0], tokens(first, *range(BLOCK)), BLOCK) != Others() for first in range(1, 6)]
    assert known == [True, False, False, True, True]


def test_of_too_many_owners_of_one_beginning_the_latest_are_remembered() -> None:
    """An owner that asks again is one of the latest, and takes one place."""
    history, prompt = ReuseHistory(1 << 20), tokens(*range(BLOCK))
    for number in (0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 8):
        ask(history, prompt, PromptOwner("a", f"salt-{number}", b"root-1", "r1"))
    askers = [PromptOwner("a", f"salt-{number}", b"root-2", "r1") for number in range(9)]
    known = [number for number, owner in enumerate(askers) if history.others(owner, prompt, BLOCK).variant]
    assert known == [0, 2, 3, 4, 5, 6, 7, 8]


OWNERS = tuple(
    PromptOwner(tenant, salt, root, revision)
    for tenant, salt in (("a", "salt-a"), ("a", "salt-a/x"), ("b", "salt-b"))
    for root, revision in ((b"root-1", "r1"), (b"root-2", "r2"))
)
SHORT = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.sampled_from(OWNERS), SHORT), max_size=12), st.sampled_from(OWNERS), SHORT)
def test_others_are_those_who_asked_for_the_same_whole_block(
    asked: list[tuple[PromptOwner, list[int]]], owner: PromptOwner, prompt: list[int]
) -> None:
    """Who is told of another salt or revision changes settings for it: there has to be one, and a block of it."""
    history = ReuseHistory(1 << 20)
    for each, ids in asked:
        ask(history, tokens(*ids), each)
    alike = {each for each, ids in asked if len(ids) >= BLOCK and ids[:BLOCK] == prompt[:BLOCK]}
    own = {each for each in alike if each.tenant == owner.tenant}
    assert history.others(owner, tokens(*prompt), BLOCK) == Others(
        salt=any(each.root == owner.root for each in own - {owner}),
        revision=any(each.tenant_salt == owner.tenant_salt for each in own - {owner}),
        tenant=alike != own,
    )


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12))
def test_what_is_known_is_the_longest_beginning_of_any_prompt(prompts: list[list[int]]) -> None:
    history = ReuseHistory(1 << 20)
    for number, prompt in enumerate(prompts):
        earlier = prompts[:number]
        known = ask(history, pack_tokens(prompt))
        assert known.tokens == max((_common(prompt, other) for other in earlier), default=0)
        beyond = [other for other in earlier if _common(prompt, other) == known.tokens < len(other)]
        parted = bool(beyond) and 0 < known.tokens < len(prompt)
        assert known.parted == parted
        assert len(known.places) == 0 or known.places[-1][0] == known.tokens


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_what_is_remembered_is_bounded_in_bytes() -> None:
    history = ReuseHistory(50_000)
    for number in range(200):
        ask(history, tokens(number, *range(500)))
        assert history.size_bytes <= 50_000
    assert ask(history, tokens(199, *range(500))).tokens == 501
    assert ask(history, tokens(0, *range(500))).tokens == 0
