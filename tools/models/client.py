"""Asks a running platform over its REST interface, one request after the other."""

import re
from collections.abc import Sequence
from typing import Final

import openai

from tests.vllm.serving import Serving, token_ids
from tools.models.prompts import ANSWER_TOKENS
from tools.models.reference import ReferenceAnswer

_WITHOUT: Final = re.compile(r"kv_not_exchanged .*?reason=(.+)")


class NotHandedOver(Exception):
    """A prompt was computed by the decode worker."""


async def ask(serving: Serving, prompts: Sequence[Sequence[int]], *, handed_over: bool) -> list[ReferenceAnswer]:
    """Greedy answers. Raises `NotHandedOver` when decode has computed any of a prompt that it was to be given."""
    async with serving.client() as api:
        return [await _ask(serving, api, prompt, handed_over) for prompt in prompts]


async def _ask(
    serving: Serving, api: openai.AsyncOpenAI, prompt: Sequence[int], handed_over: bool
) -> ReferenceAnswer:
    answer = await api.completions.create(
        model=serving.model, prompt=list(prompt), max_tokens=ANSWER_TOKENS, temperature=0.0, logprobs=1,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    (choice,) = answer.choices
    if handed_over:
        story = await serving.story(answer.id)
        computed = story.computed("decode-0")
        if computed:
            raise NotHandedOver(f"decode computed {computed} of {len(prompt)} prompt tokens")
    logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else None
    return ReferenceAnswer(tuple(token_ids(choice)), tuple(each or 0.0 for each in logprobs or ()), ())


def without_connector(serving: Serving) -> str:
    """Why a worker has no connector, as it says in its log; empty where it has one."""
    for log in sorted(serving.platform.directory.logs.iterdir()):
        if found := _WITHOUT.search(log.read_text(errors="replace")):
            return f"unified without a connector: {found[1].strip()}"
    return ""
