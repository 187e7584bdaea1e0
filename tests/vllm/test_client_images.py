"""What vLLM's own code makes of images may be anything: none of it ends more than its request. No engine runs."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.engine.vllm.client import VllmClient
from tandem.engine.vllm.requests import VllmRequest

TOKENS = pack_tokens((5, 6))


class Renderer:
    """Answers with what it was given, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        info = SimpleNamespace(allowed_mm_limits={"image": 4})
        self.mm_processor = SimpleNamespace(info=info)

    async def render_cmpl_async(self, _prompts: list[Any]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def client(answer: Any) -> VllmClient:
    def process(*_given: Any, **_named: Any) -> Any:
        raise answer

    processor = SimpleNamespace(process_inputs=process)
    llm: Any = SimpleNamespace(engine_core=None, renderer=Renderer(answer), input_processor=processor)
    return VllmClient(llm, ())


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "answer",
    [
        [{"type": "enc_dec", "encoder_prompt": {}, "decoder_prompt": {}}],
        [{"type": "embeds", "prompt_embeds": None}],
        [None],
        None,
        IndexError("an expert was not at home"),
    ],
)
async def test_an_odd_answer_is_an_error_of_the_work(answer: Any) -> None:
    with pytest.raises(TandemError, match="vLLM could not prepare the images") as odd:
        await client(answer).expand(TOKENS, (png(),))
    assert odd.value.code == "engine_failed"


async def test_a_prompt_with_its_images_is_taken_as_it_comes() -> None:
    found = await client([{"type": "multimodal", "prompt_token_ids": [5, 9, 6], "mm_kwargs": 7}]).expand(
        TOKENS, (png(),)
    )
    assert found.prompt == pack_tokens((5, 9, 6))
    assert found.media == {"type": "multimodal", "mm_kwargs": 7}


def test_what_vllm_cannot_do_with_its_own_answer_is_an_error_of_the_work() -> None:
    def request(media: Any) -> VllmRequest:
        return VllmRequest("1.0", TOKENS, 0, {"temperature": 0.0}, None, "salt", 0, "", media)

    with pytest.raises(TandemError, match="TypeError: no such kind"):
        client(TypeError("no such kind")).prepare(request({"type": "multimodal"}))
    # Of a prompt of text it is a fault of ours.
    with pytest.raises(TypeError):
        client(TypeError("no such kind")).prepare(request(None))
