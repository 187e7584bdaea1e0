"""vLLM workers from an environment of their own: one over two nodes, and prefill on one node with decode on another.
Their tokens are those of vLLM alone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest
import pytest_asyncio
import yaml

from tandem.apps.cli.registry import MemberEntry
from tandem.apps.cli.request_trace import PULL, RequestTrace, assemble_trace, handoff_problems, place_of
from tandem.apps.cli.router_client import spans_of
from tandem.apps.client.http import Target
from tandem.apps.ray.hub_client import HubClient
from tandem.apps.ray.serving import ROUTERS
from tandem.core.errors import TandemError
from tandem.spec.service import ModelService
from tests.ray.asking import answered, end_hub, eventually
from tests.ray.conftest import HTTP_PORT, RayStage
from tests.ray.drilling import ended, segments
from tests.ray.test_ray_commands import running, up, workers
from tests.vllm.plain_llm import answers

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

VLLM_PYTHON: Final = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
AT: Final = Target("127.0.0.1", HTTP_PORT, False, "")
START_S: Final = 400.0
"""Two vLLM start at once on few cores."""
PROMPT: Final = "The lantern in the harbour " * 12
TOKENS: Final = 24
IDS: Final = {"return_token_ids": True}


def service(name: str, pools: list[dict[str, Any]], nodes: dict[str, str], **engine: Any) -> dict[str, Any]:
    """A ModelService with the demo model; `nodes` are resources by pool, by which their node is told."""
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "ModelService",
        "metadata": {
            "name": name,
            "annotations": {f"ray.tandem.dev/{pool}.resources": f"{node}=1" for pool, node in nodes.items()},
        },
        "spec": {
            "model": {"source": "demo", "name": name, "generationConfig": "vllm"},
            "engine": {
                "type": "vllm",
                "device": "cpu",
                "dtype": "float32",
                "blockTokens": 32,
                "kvMemory": "64Mi",
                "contextTokens": 1024,
                "eager": True,
                **engine,
            },
            "pools": [{"drainSeconds": 5, **pool} for pool in pools],
            "router": {"port": HTTP_PORT},
        },
    }


POOLS: Final = {"prefill": "n1", "decode": "n2"}
TINY: Final = service("tiny", [{"name": pool, "role": pool} for pool in POOLS], POOLS)
WIDE: Final = service(
    "wide",
    [{"name": "all", "role": "unified", "accelerator": {"type": "h100-sxm", "perNode": 1}}],
    {},
    parallelism={"tensor": 2},
)
"""Each of its ranks takes a whole node: two of the stage have one accelerator, and the third has none."""


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    if not VLLM_PYTHON.exists():
        pytest.fail("there is no .venv-vllm: this test needs vLLM's environment; make it with `make setup-vllm`")
    return VLLM_PYTHON


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hub(ray_stage: RayStage, vllm_python: Path) -> AsyncIterator[HubClient]:
    """A hub, and a router that hands every prompt over, however small the model is: commands use both as they are."""
    from ray import serve

    from tandem.apps.ray.application import router_application
    from tandem.apps.ray.hub_actor import make_hub
    from tandem.apps.ray.hub_client import hub_of_this_cluster
    from tandem.apps.ray.options import RaySettings
    from tandem.apps.ray.router_replica import RouterPlan

    await end_hub()
    make_hub(RaySettings(vllm_python=str(vllm_python), url=f"http://127.0.0.1:{HTTP_PORT}"))
    plan = RouterPlan(drain_s=2.0, settings={"core.placement.prefer": "disaggregated"})
    target = serve.RunTarget(router_application(plan, 1), name=ROUTERS, route_prefix="/")
    await asyncio.to_thread(
        serve.run_many, [target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
    )
    yield hub_of_this_cluster()
    if ROUTERS in (await asyncio.to_thread(serve.status)).applications:
        await asyncio.to_thread(serve.delete, ROUTERS)
    await end_hub()


@cache
def alone(prompt: tuple[int, ...]) -> list[int]:
    """What vLLM itself answers in one process."""
    request = {"prompt": list(prompt), "sampling": {"temperature": 0.0, "max_tokens": TOKENS}}
    (found,) = answers([request], python=str(VLLM_PYTHON))
    return found


async def right(answer: Any) -> bool:
    """Whether the tokens are those of vLLM alone."""
    expected = await asyncio.to_thread(alone, tuple(answer["prompt_token_ids"]))
    return bool(answer["choices"][0]["token_ids"] == expected)


async def test_a_worker_over_two_nodes_says_what_one_says_and_is_replaced_whole(
    hub: HubClient, ray_stage: RayStage
) -> None:
    await hub.call("want", msgspec.convert(WIDE, ModelService), within_s=60)
    answer = await answered(AT, "wide", PROMPT, TOKENS, START_S, IDS)
    first = await gang(hub)
    assert len({ray_stage.node_of(each.pid or 0) for each in first}) == len(first)
    (struck,) = ranks_of(first[1])
    assert len(ranks_of(first[0])) == 1
    os.kill(struck, signal.SIGKILL)
    await ended([each.pid or 0 for each in first])
    again = await answered(AT, "wide", PROMPT, TOKENS, START_S, IDS)
    second = await gang(hub)
    assert len({ray_stage.node_of(each.pid or 0) for each in second}) == len(second)
    assert not {each.name for each in first} & {each.name for each in second}
    held = [pid for each in second for pid in (each.pid or 0, *ranks_of(each))]
    await hub.call("leave", "wide", 20.0, within_s=90)
    await ended(held)
    assert not workers()
    assert not segments()
    assert await right(answer)
    assert await right(again)


async def gang(hub: HubClient) -> list[MemberEntry]:
    """Both ranks of the only worker, once they are ready."""

    async def look() -> list[MemberEntry]:
        members = [each for each in (await hub.call("entry")).members if each.service == "wide"]
        by_rank = sorted(members, key=lambda each: each.rank)
        return by_rank if [(each.rank, each.state) for each in by_rank] == [(0, "ready"), (1, "ready")] else []

    found: list[MemberEntry] = await eventually(look)
    return found


def ranks_of(member: MemberEntry) -> list[int]:
    """Processes that compute."""
    family = psutil.Process(member.pid).children(recursive=True)
    return [each.pid for each in family if "Worker_TP" in " ".join(each.cmdline())]


async def test_tokens_of_prefill_and_decode_are_those_of_vllm_alone(
    hub: HubClient, ray_stage: RayStage, vllm_python: Path
) -> None:
    file = ray_stage.folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    flags = (str(file), "--vllm-python", str(vllm_python), "--start-timeout", str(START_S))
    async with running(ray_stage.folder, up(ray_stage, *flags)) as command:
        await command.line("tiny is served at", START_S)
        assert len(workers()) == len(POOLS)
        answer = await answered(AT, "tiny", PROMPT, TOKENS, more=IDS)
        story = await _story(answer["id"])
        command.process.send_signal(signal.SIGINT)
        assert await command.rest(120) == 0, command.lines
    assert not workers()
    assert await right(answer)
    _assert_handed_over(story, len(answer["prompt_token_ids"]))


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
