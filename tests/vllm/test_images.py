"""Chat requests with images, as OpenAI's client sends them, against vLLM alone with the same images."""

import base64
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from PIL import Image
from tokenizers import Tokenizer

from tests.vllm.plain_llm import answers
from tests.vllm.serving import Serving, serving, token_ids
from tools.models.catalogue import named
from tools.models.checkpoints import write

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
TOKENS = 12
PLACES = 16
"""Of an image in the prompt: 32 x 32 pixels in patches of 8 x 8."""
TEXT = "Tell me what you see on this picture, " * 4
LIMIT = {"limit_mm_per_prompt": {"image": 4, "video": 0, "audio": 0}}


def png(color: str, width: int = 40, height: int = 30) -> bytes:
    """A picture with a mark on it, so that it is not the same everywhere."""
    picture = Image.new("RGB", (width, height), color)
    picture.paste("white", (3, 3, width // 2, height // 3))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


RED, BLUE = png("red"), png("navy", 64, 50)
CASES: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    (TEXT, (RED,)),
    (TEXT, (BLUE,)),
    (TEXT, (RED, BLUE)),
    (TEXT, (BLUE, RED)),
    (TEXT, ()),
)


def turn(text: str, files: tuple[bytes, ...]) -> dict[str, Any]:
    urls = [f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def prompt(model: Path, text: str, files: tuple[bytes, ...]) -> list[int]:
    """What the model's template is to make of a turn, in its tokens."""
    whole = f"<|begin|><|user|>{'<image>' * len(files)}{text.strip()}<|end|><|assistant|>"
    ids: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(whole, add_special_tokens=False).ids
    return ids


@dataclass
class Looking:
    """A platform with one unified worker, and what vLLM alone says in each of `CASES`."""

    serving: Serving
    model: Path
    alone: list[list[int]]

    async def ask(self, text: str, files: tuple[bytes, ...], **more: Any) -> Any:
        given = {"max_tokens": TOKENS, "temperature": 0.0, **more}
        extra = {"return_token_ids": True, "ignore_eos": True}
        async with self.serving.client() as api:
            return await api.chat.completions.create(
                model=self.serving.model,
                messages=[turn(text, files)],  # type: ignore[list-item]
                extra_body=extra,
                **given,
            )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def looking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Looking]:
    (entry,) = named("llava")
    model = write(entry, tmp_path_factory.mktemp("llava") / "llava")
    greedy = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
    requests = [
        {
            "prompt": prompt(model, text, files),
            "sampling": greedy,
            "images": [base64.b64encode(file).decode() for file in files],
        }
        for text, files in CASES
    ]
    alone = answers(requests, {"model": str(model), **LIMIT})
    async with serving(["--prefill", "0", "--decode", "1", "--context-tokens", "1024"], {}, model) as running:
        yield Looking(running, model, alone)


async def test_answers_are_those_of_vllm_alone_and_other_images_give_others(looking: Looking) -> None:
    said = [token_ids((await looking.ask(text, files)).choices[0]) for text, files in CASES]
    assert said == looking.alone
    assert len({tuple(each) for each in said}) == len(CASES)


async def test_again_the_worker_has_what_it_computed_for_the_same_images_alone(looking: Looking) -> None:
    for number, (text, files) in enumerate(CASES):
        answer = await looking.ask(text, files)
        assert token_ids(answer.choices[0]) == looking.alone[number]
        assert answer.usage.prompt_tokens == len(prompt(looking.model, text, files)) + (PLACES - 1) * len(files)
        assert 0 < answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens


async def refusal(looking: Looking, files: tuple[bytes, ...], **more: Any) -> tuple[int, Any, Any, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        await looking.ask(TEXT, files, **more)
    error = caught.value
    return error.status_code, error.code, error.param, error.message


async def test_the_worker_refuses_what_it_cannot_take_and_goes_on(looking: Looking) -> None:
    cut_off = await refusal(looking, (RED, RED[:60]))
    assert cut_off[:3] == (400, "invalid_request", "messages")
    assert "image 2 of the request cannot be read" in cut_off[3]
    many = await refusal(looking, (RED,) * 5)
    assert many[:3] == (400, "invalid_request", "messages")
    assert "5 images, and 4 are the most" in many[3]
    long = 1024 - len(prompt(looking.model, TEXT, (RED,)))
    too_long = await refusal(looking, (RED,), max_tokens=long)
    assert too_long[:2] == (400, "context_length_exceeded")
    text, files = CASES[0]
    assert token_ids((await looking.ask(text, files)).choices[0]) == looking.alone[0]


async def test_an_answer_without_a_bound_fills_what_the_images_leave_of_the_context(looking: Looking) -> None:
    answer = await looking.ask(TEXT, (RED,), max_tokens=None)
    assert answer.usage.total_tokens == 1024
    assert answer.choices[0].finish_reason == "length"
