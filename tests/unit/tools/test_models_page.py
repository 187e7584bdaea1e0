"""Trying models: what is asked of them, what makes a result good, and what the page says of it."""

import pytest

from tools.models import record
from tools.models.catalogue import CI, ENTRIES, named
from tools.models.code_hash import bare, pins
from tools.models.judge import tally, varied
from tools.models.page import page
from tools.models.prompts import BLOCK_TOKENS, CONTEXT_TOKENS, edges, further, swapped, twins
from tools.models.reference import ReferenceAnswer
from tools.models.trial_types import Checked, Outcome, PromptTally, Twins

GOOD = Outcome(
    "llama", 32, ("FullAttentionSpec",), PromptTally(4, 4), Twins(2, 2), PromptTally(4, 4), Twins(2, 2), vllm="0.32.0"
)


def test_a_hash_counts_code_and_neither_comments_nor_docstrings() -> None:
    source = 'def f(x: int) -> str:\n    """Says it."""\n    return f"{x} # {x}"  # how\n'
    assert bare(source) == bare(source.replace("Says it.", "Says é more.").replace("# how", ""))
    assert bare(source) == 'def f(x: int) -> str:\n    return f"{x} # {x}"'
    assert bare(source) != bare(source.replace("# {x}", "#{x}"))
    two = '"""Module."""\n\n\nclass A:\n    """Doc\n    of two lines."""\n\n    x = 1\n    """What x is."""\n'
    assert bare(two) == "class A:\n    x = 1"
    assert len(pins()) == 4


@pytest.mark.parametrize("block", [16, 32, 96, 160])
def test_prompts_stand_around_edges_and_fit(block: int) -> None:
    lengths = [len(each) for each in edges(block)]
    assert {block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1} <= set(lengths)
    assert len(set(edges(block))) == len(lengths)
    asked = [*edges(block), *further(block), *(each.prompt for each in twins(block))]
    assert max(len(each) for each in asked) + 16 <= CONTEXT_TOKENS
    long = edges(block)[lengths.index(3 * block + 7)]
    shared = [each for each in further(block) if each[: 2 * block - 1] == long[: 2 * block - 1]]
    assert len(shared) == len(further(block))


def test_a_swap_moves_one_whole_block_and_keeps_the_rest() -> None:
    for twin in twins(BLOCK_TOKENS):
        other = swapped(twin, BLOCK_TOKENS)
        assert sorted(other) == sorted(twin.prompt)
        assert sum(a != b for a, b in zip(other, twin.prompt, strict=True)) >= BLOCK_TOKENS
        assert twin.block < len(twin.prompt) // BLOCK_TOKENS


def said(*tokens: int, logprob: float = -1.0, gap: float = 1.0) -> ReferenceAnswer:
    return ReferenceAnswer(tokens, (logprob,) * len(tokens), (gap,) * len(tokens))


def test_what_is_equal_what_is_excused_and_what_is_wrong() -> None:
    prompts = [(1, 2, 3)]
    assert tally("float32", prompts, [said(5, 6)], [said(5, 6)]) == PromptTally(1, 1, 0, 2)
    assert tally("float32", prompts, [said(5, 7)], [said(5, 6, gap=1e-6)]) == PromptTally(1, 0, 1, 2)
    for ours in (said(5, 7), said(5), said(5, 6, logprob=-1.1)):
        (wrong,) = tally("float32", prompts, [ours], [said(5, 6)]).wrong
        assert wrong.startswith("3 prompt tokens: ")
    assert not PromptTally(9, 8, 1).holds, "more than one of ten is no near-tie any more"
    assert PromptTally(10, 9, 1).holds


def test_answers_that_are_always_the_same_prove_nothing() -> None:
    assert "1 different" in varied([said(4, 4, 4)] * 3)
    assert varied([said(*range(8 * n, 8 * n + 8)) for n in range(3)]) == ""


@pytest.mark.parametrize(
    "bad",
    [
        Outcome("llama"),
        Outcome("llama", unified=PromptTally(4, 4), unified_twins=Twins(2, 1)),
        Outcome(
            "llama",
            unified=PromptTally(4, 4),
            unified_twins=Twins(2, 2),
            pair=PromptTally(4, 4),
            pair_twins=Twins(2, 0),
        ),
        Outcome("llama", unified=PromptTally(4, 3, wrong=("x",)), unified_twins=Twins(2, 2)),
        Outcome("llama", unified=PromptTally(4, 4), unified_twins=Twins(2, 2), problem="x"),
    ],
)
def test_a_model_is_good_only_with_all_of_it(bad: Outcome) -> None:
    assert GOOD.holds
    assert not bad.holds
    rows = {"llama": record.Row("llama", "code", "2026-01-01", outcome=bad)}
    assert record.missing(rows, named("llama"), "code") == list(named("llama"))


def test_a_result_of_other_code_is_missing_and_is_shown_as_such() -> None:
    rows = {"llama": record.Row("llama", "old", "2026-01-01", outcome=GOOD)}
    assert record.missing(rows, named("llama"), "old") == []
    assert record.missing(rows, named("llama"), "new") == list(named("llama"))
    text = page(rows, named("llama,mistral"), "new")
    assert "(of code `old`)" in text
    assert "not tried yet" in text
    assert "0 of 2 rows hold" in text


def test_what_was_only_checked_says_so() -> None:
    (entry,) = named("mxfp4")
    row = record.Row("mxfp4", "code", "2026-01-01", checked=Checked("mxfp4", 131072, "2 x H100"))
    assert row.holds
    assert "config, sizing and arguments checked; not run" in page({"mxfp4": row}, (entry,), "code")


def test_the_catalogue_has_what_ci_tries_and_no_name_twice() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names))
    assert set(CI) <= {entry.name for entry in ENTRIES if entry.runs}
    with pytest.raises(KeyError):
        named("nobody")
    assert named("") == ENTRIES


def test_a_row_says_which_kernel_was_off() -> None:
    (entry,) = named("moonlight")
    outcome = Outcome("moonlight", 16, (), PromptTally(4, 4), Twins(2, 2), PromptTally(4, 4), Twins(2, 2))
    text = page({"moonlight": record.Row("moonlight", "code", "2026-01-01", outcome=outcome)}, (entry,), "code")
    assert "float32; without vLLM's kernel rotary_embedding, which is wrong here |" in text
