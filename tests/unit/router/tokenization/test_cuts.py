"""Text is cut only where its pieces give the tokens of the whole, whatever stands on both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from router.tokenization.split_points import SplitPoints, certain, find_split_points

VOCABULARY = {"<unk>": 0, "a": 1, "b": 2, "▁a": 3, "▁b": 4, "<": 5, ">": 6, "s": 7, " ": 8, "▁": 9}


def tokenizer(*added: AddedToken) -> Tokenizer:
    built = Tokenizer(models.BPE(VOCABULARY, [], unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    built.normalizer = normalizers.NFC()
    built.add_tokens(list(added))
    return built


def plain(text: str, **how: bool) -> AddedToken:
    return AddedToken(text, **{"normalized": False, **how})


def tokens(built: Tokenizer, text: str) -> list[int]:
    return list(built.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("token", "others", "before", "after"),
    [
        (plain("<s>", normalized=True), (), "a", "\u0338a"),
        (plain("<s>", lstrip=True), (), "a ", "a"),
        (plain("<s>", single_word=True), (), "a", "a"),
        (plain("<s>"), (plain("a<s"),), "a", "a"),
        (plain("<s>"), (plain("a<s>b"),), "a", "b"),
        (plain("<<"), (), "a<", "a"),
        (plain("as"), (plain("b", single_word=True),), "b", "a"),
    ],
)
def test_a_token_whose_match_depends_on_its_surroundings_is_no_place_to_cut(
    token: AddedToken, others: tuple[AddedToken, ...], before: str, after: str
) -> None:
    built = tokenizer(token, *others)
    assert tokens(built, before + token.content + after) != tokens(built, before) + tokens(
        built, token.content + after
    )
    contents = [each.content for each in built.get_added_tokens_decoder().values()]
    assert not certain(token, contents)
    assert find_split_points(built, [before + token.content + after]) is None


def test_where_the_argument_is_not_made_nothing_is_cut() -> None:
    assert not certain(plain("<s>"), ["<s>", "<s>b"])
    assert not certain(plain(" <s>"), [" <s>"])
    assert certain(plain("<s>"), ["<s>", "<", "<t>", "b", "s>"])


STRETCH = st.text(alphabet="ab<>s| \n\u0338\u0301é", max_size=6)
ADDED = st.lists(
    st.builds(
        AddedToken,
        st.text(alphabet="ab<>s |", min_size=1, max_size=4),
        single_word=st.booleans(),
        lstrip=st.booleans(),
        rstrip=st.booleans(),
        normalized=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda token: token.content,
)


@given(added=ADDED, stretches=st.lists(st.tuples(STRETCH, STRETCH), min_size=1, max_size=8), rstrip=st.booleans())
def test_where_the_argument_holds_every_cut_is_right(
    added: list[AddedToken], stretches: list[tuple[str, str]], rstrip: bool
) -> None:
    built = tokenizer(*added, plain("<s>", rstrip=rstrip))
    decoder = built.get_added_tokens_decoder()
    contents = [token.content for token in decoder.values()]
    for token in decoder.values():
        if certain(token, contents):
            for before, after in stretches:
                whole = tokens(built, before + token.content + after)
                assert whole == tokens(built, before) + tokens(built, token.content + after), token


def test_only_tokens_that_the_template_writes_are_looked_for() -> None:
    built = tokenizer(plain("<s>"), plain("<t>"))
    found = find_split_points(built, ["<s>a"])
    assert found is not None
    assert list(found.tokens) == ["<s>"]
    assert find_split_points(built, ["a"]) is None


def test_a_tokenizer_that_pads_cuts_short_or_draws_lots_sees_all_of_a_text() -> None:
    for change in (
        lambda built: built.enable_truncation(5),
        lambda built: built.enable_padding(),
        lambda built: setattr(built, "encode_special_tokens", True),
        lambda built: setattr(built, "model", models.BPE(VOCABULARY, [], unk_token="<unk>", dropout=0.5)),
    ):
        built = tokenizer(plain("<s>"))
        assert find_split_points(built, ["<s>"]) is not None
        change(built)
        assert find_split_points(built, ["<s>"]) is None


def test_places_are_found_in_text_and_in_tokens_alike() -> None:
    cuts = SplitPoints({"<s>": 10, "</s>": 11})
    assert cuts.after("a<s>b</s>", 0) == 1
    assert cuts.after("a<s>b</s>", 1) == 5
    assert cuts.after("a<s>b</s>", 5) is None
    assert cuts.begins("a<s>b</s>", 5)
    assert not cuts.begins("a<s>b</s>", 4)
    characters, at = cuts.places("a<s>b</s>", [1, 10, 2, 2, 11])
    assert (list(characters), list(at)) == ([1, 5], [1, 4])
