"""A prefill worker with another engine than the decode worker: nothing is handed over, and placement says why."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tandem.apps.cli.platform import Platform
from tests.vllm.serving import serving

pytestmark = pytest.mark.timeout(600)


def torch_prefill(platform: Platform) -> None:
    """What no specification can say: the engine is the same in every pool."""
    for member in platform.members:
        if member.role == "prefill":
            arguments = _without_vllm(iter(member.command.argv))
            member.command = replace(member.command, argv=(*arguments, "--engine", "torch", "--block_tokens", "32"))


def _without_vllm(argv: Iterator[str]) -> Iterator[str]:
    for flag in argv:
        if flag in ("--engine", "--block_tokens") or flag.startswith("--vllm."):
            next(argv)
        else:
            yield flag


async def test_torch_does_not_hand_over_to_vllm() -> None:
    async with serving(["--prefill", "1", "--decode", "1"], change=torch_prefill) as mixed, mixed.client() as api:
        answer = await api.completions.create(
            model=mixed.model, prompt=list(range(3, 103)), max_tokens=4, temperature=0.0
        )
        story = await mixed.story(answer.id)
        assert story.computed("decode-0") == 100
        assert story.computed("prefill-0") == 0
        (place,) = story.named("place")
        said = " ".join(str(value) for value in place.attributes.values())
        assert "no prefill worker may be paired with it; prefill-0: engine differ" in said
