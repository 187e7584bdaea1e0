"""vLLM workers from an environment of their own: prefill on one node, decode on another, and the tokens of vLLM
alone."""

import asyncio
import signal
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tandem.apps.cli.request_trace import PULL, RequestTrace, assemble_trace, handoff_problems, place_of
from tandem.apps.cli.router_client import spans_of
from tandem.apps.client.http import Target
from tandem.apps.ray.serving import ROUTERS
from tandem.core.errors import TandemError
from tests.ray.asking import answered, end_hub, eventually
from tests.ray.conftest import HTTP_PORT, RayStage
from tests.ray.test_ray_commands import running, up, workers
from tests.vllm.plain_llm import answers

VLLM_PYTHON: Final = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
AT: Final = Target("127.0.0.1", HTTP_PORT, False, "")
START_S: Final = 400.0
"""Two vLLM start at once on few cores."""
PROMPT: Final = "The lantern in the harbour " * 12
TOKENS: Final = 24
POOLS: Final = {"prefill": "n1", "decode": "n2"}
"""And the resource by which their node is told."""
SERVICE: Final[dict[str, Any]] = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "ModelService",
    "metadata": {
        "name": "tiny",
        "annotations": {f"ray.tandem.dev/{pool}.resources": f"{node}=1" for pool, node in POOLS.items()},
    },
    "spec": {
        "model": {"source": "demo", "name": "tiny", "generationConfig": "vllm"},
        "engine": {
            "type": "vllm",
            "dtype": "float32",
            "blockTokens": 32,
            "kvMemory": "64Mi",
            "contextTokens": 1024,
            "eager": True,
        },
        "pools": [{"name": pool, "role": pool, "drainSeconds": 5} for pool in POOLS],
        "router": {"port": HTTP_PORT},
    },
}


@pytest.fixture
def vllm_python() -> Path:
    if not VLLM_PYTHON.exists():
        pytest.fail("there is no .venv-vllm: this test needs vLLM's environment; make it with `make setup-vllm`")
    return VLLM_PYTHON


@pytest.mark.timeout(900)
async def test_tokens_are_those_of_vllm_alone(ray_stage: RayStage, vllm_python: Path) -> None:
    file = ray_stage.folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(SERVICE))
    await end_hub()
    await asyncio.to_thread(_make_hub_and_router, str(vllm_python))
    flags = (str(file), "--vllm-python", str(vllm_python), "--start-timeout", str(START_S))
    async with running(ray_stage.folder, up(ray_stage, *flags)) as command:
        await command.line("tiny is served at", START_S)
        assert len(workers()) == len(POOLS)
        answer = await answered(AT, "tiny", PROMPT, TOKENS, more={"return_token_ids": True})
        story = await _story(answer["id"])
        command.process.send_signal(signal.SIGINT)
        assert await command.rest(120) == 0, command.lines
    assert not workers()
    prompt = answer["prompt_token_ids"]
    sampling = {"temperature": 0.0, "max_tokens": TOKENS}
    alone = await asyncio.to_thread(answers, [{"prompt": prompt, "sampling": sampling}], python=str(vllm_python))
    assert [answer["choices"][0]["token_ids"]] == alone
    _assert_handed_over(story, len(prompt))


def _make_hub_and_router(vllm_python: str) -> None:
    """A router that hands every prompt over, however small the model is, and the hub without which it does not start:
    as the command would make it, which uses both as they are."""
    from ray import serve

    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.hub_actor import make_hub
    from tandem.apps.ray.options import RaySettings
    from tandem.apps.ray.router_replica import RouterPlan

    make_hub(RaySettings(vllm_python=vllm_python, url=f"http://127.0.0.1:{HTTP_PORT}"))
    plan = RouterPlan(drain_s=2.0, settings={"core.placement.prefer": "disaggregated"})
    target = serve.RunTarget(router_application(plan, 1), name=ROUTERS, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


async def _story(request_id: str) -> RequestTrace:
    """What happened to a request, once its workers have reported."""

    async def look() -> RequestTrace | None:
        try:
            story = assemble_trace(await spans_of(AT, request_id))
        except TandemError:
            return None
        return story if story.named("decode") else None

    found: RequestTrace = await eventually(look, 30)
    return found


def _assert_handed_over(story: RequestTrace, prompt: int) -> None:
    """Prefill has computed the prompt, and decode has pulled it and computed none of it."""
    assert not handoff_problems(story)
    (pull,) = story.named(PULL)
    (prefill,) = {place_of(span) for span in story.named("prefill") if story.computed(place_of(span))}
    assert place_of(pull).startswith("tiny-decode-")
    assert prefill.startswith("tiny-prefill-")
    assert story.computed(prefill) == prompt
