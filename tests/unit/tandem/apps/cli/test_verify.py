"""`tandem verify` without servers: what is read of answers, how they are compared, and what is refused."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.apps.cli.main import main as cli
from tandem.apps.cli.verify import command
from tandem.apps.cli.verify.compare import DEFAULTS, Compared, compare, judge
from tandem.apps.cli.verify.divergence import kl
from tandem.apps.cli.verify.options import VerifyOptions, parse, read_thresholds, side_of
from tandem.apps.cli.verify.prompts import Prompt, read_prompts
from tandem.apps.cli.verify.replies import Reply, read_reply
from tandem.apps.cli.verify.report import Report, as_json, as_table, report_of
from tandem.apps.cli.verify.sides import ExistingEndpoint, LaunchedService
from tandem.apps.cli.verify.tokenizers import in_answers
from tandem.core.errors import TandemError


def reply(tokens: str, top: list[dict[str, float]] | None = None, **more: object) -> Reply:
    """Says one letter per token, surely unless `top` says otherwise."""
    sure = [{token: 0.0} for token in tokens]
    return Reply(3, tuple(tokens), tuple(top or sure), tokens, "length", **more)  # type: ignore[arg-type]


# ---- divergence ----

TOPS = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 10.0), min_size=1, max_size=6)


def normalized(weights: dict[str, float], share: float) -> dict[str, float]:
    """Log-probabilities that leave the rest of `share` to others."""
    total = sum(weights.values())
    return {token: math.log(share * weight / total) for token, weight in weights.items()}


@given(TOPS, TOPS, st.floats(0.3, 1.0), st.floats(0.3, 1.0))
def test_a_divergence_is_never_negative_and_0_for_equals(
    first: dict[str, float], second: dict[str, float], share: float, other: float
) -> None:
    one, two = normalized(first, share), normalized(second, other)
    assert kl(one, one) == 0.0
    assert 0.0 <= kl(one, two) < math.inf


@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=8), st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8))
def test_with_everything_reported_it_is_the_divergence_itself(first: list[float], second: list[float]) -> None:
    second = second[: len(first)]
    p, q = [each / sum(first) for each in first], [each / sum(second) for each in second]
    exact = sum(one * math.log(one / other) for one, other in zip(p, q, strict=True))
    names = [str(number) for number in range(len(p))]
    told = kl(
        {name: math.log(each) for name, each in zip(names, p, strict=True)},
        {name: math.log(each) for name, each in zip(names, q, strict=True)},
    )
    assert told == pytest.approx(exact, abs=1e-6)


@given(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=8), st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8))
def test_of_the_same_reported_tokens_it_is_a_lower_bound(first: list[float], second: list[float]) -> None:
    second = second[: len(first)]
    p, q = [each / sum(first) for each in first], [each / sum(second) for each in second]
    exact = sum(one * math.log(one / other) for one, other in zip(p, q, strict=True))
    names = [str(number) for number in range(2)]
    one, other = ({name: math.log(each) for name, each in zip(names, side, strict=False)} for side in (p, q))
    assert kl(one, other) <= exact + 1e-9


def test_tokens_that_only_one_side_reports_count() -> None:
    near, far = {"a": math.log(0.6), "b": math.log(0.3)}, {"c": math.log(0.6), "d": math.log(0.3)}
    assert kl(near, far) > 1.0
    assert kl({"a": 0.0}, {"b": 0.0}) > 10.0


# ---- comparing ----


def test_answers_are_compared_up_to_the_first_difference() -> None:
    top = [{"a": math.log(0.5), "b": math.log(0.5)}] * 4
    found = compare(7, reply("abcd", top), reply("abxd", top))
    assert (found.number, found.tokens, found.agreed, found.diverged_at, found.positions) == (7, 4, 2, 2, 3)
    assert (found.kl_mean, found.first, found.second) == (0.0, "c", "x")


def test_an_answer_that_ends_sooner_parts_there() -> None:
    found = compare(0, reply("ab"), reply("abc"))
    assert (found.diverged_at, found.agreed, found.tokens, found.first, found.second) == (2, 2, 3, "", "c")
    same = compare(0, reply("ab"), reply("ab"))
    assert (same.diverged_at, same.agreed, same.kl_max) == (None, 2, 0.0)


def test_ids_say_more_than_text() -> None:
    assert compare(0, reply("aa", ids=(1, 2)), reply("aa", ids=(1, 3))).agreed == 1
    assert compare(0, reply("aa", ids=(1, 2)), reply("aa")).agreed == 2


def test_the_verdict_names_every_threshold_that_is_not_met() -> None:
    compared = [
        Compared(0, 10, 10, None, 0.0, 0.0, 10),
        Compared(1, 10, 5, 5, 0.5, 2.0, 6),
    ]
    verdict = judge(compared, {"agreement": 0.9, "identical": 0.5, "kl": 0.1, "kl_max": 3.0})
    assert (verdict.agreement, verdict.identical, verdict.first_divergence) == (0.75, 0.5, 5)
    assert verdict.kl == pytest.approx(3 / 16)
    assert [failure.split()[0] for failure in verdict.failures] == ["agreement", "kl"]
    assert not judge(compared[:1], DEFAULTS).failures


# ---- tokenizers ----

PROMPTS = (Prompt(prompt="one"), Prompt(messages=({"role": "user", "content": "two"},)))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({"prompt_ids": (1, 2, 3)}, {"prompt_ids": (1, 5, 3)}, "prompt 0 has at token 1 the id 2 on A and 5 on B"),
        ({"prompt_tokens": 3}, {"prompt_tokens": 4}, "prompt 0 is 3 tokens on A and 4 on B"),
        ({"ids": (7,)}, {"ids": (7,), "tokens": ("x",)}, "the id 7 stands for 'a' on A and for 'x' on B"),
    ],
)
def test_a_tokenizer_that_differs_is_named(first: dict[str, object], second: dict[str, object], told: str) -> None:
    one, other = (msgspec.structs.replace(reply("a"), **each) for each in (first, second))
    (sentence,) = in_answers(PROMPTS[:1], [one], [other])
    assert sentence == f"tokenizer differs: {told}"
    assert in_answers(PROMPTS[:1], [one], [one]) == ()
    chat = in_answers(PROMPTS[1:], [one], [other])[0]
    assert ("chat template" in chat) == ("ids" not in first)


# ---- answers ----


def test_a_completion_is_read() -> None:
    body = {
        "choices": [
            {
                "text": "ab",
                "finish_reason": "length",
                "logprobs": {
                    "tokens": ["a", "b"],
                    "token_logprobs": [-0.1, -0.2],
                    "top_logprobs": [{"a": -0.1, "c": -3.0}, None],
                },
                "token_ids": [5, 6],
                "prompt_token_ids": [1, 2],
            }
        ],
        "usage": {"prompt_tokens": 2},
    }
    found = read_reply(msgspec.json.encode(body))
    assert found == Reply(2, ("a", "b"), ({"a": -0.1, "c": -3.0}, {"b": -0.2}), "ab", "length", (1, 2), (5, 6))


def test_a_chat_answer_is_read_by_bytes() -> None:
    entry = {"token": "é", "logprob": -0.1, "bytes": [195, 169], "top_logprobs": []}
    body = {
        "choices": [{"message": {"content": "é"}, "logprobs": {"content": [entry]}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2},
        "prompt_token_ids": [1, 2],
    }
    found = read_reply(msgspec.json.encode(body))
    assert (found.tokens, found.top, found.prompt_ids, found.ids) == (("c3a9",), ({"c3a9": -0.1},), (1, 2), None)
    assert found.shown(0) == "é"


@pytest.mark.parametrize("body", [b"no", b"{}", b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":1}}'])
def test_an_answer_without_what_is_compared_is_refused(body: bytes) -> None:
    with pytest.raises(TandemError) as refused:
        read_reply(body)
    assert refused.value.code == "engine_failed"


# ---- options ----


def test_prompts_are_text_or_json(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text(
        'Once upon\n\n"{braces}"\n[1, 2]\n{"prompt": "x"}\n{"messages": [{"role": "user", "content": "hi"}]}\n'
    )
    found = read_prompts(file)
    assert [each.prompt for each in found[:4]] == ["Once upon", "{braces}", (1, 2), "x"]
    assert found[4].messages is not None
    assert [each.shown for each in found] == ["Once upon", "{braces}", "(1, 2)", "x", "hi"]


@pytest.mark.parametrize("line", ["{", '{"prompt": 1}', '{"text": "x"}', '{"prompt": "x", "messages": []}', "[]", ""])
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts"
    file.write_text(line)
    with pytest.raises(TandemError, match="--prompts") as refused:
        read_prompts(file)
    assert refused.value.code == "bad_setting"


def test_sides_are_endpoints_files_or_models(tmp_path: Path) -> None:
    running = side_of("A", "http://127.0.0.1:8000/v1", None, "key")
    assert isinstance(running, ExistingEndpoint)
    assert (running.target.port, running.target.key) == (8000, "key")
    started = side_of("B", "demo,engine=simulated,dtype=float32", None, None)
    assert isinstance(started, LaunchedService)
    spec = started.service.spec
    assert (spec.model.source, spec.engine.type, spec.engine.dtype) == ("demo", "simulated", "float32")
    assert [pool.role for pool in spec.pools] == ["unified"]
    service = tmp_path / "service.yaml"
    service.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: ModelService\nmetadata: {name: x}\n"
        "spec: {pools: [{name: all, role: unified}], model: {toolParser: hermes, reasoningParser: none}}\n"
    )
    from_file = side_of("B", str(service), None, None)
    assert isinstance(from_file, LaunchedService)
    assert from_file.service.spec.model.tool_parser == "hermes"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a", "b", "--threshold", "speed=1"], "speed"),
        (["demo", "demo", "--threshold", "kl=much"], "kl=much"),
        (["demo", "demo", "--top", "0"], "--top"),
        (["demo", "demo", "--tokens", "0"], "--tokens"),
        (["demo,colour=red", "demo"], "colour=red"),
        (["http://", "demo"], "http://"),
    ],
)
def test_wrong_use_is_named(tmp_path: Path, arguments: list[str], told: str) -> None:
    file = tmp_path / "prompts"
    file.write_text("x")
    with pytest.raises(TandemError) as refused:
        parse([*arguments, "--prompts", str(file)])
    assert refused.value.code == "bad_setting"
    assert told in refused.value.message


def test_thresholds_add_up() -> None:
    assert read_thresholds(["agreement=0.5,kl=1", "kl=2"]) == {"agreement": 0.5, "kl": 2.0}


@pytest.mark.parametrize(("said", "status"), [("b", 0), ("c", 3), (None, 1)])
def test_what_was_compared_and_what_could_not_be_end_differently(
    said: str | None, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verify(options: VerifyOptions) -> Report:
        if said is None:
            raise TandemError("link_lost", "A does not answer")
        compared = [compare(0, reply("ab"), reply(f"a{said}"))]
        return report_of(("one", "two"), compared, judge(compared, {"agreement": 1.0}), ())

    monkeypatch.setattr(command, "verify", verify)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hi"}\n')
    assert cli(["verify", "http://a:1", "http://b:1", "--prompts", str(prompts)]) == status


def test_a_report_shows_where_answers_part() -> None:
    compared = [compare(0, reply("ab"), reply("ac")), compare(1, reply("a"), reply("a"))]
    report = report_of(("one", "two"), compared, judge(compared, DEFAULTS), ("tokenizer differs: so",))
    table = as_table(report, PROMPTS)
    assert "'b' | 'c' | one" in table
    assert "tokenizer differs: so" in table
    assert table.splitlines()[-1].startswith("FAILED")
    assert msgspec.json.decode(as_json(report))["verdict"]["first_divergence"] == 1
    fine = [compare(0, reply("a"), reply("a"))]
    assert as_table(report_of(("one", "two"), fine, judge(fine, DEFAULTS), ()), PROMPTS).endswith("passed")
