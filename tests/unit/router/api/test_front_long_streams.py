"""Streams of more than a first and a last chunk: what stands in the middle is most of what clients see."""

from pathlib import Path

from router.api.auth import load_keys
from router.generation import Generation, Sink, Usage
from tests.worlds.front_stage import Script, Stage, chat_body, logprobs, on_stage
from tests.worlds.outputs import Speaker, said

PIECES = ("Once", " upon", " a", " time", ".")


def pieces(generation: Generation, sink: Sink) -> None:
    """Five tokens in five chunks."""
    wanted, speaker = generation.sampling.logprobs, Speaker(sink)
    for position, piece in enumerate(PIECES, 1):
        finish = "length" if position == len(PIECES) else None
        speaker.say(0, position, (64 + position,), piece, logprobs(wanted, 64 + position), finish)
    sink.done(Usage(generation.prompt_tokens, len(PIECES), 1))


def in_batches(generation: Generation, sink: Sink) -> None:
    """A hundred tokens in ten chunks, as where workers report every tenth step."""
    for number in range(10):
        tokens = tuple(range(64, 74))
        finish = "length" if number == 9 else None
        sink.output(said(0, 10 * number + 1, tokens, "ten words ", (), finish, None))
    sink.done(Usage(generation.prompt_tokens, 100, 1))


def test_every_chunk_of_a_completion_has_the_logprobs_and_the_offset_of_its_token() -> None:
    async def test(stage: Stage) -> None:
        events = (await stage.complete("x", logprobs=1, stream=True)).events()[:-1]
        choices = [event["choices"][0] for event in events]
        assert [choice["text"] for choice in choices] == list(PIECES)
        shown = [choice["logprobs"] for choice in choices]
        assert [each["tokens"] for each in shown] == [["A"], ["B"], ["C"], ["D"], ["E"]]
        assert [each["token_logprobs"] for each in shown] == [[-0.5]] * 5
        assert [each["text_offset"] for each in shown] == [[0], [4], [9], [11], [16]]

    on_stage(test, Script(play=pieces))


def test_every_chunk_of_a_chat_has_the_logprobs_of_its_token() -> None:
    async def test(stage: Stage) -> None:
        events = (await stage.chat(logprobs=True, top_logprobs=1, stream=True)).events()[:-1]
        contents = [
            event["choices"][0]["logprobs"] for event in events if event["choices"][0]["delta"].get("content")
        ]
        assert [each["content"][0]["token"] for each in contents] == ["A", "B", "C", "D", "E"]

    on_stage(test, Script(play=pieces))


def test_a_stream_is_charged_for_tokens_however_few_chunks_they_come_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(
        '{"salt_key": "0123456789abcdef", "keys": {"sk-a": "a"}, "tenants": {"a": {"tokens_per_minute": 60}}}'
    )

    async def test(stage: Stage) -> None:
        assert (
            await stage.post("/v1/chat/completions", chat_body(stream=True), authorization="Bearer sk-a")
        ).status == 200
        over = await stage.post("/v1/chat/completions", chat_body(stream=True), authorization="Bearer sk-a")
        assert (over.status, over.error["code"]) == (429, "over_quota")
        # 100 tokens of 60 are owed, at one a second; time goes on while this runs.
        assert int(over.headers["retry-after"]) > 5

    on_stage(test, Script(play=in_batches), keys=load_keys(path))
