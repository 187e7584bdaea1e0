"""Where cached tokens were found: in answers and streams, in metrics, summed over prompts; and what is refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from protos import inference_pb2 as pb
from router.api.auth import load_keys
from router.api.grpc.rpc import decode_generate, encode_usage
from router.generation import Generation, Sink, Usage
from tandem.core.tiers import TIERS, bounded, summed
from tests.worlds.front_stage import Script, Stage, chat_body, on_stage
from tests.worlds.outputs import said

FOUND = {"hbm": 2, "peer": 3}


def found(generation: Generation, sink: Sink) -> None:
    """Answers one token of a prompt of which some was cached."""
    sink.output(said(0, 1, (65,), "A", (), "length"))
    sink.done(Usage(generation.prompt_tokens, 1, 5, FOUND))


def untold(generation: Generation, sink: Sink) -> None:
    """The same, but no worker has said where."""
    sink.output(said(0, 1, (65,), "A", (), "length"))
    sink.done(Usage(generation.prompt_tokens, 1, 5))


DETAILS = {"cached_tokens": 5, "cached_tokens_by_tier": {"hbm": 2, "dram": 0, "nvme": 0, "peer": 3, "store": 0}}


def test_an_answer_and_a_stream_say_where_cached_tokens_were_found() -> None:
    async def test(stage: Stage) -> None:
        whole = (await stage.chat()).json()["usage"]
        assert whole["prompt_tokens_details"] == DETAILS
        streamed = await stage.chat(stream=True, stream_options={"include_usage": True})
        *_, last, done = streamed.events()
        assert done == "[DONE]"
        assert last["usage"] == whole
        metrics = stage.meter.render().decode()
        assert 'tandem_cached_tokens_total{tier="hbm"} 4.0' in metrics
        assert 'tandem_cached_tokens_total{tier="peer"} 6.0' in metrics
        (root,) = [span for span in stage.recorder.spans(whole_id(stage)) if span.name == "request"]
        assert (root.attributes["cached_hbm"], root.attributes["cached_peer"]) == (2, 3)

    on_stage(test, Script(found))


def whole_id(stage: Stage) -> str:
    return stage.script.started[0].generation.request_id


def test_what_no_worker_told_is_not_made_up() -> None:
    async def test(stage: Stage) -> None:
        details = (await stage.chat()).json()["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 5}
        assert 'tandem_cached_tokens_total{tier="unknown"} 5.0' in stage.meter.render().decode()

    on_stage(test, Script(untold))


def test_several_prompts_are_summed() -> None:
    async def test(stage: Stage) -> None:
        details = (await stage.complete(["first", "second"])).json()["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == 10
        assert details["cached_tokens_by_tier"]["peer"] == 6

    on_stage(test, Script(found))


def test_grpc_says_it_too() -> None:
    usage = pb.GenerateChunk.FromString(encode_usage("id", Usage(9, 1, 5, FOUND))).usage
    assert usage.cached_tokens_by_tier == pb.TierTokens(hbm=2, peer=3)
    assert not pb.GenerateChunk.FromString(encode_usage("id", Usage(9, 1, 5))).usage.HasField("cached_tokens_by_tier")


def test_counts_are_those_of_known_tiers_and_of_no_more_tokens_than_there_are() -> None:
    assert bounded({"hbm": 4, "dram": 4, "moon": 9, "nvme": -1}, 6) == {"hbm": 4, "dram": 2}
    assert bounded({}, 6) == {}
    assert summed([{"hbm": 1}, {"hbm": 2, "store": 1}]) == {"hbm": 3, "store": 1}
    assert summed([{"hbm": 1}, None]) is None
    assert set(TIERS) == {field.name for field in pb.TierTokens.DESCRIPTOR.fields}


# ---- hints and refusals ----


def test_a_cache_key_is_a_hint_that_no_other_tenant_can_give(tmp_path: Path) -> None:
    content = {"salt_key": "x" * 16, "keys": {"a": "a", "b": "b"}}
    (tmp_path / "keys").write_bytes(msgspec.json.encode(content))

    async def test(stage: Stage) -> None:
        async def key_of(api_key: str, **parameters: Any) -> str:
            sent = chat_body(**parameters)
            answer = await stage.post("/v1/chat/completions", sent, authorization=f"Bearer {api_key}")
            assert answer.status == 200
            return stage.script.started[-1].generation.cache_key

        mine = await key_of("a", prompt_cache_key="shop")
        assert mine == await key_of("a", prompt_cache_key="shop", user="u", safety_identifier="s")
        apart = [
            await key_of("b", prompt_cache_key="shop"),
            await key_of("a", prompt_cache_key="shop", cache_salt="x"),
            await key_of("a", prompt_cache_key="other"),
        ]
        assert len({mine, *apart}) == 4
        assert await key_of("a") == await key_of("a", prompt_cache_key="") == ""

    on_stage(test, keys=load_keys(tmp_path / "keys"))


@pytest.mark.parametrize("key", [7, "x" * 257, ["x"]])
def test_a_cache_key_that_is_none_is_refused(key: Any) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(prompt_cache_key=key)
        assert (answer.status, answer.error["param"]) == (400, "prompt_cache_key")

    on_stage(test)


def test_grpc_takes_key_and_salt() -> None:
    parameters = pb.Parameters(prompt_cache_key="k", cache_salt="s")
    request = decode_generate(pb.GenerateRequest(model="m", text="t", parameters=parameters).SerializeToString())
    assert (request.prompt_cache_key, request.cache_salt) == ("k", "s")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"semantic_cache": True}, "semantic_cache"),
        ({"semantic_cache": {"threshold": 0.9}}, "semantic_cache"),
        ({"similarity_threshold": 0.9}, "similarity_threshold"),
        ({"cache_mode": "semantic"}, "cache_mode"),
        ({"prompt_cache_options": {"mode": "semantic"}}, "prompt_cache_options.mode"),
    ],
)
def test_reuse_by_similarity_of_meaning_is_refused_with_the_reason(asked: dict[str, Any], param: str) -> None:
    async def test(stage: Stage) -> None:
        answer = await stage.chat(**asked)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_parameter", param)
        assert "would answer that other prompt" in answer.error["message"]
        assert not stage.script.started

    on_stage(test)


def test_spelling_out_that_no_such_reuse_is_wanted_is_fine() -> None:
    async def test(stage: Stage) -> None:
        assert (await stage.chat(semantic_cache=False, cache_mode="exact", similarity_threshold=None)).status == 200

    on_stage(test)
